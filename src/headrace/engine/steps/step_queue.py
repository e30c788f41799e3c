"""The request queue of a model with a `step`: each request waits for its sequence.

Takes pending requests from any thread; gives one step each of many sequences to the instance that
holds their states.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count, islice
from random import SystemRandom
from typing import Any
from uuid import uuid4

from typing_extensions import override

from headrace.batching.adaptive import AdaptiveBatch, WaitCondition
from headrace.batching.sequence import SequenceTable
from headrace.checkpoints.store import CheckpointStore
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, SequenceError, SequenceGoneError, StoppedError
from headrace.core.sequence import SequenceControl, SequenceEnd, SequenceInfo, SequenceLimits
from headrace.core.tensor import Array, InferResponse
from headrace.engine.batch_queue import BlockingConsumer
from headrace.engine.inputs import ModelInputs
from headrace.engine.pending_request import PendingRequest, RequestResult, merge_key
from headrace.engine.request_queue import RequestQueue
from headrace.engine.stepper import SequenceEnding
from headrace.engine.steps.instance_step_queue import InstanceStepQueue
from headrace.engine.steps.multi_row_request import BuildResponse, MultiRowRequest
from headrace.engine.steps.pending_state_deletes import PendingStateDeletes, StateDelete
from headrace.engine.steps.row_request import OutputCollector, RowRequest, SequenceRows
from headrace.engine.steps.sequence_rows import model_inputs, split_sequences
from headrace.engine.steps.step_work import (
    StepOutcome,
    StepSequence,
    StepWork,
    sequence_ending,
    sequence_info,
)

DeliverResults = Callable[[list[tuple[PendingRequest, RequestResult]]], None]
"""Marks, counts and delivers results that do not come from a step. Any thread, without a lock."""


class StepQueue(RequestQueue):
    """A bounded queue of pending requests that gives steps; see `RequestQueue` for its bounds.

    A request belongs to one sequence, or each of its rows does
    (`headrace.engine.steps.sequence_rows`). `offer` and `put` raise SequenceError if a sequence
    refuses the request. In a request that is not strict, refused rows fail alone.
    """

    def __init__(
        self,
        limits: SequenceLimits,
        clock: Clock,
        *,
        model: str,
        inputs: ModelInputs,
        respond: BuildResponse,
        instances: int,
        merge: bool,
        in_flight_max: int,
        queue_rows_max: int,
        deliver_results: DeliverResults,
        store: CheckpointStore | None = None,
    ) -> None:
        super().__init__(clock, in_flight_max=in_flight_max)
        self.respond = respond
        self.limits = limits
        self.store = store
        """The checkpoint store; its opener closes it when no instance is left."""
        self._model = model
        self._inputs = inputs
        self._queue_rows_max = queue_rows_max
        self._deliver_results = deliver_results
        self._table = SequenceTable[RowRequest](
            limits, instances, queue=self._queue, unqueue=self._unqueue, checkpoints=store is not None
        )
        self._merge = merge
        """True if steps of several requests share a call. If False, only the steps of one request
        do, without delay.
        """
        self._instance_queues = [InstanceStepQueue() for _ in range(instances)]
        self._row_requests: dict[PendingRequest, Sequence[RowRequest]] = {}
        self._refused: list[tuple[RowRequest, HeadraceError]] = []
        """Row requests of requests that are not strict, refused by their sequences."""
        self._refusals: Counter[str] = Counter()
        self._cancels: list[tuple[PendingRequest, RequestResult]] = []
        """Requests that only cancelled a sequence."""
        # Random, because a state in the store outlives this process and refers to its numbers.
        self.state_deletes = (
            None
            if store is None
            else PendingStateDeletes(
                store, deliver_results, self._is_stored_sequence, model=model, idle_ms=limits.idle_ms
            )
        )
        """Ends of sequences that are reported once their checkpoints are deleted; None without a
        store.
        """
        self._numbers = count(SystemRandom().randrange(1 << 48))
        self._stopped = False
        self._delay_s = 0.0

    @override
    def resize(self, *, rows_max: int, delay_s: float) -> None:
        with self._lock:
            self._delay_s = delay_s if self._merge else 0.0
            for instance_queue in self._instance_queues:
                instance_queue.resize(rows_max=rows_max, delay_s=self._delay_s)

    def limit_rows(self, instance: int, *, rows_max: int) -> None:
        """Lower the limit of rows per call of one instance."""
        with self._lock:
            self._instance_queues[instance].resize(rows_max=rows_max, delay_s=self._delay_s)

    # Client side

    @override
    def put(self, entry: PendingRequest, future: Future[Any]) -> None:
        try:
            super().put(entry, future)
        finally:
            self.deliver_ended()

    @override
    def offer(
        self, entry: PendingRequest, make_collector: Callable[[int], OutputCollector] | None = None
    ) -> bool:
        """Queue a request; return False when `queue_rows_max` rows are queued or running.

        `make_collector` makes the collector of its outputs, given the number of row requests.
        """
        try:
            with self._lock:
                if self._closed:
                    raise StoppedError("it is stopping")
                table = self._table
                if table.requests and table.rows + entry.rows > self._queue_rows_max:
                    return False
                if self.state_deletes is not None and self.state_deletes.waiting >= self._queue_rows_max:
                    return False
                self._add(entry, make_collector)
                return True
        finally:
            self.deliver_ended()

    @override
    def withdraw(self, entry: PendingRequest) -> bool:
        """Withdraw a request. Steps that are done stay done."""
        try:
            return super().withdraw(entry)
        finally:
            self.deliver_ended()

    @override
    def abandon(self, future: Future[Any]) -> PendingRequest | None:
        try:
            return super().abandon(future)
        finally:
            self.deliver_ended()

    @override
    def _on_future_done(self, future: Future[Any]) -> None:
        try:
            super()._on_future_done(future)
        finally:
            # The cancelled request may have been the last one before an end.
            self.deliver_ended()

    @override
    def mark_ended(self, entries: Iterable[PendingRequest]) -> None:
        entries = list(entries)
        super().mark_ended(entries)
        with self._lock:
            for entry in entries:
                self._row_requests.pop(entry, None)

    @override
    def drop(self) -> list[PendingRequest]:
        """Close, and return the waiting requests. Waiting streams are ended here."""
        entries = super().drop()
        self.deliver_ended()
        return entries

    def cancel(self, id: str) -> bool:
        """End the sequence of this id and cancel its waiting requests. Return True if it was live.

        With checkpoints, a sequence may be live by its checkpoint alone: then this returns True,
        and the checkpoint is deleted soon.
        """
        with self._lock:
            was_live = self._table.cancel(id, self._clock.now())
            if self.state_deletes is not None:
                was_live = self.state_deletes.add(StateDelete(id, was_live)) or was_live
            self._collect_ended()
        self.deliver_ended()
        return was_live

    def resume(self, sequence: StepSequence) -> None:
        """Continue a sequence whose stream has space again."""
        with self._lock:
            self._table.resume(sequence, self._clock.now())

    # State

    def sequences(self, limit: int | None = None) -> tuple[SequenceInfo, ...]:
        """Return the live sequences that have an id, oldest first; `most` is a limit."""
        with self._lock:
            now = self._clock.now()
            self._table.expire(now)
            self._collect_ended()
            state_loaded = tuple(
                sequence_info(s, now) for s in islice((s for s in self._table if s.id), limit)
            )
        self.deliver_ended()
        return state_loaded

    @property
    def live(self) -> int:
        """Number of live sequences, also of those without an id."""
        return len(self._table)

    def ends(self) -> dict[SequenceEnd, int]:
        """Return the number of ended sequences by reason."""
        with self._lock:
            return dict(self._table.end_counts)

    def refused(self) -> dict[str, int]:
        """Return the number of refused row requests by the kind of the error."""
        with self._lock:
            return dict(self._refusals)

    @override
    def waiting(self) -> tuple[int, int, float, int]:
        with self._lock:
            running = sum(instance_queue.running for instance_queue in self._instance_queues)
            oldest = [
                s for instance_queue in self._instance_queues if (s := instance_queue.oldest_s) is not None
            ]
            age_s = max(0.0, self._clock.now() - min(oldest)) if oldest else 0.0
            table = self._table
            return max(0, table.requests - running), max(0, table.rows - running), age_s, running

    # Instance side

    def take(
        self, consumer: BlockingConsumer, instance: int, unavailable: Callable[[], bool]
    ) -> StepWork | WaitCondition | None:
        """Wait for the next steps of an instance.

        Return None once closed and all ends are reported.

        Return a WaitCondition once the instance is `unavailable`.
        """
        while not unavailable():
            # Ends of the last steps are delivered before the next take: no client may want those
            # steps then.
            self.deliver_ended()
            state_loaded = self._poll(consumer, instance)
            self.deliver_ended()
            if not isinstance(state_loaded, WaitCondition):
                return state_loaded
            consumer.wait(
                None if state_loaded.at_s is None else max(0.0, state_loaded.at_s - self._clock.now())
            )
        with self._lock:
            self._instance_queues[instance].mark_awake()
        return WaitCondition()

    def _poll(self, consumer: BlockingConsumer, instance: int) -> StepWork | WaitCondition | None:
        with self._lock:
            now, instance_queue, table = self._clock.now(), self._instance_queues[instance], self._table
            table.expire(now)
            if self._closed and not table.requests and not self._stopped:
                self._stopped = True
                table.stop(now)
            self._collect_ended()
            state_loaded = instance_queue.next(now, flush=self._closed)
            if isinstance(state_loaded, AdaptiveBatch) or instance_queue.endings:
                instance_queue.mark_awake()
                return self._take(
                    instance_queue, state_loaded if isinstance(state_loaded, AdaptiveBatch) else None
                )
            if self._stopped:
                return None
            instance_queue.sleep(consumer, state_loaded)
            due_s = table.next_expiry_s()
            due = [s for s in (state_loaded.at_s, due_s) if s is not None]
            return WaitCondition(min(due, default=None))

    def take_full(self, instance: int) -> StepWork | None:
        """Return the next steps of an instance if they fill a call, unless closed; else None."""
        with self._lock:
            now, instance_queue = self._clock.now(), self._instance_queues[instance]
            self._table.expire(now)
            self._collect_ended()
            state_loaded = None if self._closed else instance_queue.next_full(now)
            work = None if state_loaded is None else self._take(instance_queue, state_loaded)
        self.deliver_ended()
        return work

    def _take(self, instance_queue: InstanceStepQueue, batch: AdaptiveBatch[StepSequence] | None) -> StepWork:
        endings = instance_queue.take(batch)
        if batch is None:
            return StepWork((), endings)
        return StepWork(tuple([(s, self._begin_step(s)) for s in batch.items]), endings, batch.reason)

    def _begin_step(self, sequence: StepSequence) -> RowRequest:
        row_request = self._table.begin_step(sequence)
        if row_request.started_s is None:
            row_request.started_s = self._clock.now()
            # Under the lock, since row requests of one entry may begin in several threads.
            if not row_request.entry.callback.start():
                row_request.entry.cancelled = True
        return row_request

    def is_full(self, instance: int) -> bool:
        """Return True if the waiting steps fill a call."""
        return self._instance_queues[instance].is_full

    def end_steps(self, instance: int, outcomes: Sequence[StepOutcome]) -> None:
        """End the steps that were taken, and set `done` of each outcome.

        Missing states were handled before (`state_loaded`, `state_missing`).
        """
        with self._lock:
            now, table, instance_queue = self._clock.now(), self._table, self._instance_queues[instance]
            for o in outcomes:
                o.done = table.end_step(
                    o.sequence,
                    now,
                    state_changed=o.state_changed,
                    reschedule=o.rescheduled,
                    end_sequence=o.ends,
                    finish_request=o.finished,
                    hold=o.held,
                    redo=o.undone,
                    withdraw_request=o.withdrawn,
                )
                instance_queue.running -= 1
            instance_queue.call_ended(now)
            self._collect_ended()

    def state_loaded(self, sequence: StepSequence, steps: int) -> None:
        """Record that the state of a sequence is loaded, for the step that was taken."""
        with self._lock:
            self._table.state_loaded(sequence, steps)

    def state_missing(self, sequence: StepSequence) -> bool:
        """Handle a step whose state could not be loaded. Return True if the sequence restarts.

        If it does not, its requests end.
        """
        with self._lock:
            starts_sequence = self._table.state_missing(sequence, self._clock.now())
            if not starts_sequence:
                self._instance_queues[sequence.instance].running -= 1
                self._collect_ended()
        self.deliver_ended()
        return starts_sequence

    def unload_state(self, sequence: StepSequence) -> None:
        """Mark the state of a sequence to be loaded before its next step."""
        with self._lock:
            self._table.unload_state(sequence)

    def instance_lost(
        self, instance: int, stepping: Sequence[StepSequence], exhausted: Sequence[RowRequest]
    ) -> None:
        """Record the death of an instance during these steps.

        Row requests that are `exhausted` end.
        """
        with self._lock:
            instance_queue = self._instance_queues[instance]
            instance_queue.running = 0
            # The instance takes no steps, and no endings are reported, until it is restarted.
            self._table.set_available(instance, available=False)
            now = self._clock.now()
            self._table.instance_lost(instance, stepping, now)
            for row_request in exhausted:
                if row_request.sequence is not None:
                    self._table.withdraw(row_request.sequence, row_request, now)
            self._collect_ended()
        self.deliver_ended()

    def return_endings(self, instance: int, endings: Sequence[SequenceEnding]) -> None:
        """Return endings that were not reported to the model, for the restarted instance."""
        with self._lock:
            self._instance_queues[instance].endings[:0] = endings

    def state_corrupted(
        self, instance: int, taken: Sequence[StepSequence], others: Sequence[StepSequence]
    ) -> None:
        """End the sequences whose states are unknown, and the taken steps without a result."""
        with self._lock:
            now, instance_queue, table = self._clock.now(), self._instance_queues[instance], self._table
            for sequence in others:
                table.state_corrupted(sequence, now, stepping=False)
            for sequence in taken:
                instance_queue.running -= table.state_corrupted(sequence, now, stepping=True)
            self._collect_ended()
        self.deliver_ended()

    def instance_available(self, instance: int) -> None:
        """Record the restart of an instance."""
        with self._lock:
            self._table.set_available(instance, available=True)

    def retire_instance(self, instance: int) -> None:
        """Record that an instance is given up."""
        with self._lock:
            self._instance_queues[instance].running = 0
            self._table.retire_instance(instance, self._clock.now())
            self._collect_ended()
            self._instance_queues[instance].endings.clear()
        self.deliver_ended()

    def deliver_ended(self) -> None:
        """Deliver the results of requests that ended without a step.

        Any thread, without the lock, wherever a sequence or request may have ended.
        """
        if not self._table.request_ends and not self._refused and not self._cancels:
            return
        with self._lock:
            row_requests = [
                (request_end.item, request_end.error) for request_end in self._table.request_ends
            ] + self._refused
            answers, self._cancels = self._cancels, []
            self._table.request_ends.clear()
            self._refused.clear()
        for row_request, error in row_requests:
            result = row_request.finish(error)
            if result is not None:
                answers.append((row_request.entry, result))
        if answers:
            self._deliver_results(answers)

    # Under the lock

    @override
    def _add(
        self, entry: PendingRequest, make_collector: Callable[[int], OutputCollector] | None = None
    ) -> None:
        groups, split = split_sequences(entry.request, self._inputs)
        if groups[0].control.cancel:
            self._cancel_by(entry, groups[0].control.id)
            return
        tensors = model_inputs(entry.request, self._inputs) if split else entry.request.inputs
        if not self._merge:
            key = entry
        else:
            key = entry.key if entry.key is entry or not split else merge_key(tensors)
        make = make_collector or partial(self._make_collector, entry)
        collector = make(len(groups))
        by_name = {tensor.name: tensor.data for tensor in tensors}
        row_requests = [
            self._make_row_request(entry, by_name, collector, group, split=split) for group in groups
        ]
        for row_request in row_requests:
            row_request.key = key
        self._row_requests[entry] = row_requests
        try:
            for row_request, group in zip(row_requests, groups, strict=True):
                self._offer_row_request(row_request, group.control)
        except HeadraceError:
            for row_request in row_requests:
                row_request.is_closed = True
            self._remove(entry)
            self._cancel_started(row_requests)
            raise
        finally:
            self._collect_ended()

    def _cancel_started(self, row_requests: Iterable[RowRequest]) -> None:
        """End the sequences that a refused request started."""
        for row_request in row_requests:
            sequence = row_request.sequence
            if (
                row_request.starts_sequence
                and sequence is not None
                and self._table.find(sequence.id) is sequence
            ):
                self._table.cancel(sequence.id, self._clock.now())

    def _make_collector(self, entry: PendingRequest, count: int) -> MultiRowRequest:
        return MultiRowRequest(count, strict=entry.strict, model=self._model, respond=self.respond)

    def _make_row_request(
        self,
        entry: PendingRequest,
        tensors: dict[str, Array],
        collector: OutputCollector,
        group: SequenceRows,
        *,
        split: bool,
    ) -> RowRequest:
        row_indices = group.rows if split else None
        rows = len(group.rows) if split else entry.rows
        return RowRequest(entry, tensors, rows, collector, row_indices=row_indices, ends=group.control.end)

    def _offer_row_request(self, row_request: RowRequest, control: SequenceControl) -> None:
        if control.start and not control.id:
            control = SequenceControl(uuid4().hex, start=True, end=control.end)
        row_request.id = control.id
        row_request.number = next(self._numbers)
        now = self._clock.now()
        before = self._table.find(control.id)
        try:
            row_request.sequence = self._table.offer(row_request, control, now)
            row_request.starts_sequence = row_request.sequence is not before
        except SequenceError as error:
            self._refusals[error.kind] += 1
            if row_request.entry.strict:
                raise
            self._refused.append((row_request, error))
            return
        # A sequence that runs no request has no step that would wake its instance.
        self._instance_queues[row_request.sequence.instance].wake(always=row_request.sequence.current is None)

    def _cancel_by(self, entry: PendingRequest, id: str) -> None:
        """Run a request that only cancels a sequence."""
        was_live = self._table.cancel(id, self._clock.now())
        self._collect_ended()
        parameters: dict[str, Any] = {
            "sequence_id": entry.request.parameters["sequence_id"],
            "sequence_end": True,
        }
        result = InferResponse((), self._model, None, entry.request.id, parameters)

        def with_response(error: BaseException | None) -> tuple[PendingRequest, RequestResult]:
            return entry, error or result

        if self.state_deletes is not None and self.state_deletes.add(
            StateDelete(id, was_live, with_response)
        ):
            return
        self._cancels.append(
            (entry, result if was_live else SequenceGoneError(id, "there is no such sequence"))
        )

    @override
    def _remove(self, entry: PendingRequest) -> bool:
        now = self._clock.now()
        started = False
        for row_request in self._row_requests.pop(entry, ()):
            if row_request.sequence is not None:
                started = started or row_request.started_s is not None
                self._table.withdraw(row_request.sequence, row_request, now)
        self._collect_ended()
        return not started

    @override
    def _drain(self) -> list[PendingRequest]:
        self._stopped = True
        self._table.stop(self._clock.now())
        self._collect_ended()
        with_response = [
            entry
            for entry, row_requests in self._row_requests.items()
            if isinstance(row_requests[0].collector, MultiRowRequest)
        ]
        for entry in with_response:
            for row_request in self._row_requests.pop(entry):
                row_request.is_closed = True
        return with_response

    def _queue(self, sequence: StepSequence) -> None:
        self._instance_queues[sequence.instance].add(sequence)

    def _unqueue(self, sequence: StepSequence) -> None:
        self._instance_queues[sequence.instance].remove(sequence)

    @override
    def _wake_all(self) -> None:
        for instance_queue in self._instance_queues:
            instance_queue.wake(always=True)

    def _collect_ended(self) -> None:
        """Pass endings to the instances of their sequences; wake all instances if nothing is left."""
        if self._closed and not self._table.requests and not self._stopped:
            self._wake_all()
        if self.state_deletes is not None and self._table.request_ends:
            self.state_deletes.take_over(self._table.request_ends)
        ended = self._table.ended_sequences
        if not ended:
            return
        for sequence in ended:
            if sequence.instance_knows:
                self._instance_queues[sequence.instance].add_ending(sequence_ending(sequence))
        ended.clear()

    def _is_stored_sequence(self, id: str) -> bool:
        """Return True if a live sequence of this id has, or will have, a checkpoint. Any thread."""
        sequence = self._table.find(id)
        return sequence is not None and (sequence.loaded or sequence.instance_knows)
