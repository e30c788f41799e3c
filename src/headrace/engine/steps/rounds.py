"""What one instance of a model with a `step` does over and over: one step of many sequences, and what came of each.

The model is called in the instance's own thread. While calls can be full ones, all else is done in another thread beside a call:
what came of the last one is settled, and the next one is made ready.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from headrace.batching.adaptive import LookAgain
from headrace.core.clock import Clock
from headrace.core.errors import InstanceLostError, UnavailableError
from headrace.engine.backend import Backend
from headrace.engine.channel import ThreadTaker
from headrace.engine.instance import BeforeCall
from headrace.engine.reason import reason
from headrace.engine.steps.calls import StepCall, StepCaller
from headrace.engine.steps.channel import StepChannel
from headrace.engine.steps.keeper import Keeper
from headrace.engine.steps.settlement import Settlement
from headrace.engine.steps.work import Live, StepOutcome, StepWork
from headrace.engine.tally import Tally
from headrace.engine.ticket import DEATHS_MAX, Answer, Ticket, deliver


@dataclass(frozen=True, slots=True)
class Round:
    """Steps that were taken, and what is to become of each."""

    work: StepWork
    outcomes: list[StepOutcome]
    call: StepCall | None = None
    """The call that does them, where it is ready."""

    @property
    def sequences(self) -> list[Live]:
        """Whose steps they are."""
        return [outcome.sequence for outcome in self.outcomes]


_NOTHING = Round(StepWork(), [])


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
        self._caller = StepCaller(channel, place, backend, tally, clock, before_step=before_step, name=name)
        self._keeper = _keeper(channel, clock)
        self._settlement = Settlement(channel, place, tally, clock, self._keeper, name=name)
        self._round = _NOTHING
        self._told = False
        """Whether those that were over with the work are told of."""
        self._beside = ThreadPoolExecutor(1, f"headrace-{name}-{place}-beside")
        self._settling: Future[None] | None = None
        """What becomes of the last call's steps, while another one may be made."""
        self._next: Future[Round | None] | None = None
        """The round that follows, made ready while the model is called for this one."""

    def take(self, taker: ThreadTaker, unfit: Callable[[], bool]) -> Round | LookAgain | None:
        """See `Rounds`."""
        if self._next is not None:
            if unfit():
                return LookAgain()
            if (ready := self._ready()) is not None:
                return ready
        work = self._channel.take(taker, self._place, unfit)
        if work is None and self._settling is not None:
            # Of what ends with the last call the model is to be told as well.
            self._settled()
            work = self._channel.take(taker, self._place, unfit)
        return _round(work) if isinstance(work, StepWork) else work

    def _ready(self) -> Round | None:
        """The round that was made ready; None where there is none, or it was not begun yet: then it will not be."""
        coming, self._next = self._next, None
        return None if coming is None or coming.cancel() else coming.result()

    def _make_ready(self) -> Round | None:
        work = self._channel.take_full(self._place)
        if work is None:
            return None
        made = _round(work)
        try:
            call = StepCall.of(made.outcomes)
        except Exception:  # noqa: BLE001 - it raises again where the call is made
            call = None
        return Round(work, made.outcomes, call)

    def answer(self, work: Round) -> bool:
        """See `Rounds`."""
        self._round, self._told = work, False
        self._caller.died_in = ()
        self._tell_ended(work.work)
        if not work.outcomes:
            return False
        tally = self._tally
        began_s = self._clock.now()
        try:
            outcomes = self._brought(work)
            if self._keeper is None and self._channel.full(self._place):
                # With checkpoints the states are to be brought before, which waits for what came of the steps before.
                self._next = self._beside.submit(self._make_ready)
            came = self._caller.call(outcomes, work.call)
        finally:
            tally.ended_s = ended_s = self._clock.now()
            tally.busy_s += ended_s - began_s
        tally.closed[work.work.reason] = tally.closed.get(work.work.reason, 0) + 1
        self._settled()
        if self._next is not None or self._channel.full(self._place):
            # The next call is made meanwhile: it cannot be a fuller one for what comes of this.
            self._settling = self._beside.submit(self._settlement.settle, outcomes, came or (), ended_s)
        else:
            self._settlement.settle(outcomes, came or (), ended_s)
        self._round = _NOTHING
        return came is not None

    def _tell_ended(self, work: StepWork) -> None:
        """Tell the model, of those that it has heard of, and the store."""
        if work.endings:
            self._backend.end_sequences(work.endings)
        self._told = True
        if self._keeper is not None and work.endings:
            self._settled()
            self._keeper.ended(work.endings)

    def _brought(self, work: Round) -> list[StepOutcome]:
        """States that are kept elsewhere are here now; without those whose sequences are no more."""
        keeper, outcomes = self._keeper, work.outcomes
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
        self._round = replace(work, outcomes=going)
        return going

    def _settled(self) -> None:
        """Wait until what came of the last call is settled: calls are settled in order."""
        settling = self._settling
        if settling is not None:
            # What could not even fail raises again, for as long as it is asked.
            settling.result()
            self._settling = None

    # When code of ours raises

    def failed(self, error: BaseException) -> None:
        """See `Rounds`: what was taken ends with its sequences, since nobody knows what became of their states.

        What was to be told to the model of other sequences is not told again: that may be what raised.
        """
        self._settled()
        taken = self._round.outcomes
        self._round, self._caller.died_in = _NOTHING, ()
        if taken:
            self._settlement.spoil([o.part for o in taken], [o.sequence for o in taken], (), [], error)

    # When the instance dies

    def lost(self, error: InstanceLostError | None) -> bool:
        """See `Rounds`: what can be done again is, the steps of the call that it died in each by itself."""
        self._settled()
        untold = () if error is None or self._told else self._round.work.endings
        stepping = [] if error is None else self._round.sequences
        died_in = () if error is None else self._caller.died_in
        if (ready := self._ready()) is not None:
            untold += ready.work.endings
            stepping += ready.sequences
        self._channel.untold(self._place, untold)
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
        self._round = _NOTHING
        return meant

    def revived(self) -> None:
        """See `Rounds`."""
        self._channel.up(self._place)

    def given_up(self) -> None:
        """See `Rounds`."""
        self._channel.vacate(self._place)

    def close(self) -> None:
        """See `Rounds`."""
        try:
            self._settled()
        finally:
            self._beside.shutdown()

    def gone(self) -> None:
        """Somebody has left: when nobody is left who waits for the call in progress, it is cancelled. Any thread."""
        self._caller.gone()


def _round(work: StepWork) -> Round:
    return Round(work, [StepOutcome(sequence, part) for sequence, part in work.steps])


def _keeper(channel: StepChannel, clock: Clock) -> Keeper | None:
    if channel.store is None or channel.dismissals is None:
        return None
    return Keeper(channel.store, channel.dismissals, channel, clock, idle_ms=channel.limits.idle_ms)
