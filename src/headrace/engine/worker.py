"""An instance's thread: it loads the instance, answers what waits, starts it again when its process dies, and closes it."""

import logging
from collections.abc import Callable
from typing import Any

from headrace.batching.adaptive import LookAgain
from headrace.core.errors import InstanceLostError, StoppedError
from headrace.engine.backend import Backend
from headrace.engine.channel import ThreadTaker
from headrace.engine.inline import Inline
from headrace.engine.instance import Instance
from headrace.engine.isolation import Placement
from headrace.engine.life import Life, Slot
from headrace.engine.reason import reason
from headrace.engine.revival import Revival
from headrace.engine.rounds import BatchRounds, Rounds
from headrace.engine.steps.channel import StepChannel
from headrace.engine.steps.rounds import StepRounds

_log = logging.getLogger("headrace.engine")


class Worker:
    """What one thread does, from the begin of its life to the end."""

    def __init__(
        self,
        life: Life,
        slot: Slot,
        placement: Placement,
        make_steps: Callable[[Life, Backend], StepChannel],
    ) -> None:
        self._life = life
        self._slot = slot
        self._placement = placement
        self._make_steps = make_steps

    def run(self) -> None:
        """Load, then answer until stopped."""
        life, slot = self._life, self._slot
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that starts
            if slot.backend is not None:
                slot.backend.close()
            life.report_loaded(error)
            return
        life.report_loaded(None)
        assert slot.backend is not None
        try:
            self._answer_until_closed(slot.backend)
        except BaseException as error:  # noqa: BLE001 - a defect of ours: nobody may wait for this thread from now on
            self._break_down(error)
        finally:
            slot.alive = False
            if life.inline is not None:
                life.inline.close()
            slot.backend.close()
            with life.changed:
                life.ended += 1
                last = life.ended == len(life.slots)
            if last:
                # What an instance gave back when the others had ended already.
                life.drop(life.stopped("before this request began"))

    def _load(self) -> None:
        life, slot = self._life, self._slot
        slot.backend = backend = self._placement.load()
        slot.instance = Instance(backend, life.name, life.clock, slot.tally)
        slot.gone = slot.instance.gone
        metadata = backend.metadata
        if metadata.steps:
            life.use_steps(lambda: self._make_steps(life, backend))
        life.channel.resize(rows_max=metadata.max_batch_rows, delay_s=metadata.max_batch_delay_ms / 1000)
        if self._placement.inline(backend):
            life.inline = Inline(
                slot.instance,
                backend,
                slot.tally,
                life.clock,
                before_call=life.go_on,
                stopped=life.stopped,
            )
        slot.revival = Revival(backend, life.name, life.clock)
        slot.alive = True

    def _answer_until_closed(self, backend: Backend) -> None:
        taker = ThreadTaker()

        def lost() -> None:
            self._slot.alive = False
            taker.wake()

        backend.on_lost(lost)
        rounds = self._rounds(backend)
        try:
            while (work := rounds.take(taker, lambda: backend.lost)) is not None:
                if not self._survived(rounds, work):
                    if not self._revived():
                        rounds.given_up()
                        return
                    rounds.revived()
        except BaseException as error:
            rounds.failed(error)
            raise
        finally:
            rounds.close()

    def _rounds(self, backend: Backend) -> Rounds[Any]:
        life, slot = self._life, self._slot
        if life.steps is None:
            return BatchRounds(life, slot)
        rounds = StepRounds(
            life.steps,
            life.slots.index(slot),
            backend,
            slot.tally,
            life.clock,
            before_step=life.go_on,
            name=life.name,
        )
        slot.gone = rounds.gone
        return rounds

    def _survived(self, rounds: Rounds[Any], work: Any) -> bool:
        """Answer some work; False when the instance died meanwhile, or before."""
        assert self._slot.revival is not None
        if isinstance(work, LookAgain):
            rounds.lost(None)
            return False
        try:
            if rounds.answer(work):
                self._slot.revival.proved()
        except InstanceLostError as error:
            if rounds.lost(error):
                # It was ended on purpose, and is needed at once.
                self._slot.revival.proved()
            return False
        except BaseException as error:  # noqa: BLE001 - a defect of ours: what was taken fails, and the thread goes on
            _log.exception("requests could not be answered", extra={"model": self._life.name})
            rounds.failed(error)
        return True

    # When its process dies

    def _revived(self) -> bool:
        """Start it again; False when it is given up, or nobody wants it any more."""
        life, slot = self._life, self._slot
        assert slot.revival is not None

        def wanted() -> bool:
            return not life.channel.dropped and (not life.hurry.is_set() or life.channel.waiting()[0] > 0)

        try:
            slot.revival.revive(life.hurry, wanted)
        except StoppedError:
            return False
        except BaseException as error:  # noqa: BLE001 - it is given up; what waits has other instances, or hears of it
            self._give_up(error, f"its process died and could not be started again: {reason(error)}")
            return False
        slot.tally.restarts += 1
        slot.alive = True
        return True

    def _break_down(self, error: BaseException) -> None:
        """Its thread cannot go on."""
        self._give_up(
            error, f"headrace itself failed in its thread, with {type(error).__name__}: see its log"
        )
        life = self._life
        if life.steps is not None:
            life.steps.vacate(life.slots.index(self._slot))

    def _give_up(self, error: BaseException, why: str) -> None:
        """It takes nothing any more; without a last one nothing can be answered, since: `why`."""
        life = self._life
        _log.error("an instance is given up", extra={"model": life.name}, exc_info=error)
        with life.changed:
            self._slot.given_up = True
            last = all(s.given_up for s in life.slots)
        if last:
            life.lost = why
            life.drop(InstanceLostError(life.name, life.lost))
