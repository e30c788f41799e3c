"""What one instance of a model with a `step` does over and over: one step of many sequences, and what came of each.

Everything here runs in the instance's own thread; but while calls can be full ones, what came of one is settled in another
thread beside the next: the model never waits for that. When a step is told to its caller it is done for good: with checkpoints it
is saved before.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.batching.adaptive import LookAgain
from headrace.batching.bisect import Bisection
from headrace.core.clock import Clock
from headrace.core.errors import (
    CancelledRequestError,
    HeadraceError,
    InstanceLostError,
    ModelContractError,
    ModelInputError,
    PredictError,
    RefusedRowsError,
    SequenceGoneError,
    UnavailableError,
)
from headrace.core.model import RowError
from headrace.engine.backend import Backend, Called
from headrace.engine.channel import ThreadTaker
from headrace.engine.instance import BeforeCall, RunningCall
from headrace.engine.outputs import Outputs
from headrace.engine.pipe import wake_all
from headrace.engine.reason import WHY_CHARS_MAX, out_of_memory, reason
from headrace.engine.stepper import StepOrder, Stepped
from headrace.engine.steps.channel import StepChannel
from headrace.engine.steps.keeper import Keeper
from headrace.engine.steps.part import Part
from headrace.engine.steps.work import Live, StepOutcome, StepWork
from headrace.engine.tally import Tally
from headrace.engine.ticket import DEATHS_MAX, Answer, Ticket, deliver

_log = logging.getLogger("headrace.engine")

_OF_ONE_REQUEST = (ModelContractError, ModelInputError)
"""Errors that end a request, whatever rows of it are left."""


class _StepCall(RunningCall):
    """A call of `step`: a part that is over wants it no more, though its request may."""

    parts: Sequence[Part] = ()

    def of(self, parts: Sequence[Part]) -> None:
        """Whose steps the call does from now on."""
        self.parts, self.tickets = parts, [part.ticket for part in parts]

    @property
    def cancelled(self) -> bool:
        now = self._clock.now()
        parts = self.parts
        return bool(parts) and not any(part.wanted(now) for part in parts)


class StepRounds:
    """Steps of many sequences. Implements `headrace.engine.rounds.Rounds`."""

    def __init__(
        self,
        channel: StepChannel,
        place: int,
        backend: Backend,
        tally: Tally,
        clock: Clock,
        *,
        before_step: BeforeCall,
        name: str,
    ) -> None:
        self._channel = channel
        self._place = place
        self._backend = backend
        self._tally = tally
        self._clock = clock
        self._before_step = before_step
        self._name = name
        self._running = _StepCall(clock)
        self._guard = threading.Lock()
        """Held where the call in progress is looked at, and where it ends, so that no other is cancelled in its place."""
        self._keeper = _keeper(channel, clock)
        self._work = StepWork()
        self._stepping: Sequence[Live] = ()
        """Whose steps were taken, and are not settled."""
        self._told = False
        """Whether those that were over with the work are told of."""
        self._died_in: Sequence[StepOutcome] = ()
        self._settler = ThreadPoolExecutor(1, f"headrace-{name}-{place}-settle")
        self._settling: Future[None] | None = None
        """What becomes of the last call's steps, while another one may be made."""

    def take(self, taker: ThreadTaker, unfit: Callable[[], bool]) -> StepWork | LookAgain | None:
        """See `Rounds`."""
        return self._channel.take(taker, self._place, unfit)

    def answer(self, work: StepWork) -> bool:
        """See `Rounds`."""
        self._work, self._died_in, self._told = work, (), False
        outcomes = [StepOutcome(sequence, part) for sequence, part in work.steps]
        self._stepping = [sequence for sequence, _ in work.steps]
        self._tell_ended(work)
        if not outcomes:
            return False
        tally = self._tally
        began_s = self._clock.now()
        try:
            outcomes = self._brought(outcomes)
            called = self._step_all(outcomes)
        finally:
            tally.ended_s = ended_s = self._clock.now()
            tally.busy_s += ended_s - began_s
        tally.closed[work.reason] = tally.closed.get(work.reason, 0) + 1
        self._settled()
        if self._channel.full(self._place):
            # The next call is made meanwhile: it cannot be a fuller one for what comes of this.
            self._settling = self._settler.submit(self._settle, outcomes, ended_s)
        else:
            self._settle(outcomes, ended_s)
        return called

    def _tell_ended(self, work: StepWork) -> None:
        """Tell the model, of those that it has heard of, and the store."""
        if work.endings:
            self._backend.end_sequences(work.endings)
        self._told = True
        if self._keeper is not None and work.endings:
            self._settled()
            self._keeper.ended(work.endings)

    def _brought(self, outcomes: list[StepOutcome]) -> list[StepOutcome]:
        """States that are kept elsewhere are here now; without those whose sequences are no more."""
        keeper = self._keeper
        if keeper is None:
            return outcomes
        if keeper.lacks(outcomes):
            self._settled()
        try:
            going = keeper.bring(outcomes)
        except UnavailableError as error:
            for outcome in outcomes:
                if not outcome.sequence.loaded:
                    outcome.fails(error, reason(error), finished=True, withdrawn=True)
            return outcomes
        self._stepping = [o.sequence for o in going]
        return going

    # Steps

    def _step_all(self, outcomes: Sequence[StepOutcome]) -> bool:
        """Do the step of each that is still wanted; whether the model was called."""
        wanted = [outcome for outcome in outcomes if outcome.error is None and self._wanted(outcome)]
        if not wanted:
            return False
        search = Bisection(len(wanted))
        while (indices := search.next()) is not None:
            whole = len(indices) == len(wanted)
            chosen: list[int] = indices.tolist()
            self._try(search, wanted if whole else [wanted[i] for i in chosen], retry=not whole)
        for refused in search.failures:
            outcome = wanted[refused.row]
            if outcome.error is None:
                why = refused.why[:WHY_CHARS_MAX]
                outcome.fails(RefusedRowsError(self._name, f"row {outcome.row}: {why}"), why, finished=False)
        return True

    def _wanted(self, outcome: StepOutcome) -> bool:
        try:
            self._before_step(outcome.part.ticket)
        except HeadraceError as error:
            outcome.fails(error, reason(error), finished=True)
            return False
        return True

    def _try(self, search: Bisection, some: Sequence[StepOutcome], *, retry: bool) -> None:
        """One call of the model, for these; when it fails, whose fault it was is found out by parting them."""
        try:
            stepped = self._call(some, retry=retry)
        except InstanceLostError:
            raise
        except RowError as error:
            search.refused(error.rows)
        except CancelledRequestError as error:
            self._cancelled(search, some, error)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a model must not kill its thread
            _log.debug("steps failed", extra={"model": self._name, "rows": len(some)}, exc_info=True)
            search.failed(reason(error))
            self._learn_room(error, len(some))
            if len(some) == 1:
                finished = isinstance(error, _OF_ONE_REQUEST)
                some[0].fails(self._raised(error), reason(error), finished=finished)
        else:
            search.succeeded()
            _tell_each(some, stepped)

    def _cancelled(
        self, search: Bisection, some: Sequence[StepOutcome], error: CancelledRequestError
    ) -> None:
        """Nobody is left who wants any of these; or one of them was meant, and the others were not."""
        now = self._clock.now()
        if len(some) > 1 and any(o.part.wanted(now) for o in some):
            search.failed(reason(error))
            return
        for outcome in some:
            outcome.fails(error, reason(error), finished=True)
        search.succeeded()

    def _raised(self, error: BaseException) -> HeadraceError:
        if isinstance(error, HeadraceError):
            return error
        told = PredictError(self._name, reason(error))
        told.__cause__ = error
        return told

    def _learn_room(self, error: BaseException, rows: int) -> None:
        """When a call failed for want of memory, smaller ones are made from now on."""
        if rows > 1 and out_of_memory(error):
            self._channel.shrink(self._place, rows_max=rows // 2)
            _log.warning(
                "out of memory: smaller batches from now on",
                extra={"model": self._name, "rows": rows, "rows_max": rows // 2},
            )

    def _call(self, some: Sequence[StepOutcome], *, retry: bool) -> Stepped:
        tally = self._tally
        tally.calls += 1
        tally.retries += retry
        self._running.of([o.part for o in some])
        try:
            stepped = self._backend.step(
                [o.part.step_tensors() for o in some], [_order(o) for o in some], self._running
            )
        except InstanceLostError:
            self._died_in = some
            raise
        finally:
            with self._guard:
                self._running.of(())
        tally.called(len(some), Called(stepped.outputs, stepped.input_s, stepped.infer_s, stepped.output_s))
        return stepped

    # What came of them

    def _settled(self) -> None:
        """Wait until what came of the last call is settled: calls are settled in order."""
        settling, self._settling = self._settling, None
        if settling is not None:
            settling.result()

    def _settle(self, outcomes: Sequence[StepOutcome], now: float) -> None:
        wakes: list[Callable[[], None]] = []
        if self._keeper is not None:
            self._keeper.save(outcomes)
        for outcome in outcomes:
            if outcome.error is not None:
                # Its request fails with it, unless that takes answers with rows missing.
                goes_on = outcome.part.sink.failed(outcome.part, outcome.row, outcome.why)
                outcome.finished = outcome.finished or not goes_on
                continue
            if outcome.outputs is None:
                continue
            self._count(outcome.part, now)
            outcome.part.ending = outcome.is_last
            if not outcome.silent:
                self._give(outcome, outcome.outputs, wakes)
        self._channel.stepped(self._place, outcomes)
        answered: list[tuple[Ticket, Answer]] = []
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
        wake_all(wakes)

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

    def _hold(self, outcome: StepOutcome) -> None:
        """Its caller is behind: it goes on when there is room."""
        sequence, channel = outcome.sequence, self._channel
        if not outcome.part.sink.when_room(lambda: channel.room(sequence)):
            channel.room(sequence)

    # When the instance dies

    def lost(self, error: InstanceLostError | None) -> bool:
        """See `Rounds`: what can be done again is, the steps of the call that it died in each by itself."""
        self._settled()
        stepping = () if error is None else self._stepping
        if error is not None and not self._told:
            self._channel.untold(self._place, self._work.endings)
        died_in = self._died_in
        meant = bool(died_in) and all(o.part.ticket.cancelled for o in died_in)
        over = [o.part for o in died_in if o.part.suspect() >= DEATHS_MAX]
        answered: list[tuple[Ticket, Answer]] = []
        for part in over:
            assert error is not None
            if (answer := part.finish(error)) is not None:
                answered.append((part.ticket, answer))
        self._channel.lost(self._place, stepping, over)
        self._channel.settle([ticket for ticket, _ in answered])
        now = self._clock.now()
        for ticket, answer in answered:
            self._tally.ended(ticket, answer, now, now)
        deliver(answered)
        self._work, self._died_in, self._stepping = StepWork(), (), ()
        return meant

    def revived(self) -> None:
        """See `Rounds`."""
        self._channel.up(self._place)

    def given_up(self) -> None:
        """See `Rounds`."""
        self._channel.vacate(self._place)

    def close(self) -> None:
        """See `Rounds`."""
        self._settled()
        self._settler.shutdown()

    def gone(self) -> None:
        """Somebody has left: when nobody is left who waits for the call in progress, it is cancelled. Any thread."""
        with self._guard:
            if self._running.cancelled:
                self._backend.cancel()


def _keeper(channel: StepChannel, clock: Clock) -> Keeper | None:
    if channel.store is None or channel.dismissals is None:
        return None
    return Keeper(channel.store, channel.dismissals, channel, clock, idle_ms=channel.limits.idle_ms)


def _order(outcome: StepOutcome) -> StepOrder:
    sequence, part = outcome.sequence, outcome.part
    end = part.ends and part.row == part.rows - 1
    return StepOrder(
        sequence.number,
        sequence.id,
        sequence.steps,
        part.again,
        end,
        part.parameters,
        outcome.restore,
        outcome.save,
        part.number,
    )


def _tell_each(some: Sequence[StepOutcome], stepped: Stepped) -> None:
    outputs = stepped.outputs
    alone = len(some) == 1
    for i, (outcome, said) in enumerate(zip(some, stepped.said, strict=True)):
        outcome.outputs = outputs if alone else {name: data[i : i + 1] for name, data in outputs.items()}
        outcome.goes_on, outcome.silent, outcome.ends = said
        outcome.saved = stepped.saved[i]


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
