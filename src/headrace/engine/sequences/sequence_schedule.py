"""The schedule of a model with a `step`: each request waits for its sequence.

Gives one step each of many sequences to the instance that holds their states.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from random import SystemRandom
from typing import Any
from uuid import uuid4

from typing_extensions import override

from headrace.batching.adaptive import AdaptiveBatch, QueueConsumer, ReadyQueue, WaitCondition
from headrace.batching.sequence import SequenceTable
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, SequenceError, SequenceGoneError
from headrace.core.sequence import SequenceControl, SequenceInfo, SequenceLimits
from headrace.core.statistics import SequenceStatistics
from headrace.core.tensor import InferResponse
from headrace.engine.inputs import ModelInputs
from headrace.engine.outputs import ResponseBuilder
from headrace.engine.pending_request import PendingRequest, RequestResult
from headrace.engine.request_queue import DeliverResults, RequestQueue
from headrace.engine.schedule import Schedule, TakenBatch
from headrace.engine.sequences.row_request import (
    RowRequest,
    StepSequence,
    sequence_ending,
    sequence_info,
)
from headrace.engine.sequences.sequence_rows import (
    MultiRowRequest,
    make_row_requests,
    split_sequences,
)
from headrace.engine.sequences.sequence_store import MonitoredStore, PendingStateDeletes, StateDelete
from headrace.engine.stepper import SequenceEnding


class StepQueues:
    """The table of live sequences, with a queue of ready steps for each instance.

    With `merge`, steps of several requests share a call. Without, only the steps of one request do,
    without delay. `SequenceTable` describes the other arguments.
    """

    def __init__(
        self,
        limits: SequenceLimits,
        instances: int,
        *,
        merge: bool,
        checkpoints: bool,
        keeps_checkpoint: Callable[[str], bool],
    ) -> None:
        self.merge = merge
        self.table = SequenceTable[RowRequest](
            limits,
            instances,
            # A started request waits for no co-batching before its next step.
            queue=lambda sequence: self.ready[sequence.instance].add(
                sequence, flush=sequence.request_started
            ),
            unqueue=lambda sequence: self.ready[sequence.instance].remove(sequence),
            checkpoints=checkpoints,
            keeps_checkpoint=keeps_checkpoint,
        )
        self.ready = [ReadyQueue[StepSequence]() for _ in range(instances)]
        """The sequences of each instance that are ready for a step."""
        self.endings: list[list[SequenceEnding]] = [[] for _ in range(instances)]
        """The ended sequences to report to the model, by instance."""
        self._rows_max, self._delay_s = 1, 0.0

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the limits of a call: its rows and its co-batching delay."""
        self._rows_max, self._delay_s = rows_max, delay_s if self.merge else 0.0
        for ready in self.ready:
            ready.resize(rows_max=self._rows_max, delay_s=self._delay_s)

    def add_instance(self, instance: int) -> None:
        """Prepare for an instance with this number, which gets new sequences from now on."""
        while len(self.ready) <= instance:
            self.ready.append(ReadyQueue[StepSequence]())
            self.endings.append([])
        self.ready[instance].resize(rows_max=self._rows_max, delay_s=self._delay_s)
        self.table.add_instance(instance)

    def is_full(self, instance: int) -> bool:
        """Return True if the ready steps of an instance fill a call. Needs no lock."""
        return self.ready[instance].fills_call

    def leave(self, consumer: QueueConsumer, instance: int) -> None:
        """Record that an instance takes nothing for now."""
        self.ready[instance].mark_awake(consumer)

    def waiting(self, now: float) -> tuple[int, int, float, int]:
        """Return the waiting requests and rows, the oldest age in seconds, and running requests."""
        running = sum(ready.running for ready in self.ready)
        oldest = [s for ready in self.ready if (s := ready.oldest_arrival_s()) is not None]
        age_s = max(0.0, now - min(oldest)) if oldest else 0.0
        table = self.table
        return max(0, table.requests - running), max(0, table.rows - running), age_s, running

    def wake_all(self) -> None:
        """Wake all instances."""
        for ready in self.ready:
            ready.wake_all()

    def report_ended(self) -> None:
        """Pass the ended sequences to the instances that know them."""
        ended = self.table.ended_sequences
        if not ended:
            return
        for sequence in ended:
            if sequence.instance_knows:
                self.endings[sequence.instance].append(sequence_ending(sequence))
                self.ready[sequence.instance].wake_all()
        ended.clear()


