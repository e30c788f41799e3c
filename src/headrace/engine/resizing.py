"""Add and remove instances of a running session.

An added instance takes part once it is loaded. A removed one takes only work that no other instance can
do: steps of sequences whose states it holds, and its open streams. It ends when that is done.
"""

from collections.abc import Callable, Sequence
from typing import Final

from headrace.engine.admission import running_backend
from headrace.engine.instance_slot import InstanceSlot
from headrace.engine.session import EngineSession

_UNOPENED_S: Final = 0.1
"""The interval in seconds at which responses are looked for that clients have dropped unopened."""
_UNCHANGED: Final = "its number of instances cannot be changed"


def set_instances(session: EngineSession, count: int, run: Callable[[InstanceSlot], None]) -> None:
    """Change the number of instances; `run` is the body of their threads. One thread at a time.

    Returns when added instances serve; removed ones may still drain. Raises StoppedError while the
    session does not run, InstanceLostError once no instance is left, and the error of the first
    instance that does not load; then the number is the same as before.
    """
    running_backend(session, _UNCHANGED)
    before = len(session.members)
    if count < before:
        _remove(session, before - count)
    elif count > before:
        try:
            _add(session, count - before, run)
        except BaseException:
            _remove(session, len(session.members) - before)
            raise


def _remove(session: EngineSession, count: int) -> None:
    """Remove the instances that are given up, then those that restart, then those of the last slots."""

    def order(slot: InstanceSlot) -> tuple[bool, bool, int]:
        return not slot.given_up, slot.alive, -slot.number

    with session.changed:
        removed = sorted(session.members, key=order)[:count]
        for slot in removed:
            slot.is_member = False
    for slot in removed:
        session.queue.drain_instance(slot.number)
        slot.restart_now.set()


def _add(session: EngineSession, count: int, run: Callable[[InstanceSlot], None]) -> None:
    with session.changed:
        # From here on, a stop waits for the threads of these instances.
        running_backend(session, _UNCHANGED)
        for slot in session.slots:
            # An instance that drains is loaded already.
            if count and slot.is_draining and session.queue.keep_instance(slot.number):
                slot.is_member = True
                slot.restart_now.clear()
                count -= 1
        added = [_free_slot(session) for _ in range(count)]
        _load(session, added, run)
    withdraw_inline(session)


def _load(session: EngineSession, added: Sequence[InstanceSlot], run: Callable[[InstanceSlot], None]) -> None:
    """Start instances, and wait until each is ready or has failed. Raises the first error."""
    for slot in added:
        try:
            session.start_thread(slot, run)
        except RuntimeError as error:
            session.report_loaded(slot, error)
    session.changed.wait_for(lambda: all(slot.is_loaded for slot in added))
    error = next((slot.load_error for slot in added if slot.load_error is not None), None)
    if error is not None:
        raise error


def withdraw_inline(session: EngineSession) -> None:
    """Let the model be called in the threads of its instances only, from now on."""
    inline = session.inline
    if inline is not None:
        inline.withdraw()
        session.inline = None


def _free_slot(session: EngineSession) -> InstanceSlot:
    """Return a slot for an instance that is to be loaded: that of an ended one, or a new one."""
    # The first slot describes the model, also after it was given up.
    free = next((slot for slot in session.slots[1:] if slot.is_ended and not slot.is_member), None)
    if free is None:
        free = session.add_slot(is_member=False)
    free.reset()
    return free


def wait_for_streams(session: EngineSession, slot: InstanceSlot) -> None:
    """Wait until the streams of a removed instance have ended, or the session stops."""
    if session.sequences is not None:
        # Each stream is a sequence, maybe of another instance.
        return
    with session.changed:
        while not (slot.is_member or session.stop_requested.is_set()) and (slot.streams or slot.unopened):
            # A response that its client drops is not reported.
            session.changed.wait(_UNOPENED_S if slot.unopened else None)
