"""The contract of a checkpoint store: the last finished step of each sequence, for a later process.

`MemoryCheckpointStore` keeps the contract within one process.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import UnavailableError

_log = logging.getLogger("headrace.checkpoints")

KEEP_MS: Final = 7 * 24 * 3_600_000.0
"""Default retention of checkpoints since their last save, in milliseconds. No sequence may be idle
for longer.
"""


class SequenceCheckpoint(NamedTuple):
    """The state of one sequence after a number of steps."""

    id: str
    steps: int
    """A mark of 1 or more, below 2**63. It need not be consecutive: a store only compares marks for
    equality. The mark alone tells an earlier sequence with this id from a later one. Two processes
    with one such sequence each must not use the same marks.
    """
    state: bytes
    """The state as encoded by `headrace.checkpoints.codec`; opaque to the store."""
    previous_steps: int
    """The `steps` of the preceding checkpoint; 0 for the first one of a new or restarted sequence."""


class CheckpointStore(Protocol):
    """A store of the checkpoints of one model's sequences, by sequence id.

    Calls block. Any thread and several processes may call at once. A store has one clock for the
    age of checkpoints, also of those from other processes. It may drop checkpoints that are older
    than its retention (`KEEP_MS`).

    Every method raises UnavailableError if the store does not respond in time or properly, and
    after `close`. The operation may then have happened, or not. Saving the same checkpoints again
    is correct in both cases. Clients of the model receive the error's text, so it contains no
    address and no message of a driver; the log has them.
    """

    is_remote: bool = True
    """True if calls may wait for a time-out of the network. The engine then makes them in a thread of
    their own, which costs a step about 0.1 ms.
    """

    def save(self, checkpoints: Sequence[SequenceCheckpoint]) -> list[bool]:
        """Save checkpoints in order, each whole or not at all.

        Return for each True if it was saved.

        An id may occur twice. A checkpoint is saved if

        - its `previous_steps` is 0; or
        - the stored checkpoint of its id has the steps `previous_steps`; or
        - the stored checkpoint has the same steps and state: it then counts as saved now.

        Otherwise the stored checkpoint stays: another process has continued or ended the sequence,
        or the store has lost it. Of concurrent saves with the same `previous_steps`, one succeeds.

        A saved checkpoint is durable on return: it outlives this process and, as far as the store
        itself does, the machine.
        """
        ...

    def load(self, ids: Sequence[str], *, idle_ms_max: float) -> list[tuple[int, bytes] | None]:
        """Return the steps and the state for each of the `ids`, in order.

        An entry is None if its checkpoint is missing or older than `idle_ms_max`, which may be
        infinite.
        """
        ...

    def delete(self, ids: Sequence[str], steps: Sequence[int] | None = None) -> None:
        """Delete checkpoints of ended sequences. Missing ones are no error.

        With `steps`, one for each id, a checkpoint with other steps stays: its sequence has
        continued elsewhere, and the caller was wrong to treat it as idle.
        """
        ...

    def purge(self, *, idle_ms_max: float, count_max: int) -> int:
        """Delete old checkpoints of this model, oldest first, and return their number.

        Up to `count_max` checkpoints older than `idle_ms_max` are deleted; a result of `count_max`
        means that more may be left. A purge only frees space: `load` ignores old checkpoints
        anyway.
        """
        ...

    def close(self) -> None:
        """Release connections and files.

        Checkpoints stay if the store outlives its process. A second call does nothing.
        """
        ...


def store_failure(model: str, store: str, why: str) -> UnavailableError:
    """Log a failure, and return the error for clients: without the address and the driver's message."""
    _log.warning("the checkpoint store failed", extra={"model": model, "store": store, "why": why})
    return UnavailableError(f"the checkpoint store of model {model}", "it failed; try again later")


def closed_error(model: str) -> UnavailableError:
    """Return the error of a call after `close`."""
    return UnavailableError(f"the checkpoint store of model {model}", "it is closed")


class _StoredState(NamedTuple):
    steps: int
    state: bytes
    saved_s: float


class MemoryCheckpointStore(CheckpointStore):
    """A checkpoint store in a dictionary of this process, which `close` drops.

    Checkpoints outlive an instance, but not the process. The time is that of `clock`.
    """

    is_remote = False

    def __init__(self, model: str, *, clock: Clock | None = None) -> None:
        self.model = model
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._states: dict[str, _StoredState] | None = {}
        """States in the order of saving, oldest first."""

    @override
    def save(self, checkpoints: Sequence[SequenceCheckpoint]) -> list[bool]:
        with self._lock:
            states, now = self._open(), self._clock.now()
            return [_save(states, checkpoint, now) for checkpoint in checkpoints]

    @override
    def load(self, ids: Sequence[str], *, idle_ms_max: float) -> list[tuple[int, bytes] | None]:
        with self._lock:
            states, oldest_s = self._open(), self._oldest_s(idle_ms_max)
            found = [states.get(id) for id in ids]
        return [
            (state.steps, state.state) if state and state.saved_s >= oldest_s else None for state in found
        ]

    @override
    def delete(self, ids: Sequence[str], steps: Sequence[int] | None = None) -> None:
        with self._lock:
            states = self._open()
            for number, id in enumerate(ids):
                stored = states.get(id)
                if stored and (steps is None or stored.steps == steps[number]):
                    del states[id]

    @override
    def purge(self, *, idle_ms_max: float, count_max: int) -> int:
        with self._lock:
            states, oldest_s = self._open(), self._oldest_s(idle_ms_max)
            old: list[str] = []
            for id, stored in states.items():
                if len(old) >= count_max or stored.saved_s >= oldest_s:
                    break
                old.append(id)
            for id in old:
                del states[id]
            return len(old)

    @override
    def close(self) -> None:
        with self._lock:
            self._states = None

    def _open(self) -> dict[str, _StoredState]:
        if self._states is None:
            raise closed_error(self.model)
        return self._states

    def _oldest_s(self, idle_ms_max: float) -> float:
        return self._clock.now() - idle_ms_max / 1000


def _save(states: dict[str, _StoredState], checkpoint: SequenceCheckpoint, now: float) -> bool:
    id, steps, state, previous_steps = checkpoint
    stored = states.get(id)
    if previous_steps and (
        stored is None or (stored.steps != previous_steps and stored[:2] != (steps, state))
    ):
        return False
    if stored:
        del states[id]
    states[id] = _StoredState(steps, state, now)
    return True
