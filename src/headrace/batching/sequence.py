"""Which sequences live, what waits for each, and when they end: for requests whose answer depends on the one before.

Requests of one sequence are answered in order, one step at a time; a sequence stays at one place (the instance that holds
its state) until it ends. Passive and pure: `now` is handed in, and never goes back; what ended, and what it took with it, is
left in `ended` and `over` for the caller to collect.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from headrace.batching.live_sequence import Asked, LiveSequence, Over, was_begun
from headrace.batching.places import Places
from headrace.batching.sequence_ends import RecentEnds
from headrace.batching.sequence_life import SequenceEvent, SequenceStage
from headrace.batching.sequence_times import SequenceTimes
from headrace.core.errors import PredictorError, SequenceFullError, TooManySequencesError
from headrace.core.sequence import SequenceAsk, SequenceEnd, SequenceLimits

__all__ = ["RETRY_S", "Asked", "LiveSequence", "Over", "SequenceTable"]

RETRY_S: Final = 1.0
"""When to ask again for a place, or for room: sequences end, and steps are done, within about so long."""

T = TypeVar("T", bound=Asked)


class SequenceTable(Generic[T]):
    """The sequences of one model, over so many places.

    Whoever drives it is called back: by `queue` when a sequence's next step can be done at its place, and by `unqueue` when it
    cannot any more, but for being `taken`. Requests that ended otherwise than by a step, and were not withdrawn, are in `over`,
    and sequences that ended, but for those of which nobody but this table knows, in `ended`, until they are collected.
    With `checkpoints` a sequence outlives the instance that holds its state, but not one that is a request by itself.
    """

    def __init__(
        self,
        limits: SequenceLimits,
        places: int,
        *,
        queue: Callable[[LiveSequence[T]], None],
        unqueue: Callable[[LiveSequence[T]], None],
        checkpoints: bool = False,
    ) -> None:
        self.limits = limits
        self._queue = queue
        self._unqueue = unqueue
        self._checkpoints = checkpoints
        self._by_id: dict[str, LiveSequence[T]] = {}
        self._live: dict[int, LiveSequence[T]] = {}
        self._times = SequenceTimes[T](limits)
        self._places = Places(places)
        self._recent = RecentEnds()
        self._numbers = 0
        self.requests = 0
        """Requests that have not come to their end."""
        self.rows = 0
        """Rows of these."""
        self.over: list[Over[T]] = []
        self.ended: list[LiveSequence[T]] = []
        self.ends: dict[SequenceEnd, int] = dict.fromkeys(SequenceEnd, 0)

    def __len__(self) -> int:
        """Sequences that live."""
        return len(self._live)

    def __iter__(self) -> Iterator[LiveSequence[T]]:
        """Those that live, the oldest first."""
        return iter(self._live.values())

    def find(self, id: str) -> LiveSequence[T] | None:
        """The living sequence of an id."""
        return self._by_id.get(id)

    # Requests

    def offer(self, item: T, ask: SequenceAsk, now: float) -> LiveSequence[T]:
        """Take a request for its sequence, which begins where `ask` says so.

        One of the same id that lives then ends at once, or by the last request that was made of it, if that ends it.

        Raises SequenceGoneError (and SequenceLostError, and after `stop` StoppedError) where there is no sequence of this id,
        SequenceFullError and TooManySequencesError; then nothing has changed, but for what was due to end by now.
        """
        self.expire(now)
        sequence = self._by_id.get(ask.id) if ask.id and not ask.start else None
        if sequence is None:
            sequence = self._begun(ask, now)
        elif len(sequence.waiting) >= self.limits.requests_max:
            raise SequenceFullError(
                ask.id,
                f"{len(sequence.waiting)} of its requests wait already, and no more may (requests_max): ask again later",
                retry_after_s=RETRY_S,
            )
        self.requests += 1
        self.rows += item.rows
        sequence.waiting.append(item)
        if sequence.current is not None:
            sequence.auto = sequence.auto and ask.auto
            sequence.happened(SequenceEvent.REQUEST)
            return sequence
        sequence.auto = ask.auto
        if self._next(sequence, now):
            self._times.asked(sequence)
            sequence.happened(SequenceEvent.REQUEST)
            self._ready(sequence, now)
        elif sequence.why is None:
            self._times.rests(sequence, now)
        return sequence

    def withdraw(self, sequence: LiveSequence[T], item: T, now: float) -> None:
        """Nobody wants this request any more: it is over, after the step of it that is being done, if there is one.

        What of it was done stays done; it ends its sequence only by its last step. A sequence by itself ends.
        """
        if sequence.why is not None:
            return
        if sequence.anonymous:
            self._end(sequence, SequenceEnd.CANCELLED, now)
            return
        if item is not sequence.current:
            if item in sequence.waiting:
                sequence.waiting.remove(item)
                self._drop(sequence, item)
            return
        if sequence.stage is SequenceStage.STEPPING:
            sequence.left = True
            return
        if sequence.stage is SequenceStage.WAITING:
            self._unqueue(sequence)
        self._drop(sequence, item)
        if self._next(sequence, now):
            if sequence.stage is SequenceStage.HELD:
                sequence.happened(SequenceEvent.ROOM)
            self._ready(sequence, now)
        elif sequence.why is None and not self._ended_since_replaced(sequence, now):
            sequence.happened(SequenceEvent.WITHDRAWN)
            self._times.rests(sequence, now)

    # Steps

    def taken(self, sequence: LiveSequence[T]) -> T:
        """A call of the model has its next step; it is not queued any more. The request whose step it is."""
        sequence.happened(SequenceEvent.TAKEN)
        if sequence.loaded:
            sequence.begun = True
        assert sequence.current is not None
        return sequence.current

    def stepped(
        self,
        sequence: LiveSequence[T],
        now: float,
        *,
        counts: bool = True,
        goes_on: bool = False,
        ends: bool = False,
        finished: bool = False,
        held: bool = False,
        undone: bool = False,
        withdrawn: bool = False,
    ) -> bool:
        """The step that was taken is over; whether its request came to its end by it.

        `counts`: it changed the state. `goes_on`: the row gets another one. `ends`: the model says that the sequence is over.
        `finished`: the request is over, whatever rows are left. `held`: it must not go on before `room`.
        `undone`: it was done on a state that is not the last one, and is to be done again on that.
        `withdrawn`: the request is over, and may be asked again: it ends no sequence, whatever it said.
        """
        sequence.steps += counts
        if sequence.stage is SequenceStage.ENDING:
            self._over(sequence)
            return False
        item = sequence.current
        assert item is not None
        if undone and not sequence.left:
            sequence.happened(SequenceEvent.MORE)
            self._ready(sequence, now)
            return False
        item.again = goes_on and not ends
        if not item.again:
            item.row += 1
        last = (finished or item.row >= item.rows) and not withdrawn
        if not (last or ends or sequence.left or withdrawn):
            if held:
                sequence.happened(SequenceEvent.FULL)
            else:
                self._take_turns(sequence)
                sequence.happened(SequenceEvent.MORE)
                self._ready(sequence, now)
            return False
        self._drop(sequence, item)
        if ends or sequence.anonymous or (last and item.ends):
            self._end(sequence, SequenceEnd.ENDED, now)
        elif self._next(sequence, now):
            sequence.happened(SequenceEvent.MORE)
            self._ready(sequence, now)
            return True
        if sequence.why is not None or self._ended_since_replaced(sequence, now):
            self._over(sequence)
        else:
            sequence.happened(SequenceEvent.STEPPED)
            self._times.rests(sequence, now)
        return True

    def room(self, sequence: LiveSequence[T], now: float) -> None:
        """What it gave was taken: it can go on. Nothing, where it does not wait for that."""
        if sequence.stage is SequenceStage.HELD:
            self._take_turns(sequence)
            sequence.happened(SequenceEvent.ROOM)
            self._ready(sequence, now)

    # Ends

    def cancel(self, id: str, now: float) -> bool:
        """End the sequence of this id, with all that waits for it; whether there was one."""
        self.expire(now)
        sequence = self._by_id.get(id)
        if sequence is not None:
            self._end(sequence, SequenceEnd.CANCELLED, now)
        return sequence is not None

    def expire(self, now: float) -> None:
        """End those that have been idle, or have lived, for too long."""
        while (over := self._times.over(now)) is not None:
            sequence, why = over
            self._end(sequence, why, now)

    def next_s(self) -> float | None:
        """When `expire` has something to do, as things stand; None: never."""
        return self._times.next_s()

    def stop(self, now: float) -> None:
        """End all."""
        for sequence in list(self._live.values()):
            self._end(sequence, SequenceEnd.STOPPED, now)

    # Places

    def found(self, sequence: LiveSequence[T], steps: int) -> None:
        """Its state is at its place now, after so many steps."""
        sequence.begun = sequence.loaded = True
        sequence.orphaned = False
        sequence.steps, sequence.settled = steps, steps > 0

    def missing(self, sequence: LiveSequence[T], now: float) -> bool:
        """There is no state of it that could be brought to its place, for the step that was taken; whether it begins anew instead.

        If not, it is over, with its requests: lost, if its state died here; ended, if another process went on with it. One that
        never had a state here never was.
        """
        if sequence.stage is SequenceStage.STEPPING:
            if sequence.auto and not sequence.goes_on:
                self.found(sequence, 0)
                return True
            if sequence.begun:
                why = SequenceEnd.INSTANCE_LOST if sequence.orphaned else SequenceEnd.ENDED
                self._end(sequence, why, now)
            else:
                self._remove(sequence, lambda: self._recent.error(sequence.id, now))
        sequence.happened(SequenceEvent.STEPPED)
        if sequence.begun:
            self.ended.append(sequence)
        return False

    def unload(self, sequence: LiveSequence[T]) -> None:
        """What its place has of it counts no more; its state is to be brought there before its next step."""
        sequence.loaded = False

    def lost(self, place: int, stepping: Iterable[LiveSequence[T]], now: float) -> None:
        """The instance there died, in the middle of these steps, with all states that it had.

        What has a checkpoint, or has shown nothing to anybody yet, does its steps again; any other sequence ends.
        """
        for sequence in stepping:
            sequence.happened(SequenceEvent.LOST)
            if sequence.stage is SequenceStage.ENDED:
                self._tell(sequence)
                continue
            assert sequence.current is not None
            self._ready(sequence, now)
            if sequence.left:
                self.withdraw(sequence, sequence.current, now)
        for sequence in self._of(place):
            if self._unloaded(sequence):
                continue
            if sequence.rewind():
                # What it gave, and nobody has taken, is forgotten: there is room.
                self.room(sequence, now)
            else:
                self._end(sequence, SequenceEnd.INSTANCE_LOST, now)

    def up(self, place: int, *, up: bool) -> None:
        """Whether new sequences should be put there, as long as there is another place."""
        self._places.up(place, up=up)

    def vacate(self, place: int, now: float) -> None:
        """Nothing more will be done there, until it is `up` again.

        Those whose state is not there, or has a checkpoint, go where a new one would. Any other ends, with the step that is
        being done, if there is one.
        """
        self._places.vacate(place)
        for sequence in self._of(place):
            if sequence.stage is not SequenceStage.STEPPING and self._unloaded(sequence):
                self._move(sequence)
            else:
                self._end(sequence, SequenceEnd.INSTANCE_LOST, now)

    def _of(self, place: int) -> list[LiveSequence[T]]:
        return [s for s in self._live.values() if s.place == place]

    def _unloaded(self, sequence: LiveSequence[T]) -> bool:
        """Whether it goes on without what its place has of it."""
        if not sequence.steps:
            return True
        if not self._checkpoints or sequence.anonymous:
            return False
        sequence.orphaned = sequence.orphaned or sequence.loaded
        sequence.loaded = False
        return True

    def _move(self, sequence: LiveSequence[T]) -> None:
        waits = sequence.stage is SequenceStage.WAITING
        if waits:
            self._unqueue(sequence)
        self._places.leave(sequence.place)
        sequence.place = self._places.enter()
        if waits:
            self._queue(sequence)

    def spoiled(self, sequence: LiveSequence[T], now: float, *, taken: bool) -> bool:
        """Nobody knows what became of its state: it is over, with its requests; whether a step that was `taken` is over by this."""
        if sequence.number in self._live:
            self._end(sequence, SequenceEnd.INSTANCE_LOST, now)
        if not taken or sequence.stage is not SequenceStage.ENDING:
            return False
        self._over(sequence)
        return True

    # Within

    def _begun(self, ask: SequenceAsk, now: float) -> LiveSequence[T]:
        """A new sequence, or one whose state is elsewhere, in its place among the living."""
        resumes = bool(ask.id) and not ask.start
        if ask.start and (old := self._by_id.get(ask.id)) is not None and not self._ends_by_itself(old):
            self._end(old, SequenceEnd.RESTARTED, now)
        if resumes and not ask.auto and not self._checkpoints:
            raise self._recent.error(ask.id, now)
        self._make_room(ask.id, now)
        self._numbers += 1
        # Not LiveSequence[T](...): that costs as much as all else here.
        sequence: LiveSequence[T] = LiveSequence(ask.id, self._numbers, self._places.enter(), now)
        sequence.loaded = not (resumes and self._checkpoints)
        self._live[sequence.number] = sequence
        if ask.id:
            self._by_id[ask.id] = sequence
        self._times.begins(sequence)
        return sequence

    def _ends_by_itself(self, sequence: LiveSequence[T]) -> bool:
        """Whether it was asked for its last step already: then another one can replace it by its id, and it is done as was asked.

        With checkpoints it is not: what is kept of it goes by its id alone.
        """
        last = sequence.waiting[-1] if sequence.waiting else sequence.current
        return last is not None and last.ends and not self._checkpoints

    def _replaced(self, sequence: LiveSequence[T]) -> bool:
        return not sequence.anonymous and self._by_id.get(sequence.id) is not sequence

    def _ended_since_replaced(self, sequence: LiveSequence[T], now: float) -> bool:
        """Whether it ended here and now: nothing is asked of it any more, not even its end, and nobody can ask."""
        if not self._replaced(sequence):
            return False
        self._end(sequence, SequenceEnd.RESTARTED, now)
        return True

    def _make_room(self, id: str, now: float) -> None:
        if len(self._live) < self.limits.live_max:
            return
        idlest = self._times.evictable(now)
        if idlest is None:
            raise TooManySequencesError(
                id,
                f"{len(self._live)} live already, and no more may (live_max): ask again later",
                retry_after_s=RETRY_S,
            )
        self._end(idlest, SequenceEnd.EVICTED, now)

    def _ready(self, sequence: LiveSequence[T], now: float) -> None:
        sequence.asked_s = now
        self._queue(sequence)

    def _next(self, sequence: LiveSequence[T], now: float) -> bool:
        """Whether a request follows that asks for a step: it is the current one now.

        Those before it that ask for none are over; with one of them the sequence may end.
        """
        waiting = sequence.waiting
        while waiting:
            item = waiting.popleft()
            if item.rows:
                sequence.current = item
                return True
            self._count_out(item)
            self.over.append(Over(item, sequence, None))
            if item.ends or sequence.anonymous:
                self._end(sequence, SequenceEnd.ENDED, now)
                return False
        return False

    def _take_turns(self, sequence: LiveSequence[T]) -> None:
        if self.limits.interleave and sequence.current is not None and sequence.current.again:
            sequence.take_turns()

    def _drop(self, sequence: LiveSequence[T], item: T) -> None:
        """This request is over, and is none of those that wait any more."""
        self._count_out(item)
        if sequence.steps and was_begun(item):
            sequence.settled = True
        if item is sequence.current:
            sequence.current, sequence.left = None, False

    def _count_out(self, item: T) -> None:
        self.requests -= 1
        self.rows -= item.rows

    def _end(self, sequence: LiveSequence[T], why: SequenceEnd, now: float) -> None:
        """It is over, with all that waits for it; a step that is being done is its last."""
        sequence.why = why
        self.ends[why] += 1
        if not sequence.anonymous and not self._replaced(sequence):
            self._recent.add(sequence.id, why, now)
        self._remove(sequence, lambda: self._recent.error_of(sequence.id, why))
        if sequence.stage is SequenceStage.ENDED:
            self._tell(sequence)

    def _remove(self, sequence: LiveSequence[T], error: Callable[[], PredictorError]) -> None:
        """Take it out of all that is known of the living."""
        current = sequence.current
        if sequence.stage is SequenceStage.WAITING and current is not None:
            self._unqueue(sequence)
        sequence.happened(SequenceEvent.END)
        del self._live[sequence.number]
        self._times.ended(sequence)
        self._places.leave(sequence.place)
        if self._by_id.get(sequence.id) is sequence:
            del self._by_id[sequence.id]
        if current is not None:
            sequence.waiting.appendleft(current)
            sequence.current = None
        for item in sequence.waiting:
            self._count_out(item)
            self.over.append(Over(item, sequence, error()))
        sequence.waiting.clear()

    def _over(self, sequence: LiveSequence[T]) -> None:
        """Its last step is done."""
        sequence.happened(SequenceEvent.STEPPED)
        self._tell(sequence)

    def _tell(self, sequence: LiveSequence[T]) -> None:
        if sequence.begun or not sequence.loaded:
            self.ended.append(sequence)
