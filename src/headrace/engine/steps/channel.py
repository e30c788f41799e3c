"""Hand-over of requests to the instances of a model with a `step`: each waits for its sequence, and is answered where that lives.

Arrives: tickets, from any thread. Leaves: one step each of many sequences, to the instance that holds their states.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import count, islice
from random import SystemRandom
from typing import Any
from uuid import uuid4

from headrace.batching.adaptive import AdaptiveBatch, LookAgain
from headrace.batching.sequence import SequenceTable
from headrace.checkpoints.store import CheckpointStore
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, SequenceError, SequenceGoneError, StoppedError
from headrace.core.sequence import SequenceAsk, SequenceEnd, SequenceInfo, SequenceLimits
from headrace.core.tensor import Array, InferResponse
from headrace.engine.channel import ThreadTaker
from headrace.engine.inputs import ModelInputs
from headrace.engine.intake import Intake
from headrace.engine.stepper import Ending
from headrace.engine.steps.asks import asks_of, without_controls
from headrace.engine.steps.dismissals import Dismissal, Dismissals
from headrace.engine.steps.gathered import Gathered, Respond
from headrace.engine.steps.part import Part, PartAsk, Sink
from headrace.engine.steps.place import StepPlace
from headrace.engine.steps.work import Live, StepOutcome, StepWork, ending_of, info_of
from headrace.engine.ticket import Answer, Ticket, merge_key

Told = Callable[[list[tuple[Ticket, Answer]]], None]
"""Settles, counts and delivers answers that come otherwise than by a step. Any thread, without a lock."""


class StepChannel(Intake):
    """Takes tickets, gives steps; see `Intake` for how it is bounded.

    A ticket is for one sequence, or each of its rows for one of many (`headrace.engine.steps.asks`). `offer` and `put` raise what keeps
    a sequence from taking it (SequenceError), but of a ticket that is not strict such rows fail alone.
    """

    def __init__(
        self,
        limits: SequenceLimits,
        clock: Clock,
        *,
        model: str,
        inputs: ModelInputs,
        respond: Respond,
        places: int,
        merge: bool,
        in_flight_max: int,
        queue_rows_max: int,
        tell: Told,
        store: CheckpointStore | None = None,
    ) -> None:
        super().__init__(clock, in_flight_max=in_flight_max)
        self.respond = respond
        self.limits = limits
        self.store = store
        """Where checkpoints are kept; closed by whoever opened it, when no instance is left."""
        self._model = model
        self._inputs = inputs
        self._queue_rows_max = queue_rows_max
        self._tell = tell
        self._table = SequenceTable[Part](
            limits, places, queue=self._queue, unqueue=self._unqueue, checkpoints=store is not None
        )
        self._merge = merge
        """Whether steps of several requests share a call; if not, those of one request do, and wait for nobody."""
        self._places = [StepPlace() for _ in range(places)]
        self._parts: dict[Ticket, Sequence[Part]] = {}
        self._refused: list[tuple[Part, HeadraceError]] = []
        """Parts of requests that are not strict, which no sequence took."""
        self._refusals: Counter[str] = Counter()
        self._cancels: list[tuple[Ticket, Answer]] = []
        """Requests that asked for nothing but an end."""
        # No process begins where another one did: what a state says of a request outlives it.
        self.dismissals = (
            None
            if store is None
            else Dismissals(store, tell, self._lasts, model=model, idle_ms=limits.idle_ms)
        )
        """Ends that are told once nothing is kept; None: nothing is ever kept."""
        self._numbers = count(SystemRandom().randrange(1 << 48))
        self._stopped = False
        self._delay_s = 0.0

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """See `Intake`."""
        with self._lock:
            self._delay_s = delay_s if self._merge else 0.0
            for place in self._places:
                place.resize(rows_max=rows_max, delay_s=self._delay_s)

    def shrink(self, at: int, *, rows_max: int) -> None:
        """Calls of this instance hold no more from now on."""
        with self._lock:
            self._places[at].resize(rows_max=rows_max, delay_s=self._delay_s)

    # Callers

    def put(self, ticket: Ticket, future: Future[Any]) -> None:
        """See `Intake`."""
        try:
            super().put(ticket, future)
        finally:
            self.tell_over()

    def offer(self, ticket: Ticket, sink: Callable[[int], Sink] | None = None) -> bool:
        """See `Intake`: says no when `queue_rows_max` rows are asked for and not done.

        What its steps give goes to the `sink` that is made for so many parts, if one is named.
        """
        try:
            with self._lock:
                if self._closed:
                    raise StoppedError("it is stopping")
                table = self._table
                if table.requests and table.rows + ticket.rows > self._queue_rows_max:
                    return False
                if self.dismissals is not None and self.dismissals.waiting >= self._queue_rows_max:
                    return False
                self._add(ticket, sink)
                return True
        finally:
            self.tell_over()

    def withdraw(self, ticket: Ticket) -> bool:
        """See `Intake`; what of it was done stays done."""
        try:
            return super().withdraw(ticket)
        finally:
            self.tell_over()

    def abandon(self, future: Future[Any]) -> Ticket | None:
        """See `Intake`."""
        try:
            return super().abandon(future)
        finally:
            self.tell_over()

    def _done(self, future: Future[Any]) -> None:
        try:
            super()._done(future)
        finally:
            # Whoever waited behind one that was cancelled may be over now.
            self.tell_over()

    def settle(self, tickets: Iterable[Ticket]) -> None:
        """See `Intake`."""
        tickets = list(tickets)
        super().settle(tickets)
        with self._lock:
            for ticket in tickets:
                self._parts.pop(ticket, None)

    def drop(self) -> list[Ticket]:
        """See `Intake`; what streams wait for is told to them here."""
        tickets = super().drop()
        self.tell_over()
        return tickets

    def cancel(self, id: str) -> bool:
        """End the sequence of this id, with all that waits for it; whether it lived.

        With checkpoints it may live by that alone: then it is said to have, and what is kept of it is deleted soon.
        """
        with self._lock:
            lived = self._table.cancel(id, self._clock.now())
            if self.dismissals is not None:
                lived = self.dismissals.add(Dismissal(id, lived)) or lived
            self._sort_ended()
        self.tell_over()
        return lived

    def room(self, sequence: Live) -> None:
        """What its steps gave was taken: it can go on."""
        with self._lock:
            self._table.room(sequence, self._clock.now())

    # How things stand

    def sequences(self, most: int | None = None) -> tuple[SequenceInfo, ...]:
        """Those that live and have an id, the oldest first, at most so many."""
        with self._lock:
            now = self._clock.now()
            self._table.expire(now)
            self._sort_ended()
            found = tuple(info_of(s, now) for s in islice((s for s in self._table if s.id), most))
        self.tell_over()
        return found

    @property
    def live(self) -> int:
        """How many sequences live, those without an id among them."""
        return len(self._table)

    def ends(self) -> dict[SequenceEnd, int]:
        """How many ended, by the reason."""
        with self._lock:
            return dict(self._table.ends)

    def refused(self) -> dict[str, int]:
        """How many requests, or rows' parts of them, no sequence took, by the kind of the error."""
        with self._lock:
            return dict(self._refusals)

    def waiting(self) -> tuple[int, int, float, int]:
        """See `Intake`."""
        with self._lock:
            running = sum(place.running for place in self._places)
            oldest = [s for place in self._places if (s := place.oldest_s) is not None]
            age_s = max(0.0, self._clock.now() - min(oldest)) if oldest else 0.0
            table = self._table
            return max(0, table.requests - running), max(0, table.rows - running), age_s, running

    # Instances

    def take(self, taker: ThreadTaker, at: int, unfit: Callable[[], bool]) -> StepWork | LookAgain | None:
        """The next steps of the sequences at a place, however long it takes; None when closed, and all have ended and were told.

        `unfit` says that the taker cannot take any: then LookAgain.
        """
        while not unfit():
            # What ended with the last steps is told before the next are taken: nobody may want those then.
            self.tell_over()
            found = self._poll(taker, at)
            self.tell_over()
            if not isinstance(found, LookAgain):
                return found
            taker.wait(None if found.at_s is None else max(0.0, found.at_s - self._clock.now()))
        with self._lock:
            self._places[at].awake()
        return LookAgain()

    def _poll(self, taker: ThreadTaker, at: int) -> StepWork | LookAgain | None:
        with self._lock:
            now, place, table = self._clock.now(), self._places[at], self._table
            table.expire(now)
            if self._closed and not table.requests and not self._stopped:
                self._stopped = True
                table.stop(now)
            self._sort_ended()
            found = place.next(now, flush=self._closed)
            if isinstance(found, AdaptiveBatch) or place.endings:
                place.awake()
                return self._taken(place, found if isinstance(found, AdaptiveBatch) else None)
            if self._stopped:
                return None
            place.sleeps(taker, found)
            due_s = table.next_s()
            due = [s for s in (found.at_s, due_s) if s is not None]
            return LookAgain(min(due, default=None))

    def take_full(self, at: int) -> StepWork | None:
        """The next steps at a place, where they fill a call already, and it is not closed; without waiting."""
        with self._lock:
            now, place = self._clock.now(), self._places[at]
            self._table.expire(now)
            self._sort_ended()
            found = None if self._closed else place.next_full(now)
            work = None if found is None else self._taken(place, found)
        self.tell_over()
        return work

    def _taken(self, place: StepPlace, batch: AdaptiveBatch[Live] | None) -> StepWork:
        endings = place.taken(batch)
        if batch is None:
            return StepWork((), endings)
        return StepWork(tuple([(s, self._begun(s)) for s in batch.items]), endings, batch.reason)

    def _begun(self, sequence: Live) -> Part:
        part = self._table.taken(sequence)
        if part.begun_s is None:
            part.begun_s = self._clock.now()
            # Under the lock, since parts of one ticket may begin in several threads.
            if not part.ticket.reply.begin():
                part.ticket.cancelled = True
        return part

    def full(self, at: int) -> bool:
        """Whether the next call can be a full one already."""
        return self._places[at].full

    def stepped(self, at: int, outcomes: Sequence[StepOutcome]) -> None:
        """The steps that were taken are over; tells which parts came to their end by them. `found` and `missing` were told before."""
        with self._lock:
            now, table, place = self._clock.now(), self._table, self._places[at]
            for o in outcomes:
                o.done = table.stepped(
                    o.sequence,
                    now,
                    counts=o.counts,
                    goes_on=o.goes_on,
                    ends=o.ends,
                    finished=o.finished,
                    held=o.held,
                    undone=o.undone,
                    withdrawn=o.withdrawn,
                )
                place.running -= 1
            place.call_ended(now)
            self._sort_ended()

    def found(self, sequence: Live, steps: int) -> None:
        """The state of a sequence whose step was taken is there now."""
        with self._lock:
            self._table.found(sequence, steps)

    def missing(self, sequence: Live) -> bool:
        """There is no state of it, for the step that was taken; whether it begins anew. If not, its requests are over."""
        with self._lock:
            begins = self._table.missing(sequence, self._clock.now())
            if not begins:
                self._places[sequence.place].running -= 1
                self._sort_ended()
        self.tell_over()
        return begins

    def unload(self, sequence: Live) -> None:
        """Its state is to be brought anew before its next step."""
        with self._lock:
            self._table.unload(sequence)

    def lost(self, at: int, stepping: Sequence[Live], over: Sequence[Part]) -> None:
        """The instance there died, in the middle of these steps; parts that are `over` with it are not begun again."""
        with self._lock:
            place = self._places[at]
            place.running = 0
            # Nobody is left who could be told of these before it is there again.
            self._table.up(at, up=False)
            now = self._clock.now()
            self._table.lost(at, stepping, now)
            for part in over:
                if part.sequence is not None:
                    self._table.withdraw(part.sequence, part, now)
            self._sort_ended()
        self.tell_over()

    def untold(self, at: int, endings: Sequence[Ending]) -> None:
        """These were to be told there, and were not: the next instance is."""
        with self._lock:
            self._places[at].endings[:0] = endings

    def spoiled(self, at: int, taken: Sequence[Live], others: Sequence[Live]) -> None:
        """Nobody knows what became of these states: their sequences end, and with them the steps that were taken, and not told of."""
        with self._lock:
            now, place, table = self._clock.now(), self._places[at], self._table
            for sequence in others:
                table.spoiled(sequence, now, taken=False)
            for sequence in taken:
                place.running -= table.spoiled(sequence, now, taken=True)
            self._sort_ended()
        self.tell_over()

    def up(self, at: int) -> None:
        """The instance there is back."""
        with self._lock:
            self._table.up(at, up=True)

    def vacate(self, at: int) -> None:
        """No instance will be there any more."""
        with self._lock:
            self._places[at].running = 0
            self._table.vacate(at, self._clock.now())
            self._sort_ended()
            self._places[at].endings.clear()
        self.tell_over()

    def tell_over(self) -> None:
        """Requests that are over otherwise than by a step have their answers: those that waited behind one, or for one that ended.

        Any thread, without the lock, wherever something may have ended.
        """
        if not self._table.over and not self._refused and not self._cancels:
            return
        with self._lock:
            parts = [(over.item, over.error) for over in self._table.over] + self._refused
            answers, self._cancels = self._cancels, []
            self._table.over.clear()
            self._refused.clear()
        for part, error in parts:
            answer = part.finish(error)
            if answer is not None:
                answers.append((part.ticket, answer))
        if answers:
            self._tell(answers)

    # Under the lock

    def _add(self, ticket: Ticket, sink: Callable[[int], Sink] | None = None) -> None:
        asks, split = asks_of(ticket.request, self._inputs)
        if asks[0].sequence.cancel:
            self._cancel_by(ticket, asks[0].sequence.id)
            return
        tensors = without_controls(ticket.request, self._inputs) if split else ticket.request.inputs
        if not self._merge:
            key = ticket
        else:
            key = ticket.key if ticket.key is ticket or not split else merge_key(tensors)
        into = self._gathered(ticket, len(asks)) if sink is None else sink(len(asks))
        by_name = {tensor.name: tensor.data for tensor in tensors}
        parts = [self._part(ticket, by_name, into, ask, split=split) for ask in asks]
        for part in parts:
            part.key = key
        self._parts[ticket] = parts
        try:
            for part, ask in zip(parts, asks, strict=True):
                self._offer_part(part, ask.sequence)
        except HeadraceError:
            for part in parts:
                part.over = True
            self._remove(ticket)
            self._forget_begun(parts)
            raise
        finally:
            self._sort_ended()

    def _forget_begun(self, parts: Iterable[Part]) -> None:
        """Of a request that is refused no sequence is left that it alone began."""
        for part in parts:
            sequence = part.sequence
            if part.begins and sequence is not None and self._table.find(sequence.id) is sequence:
                self._table.cancel(sequence.id, self._clock.now())

    def _gathered(self, ticket: Ticket, parts: int) -> Gathered:
        return Gathered(parts, strict=ticket.strict, model=self._model, respond=self.respond)

    def _part(
        self, ticket: Ticket, tensors: dict[str, Array], sink: Sink, ask: PartAsk, *, split: bool
    ) -> Part:
        which = ask.rows if split else None
        rows = len(ask.rows) if split else ticket.rows
        return Part(ticket, tensors, rows, sink, which=which, ends=ask.sequence.end)

    def _offer_part(self, part: Part, ask: SequenceAsk) -> None:
        if ask.start and not ask.id:
            ask = SequenceAsk(uuid4().hex, start=True, end=ask.end)
        part.id = ask.id
        part.number = next(self._numbers)
        now = self._clock.now()
        before = self._table.find(ask.id)
        try:
            part.sequence = self._table.offer(part, ask, now)
            part.begins = part.sequence is not before
        except SequenceError as error:
            self._refusals[error.kind] += 1
            if part.ticket.strict:
                raise
            self._refused.append((part, error))
            return
        # A sequence that waits for nothing has no step that its place would wake for.
        self._places[part.sequence.place].wake(always=part.sequence.current is None)

    def _cancel_by(self, ticket: Ticket, id: str) -> None:
        """A request that asks for nothing but the end of a sequence."""
        lived = self._table.cancel(id, self._clock.now())
        self._sort_ended()
        told: dict[str, Any] = {"sequence_id": ticket.request.parameters["sequence_id"], "sequence_end": True}
        answer = InferResponse((), self._model, None, ticket.request.id, told)

        def answered(error: BaseException | None) -> tuple[Ticket, Answer]:
            return ticket, error or answer

        if self.dismissals is not None and self.dismissals.add(Dismissal(id, lived, answered)):
            return
        self._cancels.append(
            (ticket, answer if lived else SequenceGoneError(id, "there is no such sequence"))
        )

    def _remove(self, ticket: Ticket) -> bool:
        now = self._clock.now()
        begun = False
        for part in self._parts.pop(ticket, ()):
            if part.sequence is not None:
                begun = begun or part.begun_s is not None
                self._table.withdraw(part.sequence, part, now)
        self._sort_ended()
        return not begun

    def _drain(self) -> list[Ticket]:
        self._stopped = True
        self._table.stop(self._clock.now())
        self._sort_ended()
        answered = [ticket for ticket, parts in self._parts.items() if isinstance(parts[0].sink, Gathered)]
        for ticket in answered:
            for part in self._parts.pop(ticket):
                part.over = True
        return answered

    def _queue(self, sequence: Live) -> None:
        self._places[sequence.place].add(sequence)

    def _unqueue(self, sequence: Live) -> None:
        self._places[sequence.place].remove(sequence)

    def _wake_all(self) -> None:
        for place in self._places:
            place.wake(always=True)

    def _sort_ended(self) -> None:
        """Endings go where the sequences lived; and where nothing is left to be done, everybody hears of it."""
        if self._closed and not self._table.requests and not self._stopped:
            self._wake_all()
        if self.dismissals is not None and self._table.over:
            self.dismissals.take_over(self._table.over)
        ended = self._table.ended
        if not ended:
            return
        for sequence in ended:
            if sequence.begun:
                self._places[sequence.place].ended(ending_of(sequence))
        ended.clear()

    def _lasts(self, id: str) -> bool:
        """Whether a sequence of this id lives that has a checkpoint of its own, or will have. Any thread."""
        sequence = self._table.find(id)
        return sequence is not None and (sequence.loaded or sequence.begun)
