"""The schedule of a model with a `step`: each request waits for its sequence.

Gives one step each of many sequences to the instance that holds their states.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count, islice
from random import SystemRandom
from typing import Any
from uuid import uuid4

from typing_extensions import override

from headrace.batching.adaptive import AdaptiveBatch, WaitCondition
from headrace.batching.sequence import SequenceTable
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, SequenceError, SequenceGoneError
from headrace.core.sequence import SequenceControl, SequenceInfo, SequenceLimits
from headrace.core.statistics import SequenceStatistics
from headrace.core.tensor import Array, InferResponse
from headrace.engine.inputs import ModelInputs
from headrace.engine.outputs import ResponseBuilder
from headrace.engine.pending_request import PendingRequest, RequestResult, merge_key
from headrace.engine.ready_queue import ReadyQueue
from headrace.engine.request_queue import DeliverResults, QueueConsumer, ReadyBatch, RequestQueue, Schedule
from headrace.engine.sequences.monitored_store import MonitoredStore
from headrace.engine.sequences.pending_state_deletes import PendingStateDeletes, StateDelete
from headrace.engine.sequences.row_request import (
    OutputCollector,
    RowRequest,
    StepItem,
    StepSequence,
    sequence_ending,
    sequence_info,
)
from headrace.engine.sequences.sequence_rows import (
    MultiRowRequest,
    SequenceRows,
    model_inputs,
    split_sequences,
)
from headrace.engine.stepper import SequenceEnding

MakeCollector = Callable[[int], OutputCollector]
"""Makes the collector of a request's outputs, given the number of its row requests."""