class SequenceSchedule(StepQueues, Schedule):
    """The schedule of requests that belong to sequences.

    A request belongs to one sequence, or each of its rows does. A request that a sequence refuses
    raises SequenceError. In a request that is not strict, refused rows fail alone. The `store` is
    closed by its opener, when no instance is left.
    """

    room_counts_running = True

    def __init__(
        self,
        limits: SequenceLimits,
        clock: Clock,
        queue: RequestQueue,
        *,
        model: str,
        inputs: ModelInputs,
        respond: ResponseBuilder,
        instances: int,
        merge: bool,
        deliver_results: DeliverResults,
        store: MonitoredStore | None = None,
        evicts_saved: bool = False,
    ) -> None:
        super().__init__(
            limits,
            instances,
            merge=merge,
            checkpoints=store is not None,
            keeps_checkpoint=self._keeps_checkpoint,
        )
        self.respond = respond
        self.limits = limits
        self.store = store
        self.clock = clock
        self.lock = queue.lock
        self._request_queue = queue
        self.deliver_ended = queue.deliver_ended
        self._model = model
        self._inputs = inputs
        self._evicts_saved = evicts_saved
        """True if idle sequences with a checkpoint make place for others at `live_max`."""
        self._row_requests: dict[PendingRequest, Sequence[RowRequest]] = {}
        self._refused: list[tuple[RowRequest, HeadraceError]] = []
        """Row requests of requests that are not strict, refused by their sequences."""
        self._refusals: Counter[str] = Counter()
        self._cancels: list[tuple[PendingRequest, RequestResult]] = []
        """Requests that only cancelled a sequence."""
        self.state_deletes = (
            None
            if store is None
            else PendingStateDeletes(
                store, deliver_results, self._is_stored_sequence, model=model, idle_ms=limits.idle_ms
            )
        )
        """Ends of sequences to report once their checkpoints are deleted; None without a store."""
        # Random, because a state in the store outlives this process and refers to its numbers.
        self._numbers = count(SystemRandom().randrange(1 << 48))
        self._stopped = False

    # Clients

    def cancel(self, id: str, namespace: str = "") -> bool:
        """End the sequence of this id and cancel its waiting requests. Return True if it was live.

        With checkpoints, a sequence may be live by its checkpoint alone: then this returns True,
        and the checkpoint is deleted soon.
        """
        control = SequenceControl(id, namespace=namespace)
        with self.lock:
            was_live = self.table.cancel(control.qualified_id, self.clock.now())
            if self.state_deletes is not None:
                was_live = self.state_deletes.add(StateDelete(control, was_live)) or was_live
            self.collect_ended()
        self.deliver_ended()
        return was_live

    def resume(self, sequence: StepSequence) -> None:
        """Continue a sequence whose stream has space again."""
        with self.lock:
            self.table.resume(sequence, self.clock.now())

    def sequences(self, limit: int | None = None) -> tuple[SequenceInfo, ...]:
        """Return the live sequences that have an id, oldest first, up to a limit."""
        with self.lock:
            now = self.clock.now()
            self.table.expire(now)
            self.collect_ended()
            infos = tuple(sequence_info(s, now) for s in islice((s for s in self.table if s.id), limit))
        self.deliver_ended()
        return infos

    def statistics(self) -> SequenceStatistics:
        """Return the live sequences, also those without an id, and the counts of ends and refusals."""
        with self.lock:
            ends = {str(why): count for why, count in self.table.end_counts.items()}
            return SequenceStatistics(len(self.table), self.limits.live_max, ends, dict(self._refusals))

    # Instances

    @override
    def take(
        self, consumer: QueueConsumer, instance: int, now: float, *, closed: bool
    ) -> TakenBatch | WaitCondition | None:
        """Return the next steps of an instance; None once closed and all ends are reported."""
        ready, table = self.ready[instance], self.table
        table.expire(now)
        if closed and not table.requests and not self._stopped:
            self._stopped = True
            table.stop(now)
        self.collect_ended()
        found = ready.next_for(consumer, now, flush=closed)
        if isinstance(found, AdaptiveBatch):
            return self._batch(instance, found)
        if self.endings[instance]:
            ready.mark_awake(consumer)
            return self._batch(instance, None)
        if self._stopped:
            return None
        condition = ready.sleep(consumer, found)
        due = [s for s in (condition.at_s, table.next_expiry_s()) if s is not None]
        return WaitCondition(min(due, default=None))

    @override
    def drain_instance(self, instance: int, now: float) -> bool:
        """Move sequences to other instances, as far as these can continue them.

        Return True once no sequence is left, and the model knows all ends.
        """
        self.table.expire(now)
        moved = self.table.drain_instance(instance)
        # An instance that is kept must not go on with an old state, nor hold it for ever.
        self.endings[instance] += [sequence_ending(each) for each in moved if each.instance_knows]
        self.collect_ended()
        return not (self.table.count(instance) or self.endings[instance])

    @override
    def take_full(self, instance: int, now: float) -> TakenBatch | None:
        self.table.expire(now)
        self.collect_ended()
        found = self.ready[instance].next_full(now)
        return None if found is None else self._batch(instance, found)

    def _batch(self, instance: int, closed: AdaptiveBatch[StepSequence] | None) -> TakenBatch:
        endings = tuple(self.endings[instance])
        self.endings[instance].clear()
        if closed is None:
            return TakenBatch(endings=endings)
        steps = [(sequence, self._begin_step(sequence)) for sequence in closed.items]
        return TakenBatch(steps, closed.rows, closed.reason, endings)

    def _begin_step(self, sequence: StepSequence) -> RowRequest:
        row_request = self.table.begin_step(sequence)
        if row_request.started_s is None:
            row_request.started_s = self.clock.now()
            # Under the lock, since row requests of one entry may begin in several threads.
            if not row_request.entry.callback.start():
                row_request.entry.cancelled = True
        return row_request

    @property
    @override
    def has_ended(self) -> bool:
        return bool(self.table.request_ends or self._refused or self._cancels)

    @override
    def take_ended(self) -> Callable[[], list[tuple[PendingRequest, RequestResult]]]:
        row_requests = [(end.item, end.error) for end in self.table.request_ends] + self._refused
        results, self._cancels = self._cancels, []
        self.table.request_ends.clear()
        self._refused.clear()

        def finish() -> list[tuple[PendingRequest, RequestResult]]:
            finished = [row_request.finish_with_entry(error) for row_request, error in row_requests]
            return [result for result in finished if result is not None] + results

        return finish

    # Under the lock

    @override
    def has_room(self, entry: PendingRequest, rows_max: int) -> bool:
        """Return True if the request fits, counting running rows, or nothing else is queued."""
        table = self.table
        if table.requests and table.rows + entry.rows > rows_max:
            return False
        return self.state_deletes is None or self.state_deletes.waiting < rows_max

    @override
    def add(self, entry: PendingRequest) -> None:
        groups, split = split_sequences(entry.request, self._inputs)
        if groups[0].control.cancel:
            self._cancel_by(entry, groups[0].control)
            return
        make = entry.callback.make_collector or partial(
            MultiRowRequest, strict=entry.strict, model=self._model, respond=self.respond
        )
        row_requests = make_row_requests(entry, groups, make(len(groups)), self._inputs if split else None)
        if not self.merge:
            for row_request in row_requests:
                row_request.key = entry
        self._row_requests[entry] = row_requests
        try:
            for row_request, group in zip(row_requests, groups, strict=True):
                self._offer_row_request(row_request, group.control)
        except HeadraceError:
            for row_request in row_requests:
                row_request.is_closed = True
            self.remove(entry)
            self._cancel_started(row_requests)
            raise
        finally:
            self.collect_ended()

    def _cancel_started(self, row_requests: Iterable[RowRequest]) -> None:
        """End the sequences that a refused request started."""
        for row_request in row_requests:
            sequence = row_request.sequence
            if (
                row_request.starts_sequence
                and sequence is not None
                and self.table.find(sequence.qualified_id) is sequence
            ):
                self.table.cancel(sequence.qualified_id, self.clock.now())

    def _offer_row_request(self, row_request: RowRequest, control: SequenceControl) -> None:
        if control.start and not control.id:
            control = replace(control, id=uuid4().hex)
        row_request.id = control.id
        row_request.number = next(self._numbers)
        now = self.clock.now()
        before = self.table.find(control.qualified_id)
        try:
            row_request.sequence = self.table.offer(row_request, control, now)
            row_request.starts_sequence = row_request.sequence is not before
        except SequenceError as error:
            self._refusals[error.kind] += 1
            if row_request.entry.strict:
                raise
            self._refused.append((row_request, error))
            return
        if row_request.sequence.current is None:
            # It has no step that would wake its instance, which waits until the sequence expires.
            self.ready[row_request.sequence.instance].wake_all()

    def _cancel_by(self, entry: PendingRequest, control: SequenceControl) -> None:
        """Run a request that only cancels a sequence."""
        was_live = self.table.cancel(control.qualified_id, self.clock.now())
        self.collect_ended()
        requested_id: Any = entry.request.parameters["sequence_id"]
        parameters = {"sequence_id": requested_id, "sequence_end": True}
        result = InferResponse((), self._model, None, entry.request.id, parameters)

        def with_response(error: BaseException | None) -> tuple[PendingRequest, RequestResult]:
            return entry, error or result

        if self.state_deletes is not None and self.state_deletes.add(
            StateDelete(control, was_live, with_response)
        ):
            return
        self._cancels.append(
            (entry, result if was_live else SequenceGoneError(control.id, "there is no such sequence"))
        )

    @override
    def remove(self, entry: PendingRequest) -> bool:
        now = self.clock.now()
        started = False
        for row_request in self._row_requests.pop(entry, ()):
            if row_request.sequence is not None:
                started = started or row_request.started_s is not None
                self.table.withdraw(row_request.sequence, row_request, now)
        self.collect_ended()
        return not started

    @override
    def drain(self) -> list[PendingRequest]:
        self._stopped = True
        self.table.stop(self.clock.now())
        self.collect_ended()
        with_response = [
            entry
            for entry, row_requests in self._row_requests.items()
            if isinstance(row_requests[0].collector, MultiRowRequest)
        ]
        for entry in with_response:
            for row_request in self._row_requests.pop(entry):
                row_request.is_closed = True
        return with_response

    @override
    def forget(self, entries: Iterable[PendingRequest]) -> None:
        for entry in entries:
            self._row_requests.pop(entry, None)

    def collect_ended(self) -> None:
        """Pass endings to the instances of their sequences; wake all instances if nothing is left."""
        if self._request_queue.closed and not self.table.requests and not self._stopped:
            self.wake_all()
        if self.state_deletes is not None and self.table.request_ends:
            self.state_deletes.take_over(self.table.request_ends)
        self.report_ended()

    def _keeps_checkpoint(self, qualified_id: str) -> bool:
        """Return True if the checkpoint of this id outlasts an eviction of its sequence."""
        # A pending delete spares the checkpoint of a live sequence only.
        deletes = self.state_deletes
        return self._evicts_saved and deletes is not None and not deletes.pending(qualified_id)

    def _is_stored_sequence(self, qualified_id: str) -> bool:
        """Return True if a live sequence of this id has, or will have, a checkpoint. Any thread."""
        sequence = self.table.find(qualified_id)
        return sequence is not None and (sequence.loaded or sequence.instance_knows)
