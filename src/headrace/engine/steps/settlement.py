"""What became of steps that were done, or were not: their sequences go on, and whoever asked hears of it.

When a step is told to its caller it is done for good: with checkpoints it is saved before.
"""

import logging
from collections.abc import Callable, Sequence

from headrace.core.clock import Clock
from headrace.core.errors import CancelledRequestError, HeadraceError, SequenceGoneError
from headrace.engine.outputs import Outputs
from headrace.engine.pipe import wake_all
from headrace.engine.reason import unforeseen
from headrace.engine.steps.calls import Came
from headrace.engine.steps.channel import StepChannel
from headrace.engine.steps.keeper import Keeper
from headrace.engine.steps.part import Part
from headrace.engine.steps.work import Live, StepOutcome
from headrace.engine.tally import Tally
from headrace.engine.ticket import Answer, Ticket, deliver

_log = logging.getLogger("headrace.engine")


class Settlement:
    """Settles one instance's steps, call after call. One thread at a time."""

    def __init__(
        self,
        channel: StepChannel,
        place: int,
        tally: Tally,
        clock: Clock,
        keeper: Keeper | None,
        *,
        name: str,
    ) -> None:
        self._channel = channel
        self._place = place
        self._tally = tally
        self._clock = clock
        self._keeper = keeper
        self._name = name

    def settle(self, outcomes: Sequence[StepOutcome], came: Sequence[Came], now: float) -> None:
        """These steps were taken, and this came of them, at `now`. Where that raises, in whichever thread, they fail."""
        answered: list[tuple[Ticket, Answer]] = []
        wakes: list[Callable[[], None]] = []
        try:
            self._settle(outcomes, came, now, answered, wakes)
        except BaseException as error:  # noqa: BLE001 - a defect of ours: nobody may wait for it
            _log.exception("steps could not be settled", extra={"model": self._name})
            taken = [o.sequence for o in outcomes if o.done is None]
            others = [o.sequence for o in outcomes if o.done is not None]
            self.spoil([o.part for o in outcomes], taken, others, answered, error)
        finally:
            wake_all(wakes)

    def _settle(
        self,
        outcomes: Sequence[StepOutcome],
        came: Sequence[Came],
        now: float,
        answered: list[tuple[Ticket, Answer]],
        wakes: list[Callable[[], None]],
    ) -> None:
        for each in came:
            each.tell()
        if self._keeper is not None:
            self._keeper.save(outcomes)
        for outcome in outcomes:
            self._tell(outcome, wakes, now)
        self._channel.stepped(self._place, outcomes)
        began: list[float | None] = []
        for outcome in outcomes:
            if outcome.held and not outcome.done:
                self._hold(outcome)
            if outcome.done and (answer := outcome.part.finish(_error_of(outcome))) is not None:
                answered.append((outcome.part.ticket, answer))
                began.append(outcome.part.begun_s)
        self._channel.settle([ticket for ticket, _ in answered])
        for (ticket, answer), began_s in zip(answered, began, strict=True):
            self._tally.ended(ticket, answer, now if began_s is None else began_s, now)
        deliver(answered)
        # Whoever waited behind these hears of it now, not when the next call is over.
        self._channel.tell_over()

    def spoil(
        self,
        parts: Sequence[Part],
        taken: Sequence[Live],
        others: Sequence[Live],
        answered: list[tuple[Ticket, Answer]],
        error: BaseException,
    ) -> None:
        """A defect raised `error`: the parts fail, and the sequences end, those of steps that were `taken` with these.

        Nobody knows what became of their states. What was `answered` before stays so.
        """
        told = unforeseen(self._name, error, ", and ended its sequence")
        try:
            answered += [each for part in parts if (each := part.finished(told)) is not None]
            self._channel.spoiled(self._place, taken, others)
            open_ = [(ticket, answer) for ticket, answer in answered if not ticket.ended]
            self._channel.settle([ticket for ticket, _ in answered])
            now = self._clock.now()
            for ticket, answer in open_:
                self._tally.ended(ticket, answer, now, now)
        finally:
            deliver(answered)

    def _tell(self, outcome: StepOutcome, wakes: list[Callable[[], None]], now: float) -> None:
        """Its request hears of it, before it may be over."""
        part = outcome.part
        if outcome.error is not None:
            # Its request fails with it, unless that takes answers with rows missing.
            goes_on = part.sink.failed(part, outcome.row, outcome.why)
            outcome.finished = outcome.finished or not goes_on
            return
        if outcome.outputs is None:
            return
        self._count(part, now)
        part.ending = outcome.is_last
        if not outcome.silent:
            self._give(outcome, outcome.outputs, wakes)

    def _count(self, part: Part, now: float) -> None:
        last_s = part.stepped_s if part.again else None
        self._tally.stepped(None if last_s is None else now - last_s)
        part.acquit()
        part.stepped_s = now

    def _give(self, outcome: StepOutcome, outputs: Outputs, wakes: list[Callable[[], None]]) -> None:
        try:
            room = outcome.part.sink.give(outcome.part, outcome.row, outputs, wakes)
            outcome.held = outcome.goes_on and not room
        except CancelledRequestError:
            outcome.finished = True
        except HeadraceError as error:
            outcome.error, outcome.finished = error, True
        except Exception as error:  # noqa: BLE001 - such as for want of memory: it costs this request
            _log.exception("a step was done, and its outputs could not be given", extra={"model": self._name})
            outcome.error, outcome.finished = unforeseen(self._name, error), True

    def _hold(self, outcome: StepOutcome) -> None:
        """Its caller is behind: it goes on when there is room."""
        sequence, channel = outcome.sequence, self._channel
        if not outcome.part.sink.when_room(lambda: channel.room(sequence)):
            channel.room(sequence)


def _error_of(outcome: StepOutcome) -> BaseException | None:
    """What the request comes to, whose part is over."""
    part = outcome.part
    if outcome.error is not None and outcome.finished:
        return outcome.error
    if part.row < part.rows and outcome.ends:
        return SequenceGoneError(
            part.id,
            f"its model ended it with row {part.row} of the {part.rows} of this request: what follows was not done",
        )
    return None