class SequenceSchedule(Schedule):
    """The schedule of requests that belong to sequences.

    A request belongs to one sequence, or each of its rows does
    (`headrace.engine.sequences.sequence_rows`). A request that a sequence refuses raises
    SequenceError. In a request that is not strict, refused rows fail alone.
    """

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
        self.respond = respond
        self.limits = limits
        self.store = store
        """The checkpoint store; its opener closes it when no instance is left."""
        self._clock = clock
        self._lock = queue.lock
        self._request_queue = queue
        self._model = model
        self._inputs = inputs
        self._evicts_saved = evicts_saved
        """True if idle sequences with a checkpoint make place for others at `live_max`."""
        self._table = SequenceTable[RowRequest](
            limits,
            instances,
            queue=self._queue,
            unqueue=self._unqueue,
            checkpoints=store is not None,
            keeps_checkpoint=self._keeps_checkpoint,
        )
        self._merge = merge
        """True if steps of several requests share a call. If False, only the steps of one request
        do, without delay.
        """
        self._ready = [ReadyQueue[StepSequence]() for _ in range(instances)]
        """The sequences of each instance that are ready for a step."""
        self._endings: list[list[SequenceEnding]] = [[] for _ in range(instances)]
        """The ended sequences to report to the model, by instance."""
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
        """Ends of sequences that are reported once their checkpoints are deleted; None without a
        store.
        """
        # Random, because a state in the store outlives this process and refers to its numbers.
        self._numbers = count(SystemRandom().randrange(1 << 48))
        self._stopped = False

    @override
    def resize(self, *, rows_max: int, delay_s: float) -> None:
        for ready in self._ready:
            ready.resize(rows_max=rows_max, delay_s=delay_s if self._merge else 0.0)

    # Clients

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
        self._request_queue.deliver_ended()
        return was_live

    def resume(self, sequence: StepSequence) -> None:
        """Continue a sequence whose stream has space again."""
        with self._lock:
            self._table.resume(sequence, self._clock.now())

    def sequences(self, limit: int | None = None) -> tuple[SequenceInfo, ...]:
        """Return the live sequences that have an id, oldest first, up to a limit."""
        with self._lock:
            now = self._clock.now()
            self._table.expire(now)
            self._collect_ended()
            infos = tuple(sequence_info(s, now) for s in islice((s for s in self._table if s.id), limit))
        self._request_queue.deliver_ended()
        return infos

    def statistics(self) -> SequenceStatistics:
        """Return the live sequences, also those without an id, and the counts of ends and refusals."""
        with self._lock:
            ends = {str(why): count for why, count in self._table.end_counts.items()}
            return SequenceStatistics(len(self._table), self.limits.live_max, ends, dict(self._refusals))

    # Instances

    @override
    def take(
        self, consumer: QueueConsumer, instance: int, now: float, *, closed: bool
    ) -> ReadyBatch | WaitCondition | None:
        """Return the next steps of an instance; None once closed and all ends are reported."""
        ready, table = self._ready[instance], self._table
        table.expire(now)
        if closed and not table.requests and not self._stopped:
            self._stopped = True
            table.stop(now)
        self._collect_ended()
        found = ready.next(consumer, now, flush=closed)
        if isinstance(found, AdaptiveBatch):
            return self._batch(instance, found)
        if self._endings[instance]:
            ready.mark_awake(consumer)
            return self._batch(instance, None)
        if self._stopped:
            return None
        condition = ready.sleep(consumer, found)
        due = [s for s in (condition.at_s, table.next_expiry_s()) if s is not None]
        return WaitCondition(min(due, default=None))

    @override
    def take_full(self, instance: int, now: float) -> ReadyBatch | None:
        self._table.expire(now)
        self._collect_ended()
        found = self._ready[instance].next_full(now)
        return None if found is None else self._batch(instance, found)

    def _batch(self, instance: int, closed: AdaptiveBatch[StepSequence] | None) -> ReadyBatch:
        endings, self._endings[instance] = tuple(self._endings[instance]), []
        if closed is None:
            return ReadyBatch(endings=endings)
        steps = [(sequence, self._begin_step(sequence)) for sequence in closed.items]
        return ReadyBatch(steps, closed.rows, closed.reason, endings)

    def _begin_step(self, sequence: StepSequence) -> RowRequest:
        row_request = self._table.begin_step(sequence)
        if row_request.started_s is None:
            row_request.started_s = self._clock.now()
            # Under the lock, since row requests of one entry may begin in several threads.
            if not row_request.entry.callback.start():
                row_request.entry.cancelled = True
        return row_request

    @override
    def is_full(self, instance: int) -> bool:
        return self._ready[instance].fills_call

    @override
    def leave(self, consumer: QueueConsumer, instance: int) -> None:
        self._ready[instance].mark_awake(consumer)

    def end_steps(self, instance: int, outcomes: Sequence[StepItem]) -> None:
        """End the steps that were taken, and set `done` of each outcome.

        Missing states were handled before (`state_loaded`, `state_missing`).
        """
        with self._lock:
            now, table, ready = self._clock.now(), self._table, self._ready[instance]
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
            ready.end(len(outcomes), len(outcomes), now)
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
                self._ready[sequence.instance].end(1, 1, self._clock.now())
                self._collect_ended()
        self._request_queue.deliver_ended()
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
            self._ready[instance].forget_running()
            # The instance takes no steps, and no endings are reported, until it is restarted.
            self._table.set_available(instance, available=False)
            now = self._clock.now()
            self._table.instance_lost(instance, stepping, now)
            for row_request in exhausted:
                if row_request.sequence is not None:
                    self._table.withdraw(row_request.sequence, row_request, now)
            self._collect_ended()
        self._request_queue.deliver_ended()

    def return_endings(self, instance: int, endings: Sequence[SequenceEnding]) -> None:
        """Return endings that were not reported to the model, for the restarted instance."""
        with self._lock:
            self._endings[instance][:0] = endings

    def state_corrupted(
        self, instance: int, taken: Sequence[StepSequence], others: Sequence[StepSequence]
    ) -> None:
        """End the sequences whose states are unknown, and the taken steps without a result."""
        with self._lock:
            now, ready, table = self._clock.now(), self._ready[instance], self._table
            for sequence in others:
                table.state_corrupted(sequence, now, stepping=False)
            for sequence in taken:
                if table.state_corrupted(sequence, now, stepping=True):
                    ready.end(1, 1, now)
            self._collect_ended()
        self._request_queue.deliver_ended()

    def instance_available(self, instance: int) -> None:
        """Record the restart of an instance."""
        with self._lock:
            self._table.set_available(instance, available=True)

    def retire_instance(self, instance: int) -> None:
        """Record that an instance is given up."""
        with self._lock:
            self._ready[instance].forget_running()
            self._table.retire_instance(instance, self._clock.now())
            self._collect_ended()
            self._endings[instance].clear()
        self._request_queue.deliver_ended()

    @property
    def has_ended(self) -> bool:
        """True if requests may have ended without a step. Needs no lock."""
        return bool(self._table.request_ends or self._refused or self._cancels)

    @override
    def take_ended(self) -> Callable[[], list[tuple[PendingRequest, RequestResult]]]:
        row_requests = [(end.item, end.error) for end in self._table.request_ends] + self._refused
        results, self._cancels = self._cancels, []
        self._table.request_ends.clear()
        self._refused.clear()

        def finish() -> list[tuple[PendingRequest, RequestResult]]:
            finished = [row_request.finish_with_entry(error) for row_request, error in row_requests]
            return [result for result in finished if result is not None] + results

        return finish

    # Under the lock

    @override
    def has_room(self, entry: PendingRequest, rows_max: int) -> bool:
        """Return True if the request fits, counting running rows, or nothing else is queued."""
        table = self._table
        if table.requests and table.rows + entry.rows > rows_max:
            return False
        return self.state_deletes is None or self.state_deletes.waiting < rows_max

    @override
    def add(self, entry: PendingRequest, details: MakeCollector | None) -> None:
        """Add a request. `details` makes the collector of its outputs; None for one response."""
        groups, split = split_sequences(entry.request, self._inputs)
        if groups[0].control.cancel:
            self._cancel_by(entry, groups[0].control.id)
            return
        tensors = model_inputs(entry.request, self._inputs) if split else entry.request.inputs
        if not self._merge:
            key = entry
        else:
            key = entry.key if entry.key is entry or not split else merge_key(tensors)
        make = details or partial(self._make_collector, entry)
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
            self.remove(entry)
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
        if row_request.sequence.current is None:
            # It has no step that would wake its instance, which waits until the sequence expires.
            self._ready[row_request.sequence.instance].wake_all()

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
    def remove(self, entry: PendingRequest) -> bool:
        now = self._clock.now()
        started = False
        for row_request in self._row_requests.pop(entry, ()):
            if row_request.sequence is not None:
                started = started or row_request.started_s is not None
                self._table.withdraw(row_request.sequence, row_request, now)
        self._collect_ended()
        return not started

    @override
    def drain(self) -> list[PendingRequest]:
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

    @override
    def forget(self, entries: Iterable[PendingRequest]) -> None:
        for entry in entries:
            self._row_requests.pop(entry, None)

    @override
    def waiting(self, now: float) -> tuple[int, int, float, int]:
        running = sum(ready.running for ready in self._ready)
        oldest = [s for ready in self._ready if (s := ready.oldest_s) is not None]
        age_s = max(0.0, now - min(oldest)) if oldest else 0.0
        table = self._table
        return max(0, table.requests - running), max(0, table.rows - running), age_s, running

    def _queue(self, sequence: StepSequence) -> None:
        # A started request waits for no co-batching before its next step.
        self._ready[sequence.instance].add(sequence, flush=sequence.request_started)

    def _unqueue(self, sequence: StepSequence) -> None:
        self._ready[sequence.instance].remove(sequence)

    @override
    def wake_all(self) -> None:
        for ready in self._ready:
            ready.wake_all()

    def _collect_ended(self) -> None:
        """Pass endings to the instances of their sequences; wake all instances if nothing is left."""
        if self._request_queue.closed and not self._table.requests and not self._stopped:
            self.wake_all()
        if self.state_deletes is not None and self._table.request_ends:
            self.state_deletes.take_over(self._table.request_ends)
        ended = self._table.ended_sequences
        if not ended:
            return
        for sequence in ended:
            if sequence.instance_knows:
                self._endings[sequence.instance].append(sequence_ending(sequence))
                self._ready[sequence.instance].wake_all()
        ended.clear()

    def _keeps_checkpoint(self, id: str) -> bool:
        """Return True if the checkpoint of this id outlasts an eviction of its sequence."""
        # A pending delete spares the checkpoint of a live sequence only.
        deletes = self.state_deletes
        return self._evicts_saved and deletes is not None and not deletes.pending(id)

    def _is_stored_sequence(self, id: str) -> bool:
        """Return True if a live sequence of this id has, or will have, a checkpoint. Any thread."""
        sequence = self._table.find(id)
        return sequence is not None and (sequence.loaded or sequence.instance_knows)
