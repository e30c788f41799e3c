"""The loop of an instance: take a batch, call the model, commit the results; for every kind of call.

The model is called in the thread of the instance. While calls of steps are full, a second thread
commits the last call and prepares the next one. Results of requests without states are committed
here, those of steps by `headrace.engine.sequences.step_committer`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol
from weakref import WeakSet

from typing_extensions import override

from headrace.batching.adaptive import WaitCondition
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, InstanceLostError
from headrace.core.model import HandleRequest
from headrace.core.tensor import Array
from headrace.engine.backend import Backend
from headrace.engine.batch_caller import BatchCaller, CallItem, ModelCall, prepare_inputs
from headrace.engine.counters import EngineCounters
from headrace.engine.model_methods import internal_error, reported_error
from headrace.engine.outputs import ChunkedResponse, ResponseBuilder, select_outputs
from headrace.engine.pending_request import DEATHS_MAX, PendingRequest, RequestResult, deliver
from headrace.engine.request_queue import BlockingConsumer, RequestQueue
from headrace.engine.schedule import IndependentRequests, TakenBatch


class Committer(Protocol):
    """The committer of one instance's batches. In the instance's thread, except `commit`.

    For requests without states, and for steps of sequences.
    """

    commits_beside: bool
    """True if the next full call may run while `commit` runs in another thread."""
    make_items: Callable[[TakenBatch], Sequence[CallItem]] | None
    """Returns the items of the next full batch, during a call; None if no batch is prepared then."""

    def prepare(self, taken: TakenBatch, wait_for_commit: Callable[[], None]) -> None:
        """Make `taken.items`, without those that no client wants or that cannot be called."""
        ...

    def commit(self, taken: TakenBatch, calls: Sequence[ModelCall], began_s: float, ended_s: float) -> None:
        """Deliver the outcomes of the items, with the calls that returned. A delivered result is final."""
        ...

    def wait_for_commits(self) -> None:
        """Wait until every item of a commit is delivered: some may wait for a store."""
        ...

    def close(self) -> None:
        """End the threads of this committer, once nothing waits."""
        ...

    def fail(self, taken: TakenBatch, error: BaseException) -> None:
        """Fail the items that have no result, after a defect raised `error`."""
        ...

    def instance_lost(
        self, taken: Sequence[TakenBatch], died_in: Sequence[CallItem], error: InstanceLostError | None
    ) -> bool:
        """Handle the death of the instance: in the call of `died_in`, or without a call.

        Requeue the items; those of the call are repeated in calls of their own, up to a limit.
        Return True if the death was intended, since no client wanted the call.
        """
        ...

    def instance_restarted(self) -> None:
        """Resume work after a restart of the instance."""
        ...

    def instance_given_up(self) -> None:
        """Leave the waiting work to the other instances: this one will not be restarted."""
        ...


_NOTHING: Final = TakenBatch()


class BatchLoop:
    """The batches of one instance. All methods run in the instance's thread."""

    def __init__(
        self,
        queue: RequestQueue,
        caller: BatchCaller,
        committer: Committer,
        counters: EngineCounters,
        clock: Clock,
        *,
        backend: Backend,
        instance: int,
    ) -> None:
        self._queue = queue
        self._instance = instance
        self._backend = backend
        self._caller = caller
        self._committer = committer
        self._counters = counters
        self._clock = clock
        self._taken = _NOTHING
        """The batch in progress."""
        # It starts its thread with its first task.
        self._side_thread = ThreadPoolExecutor(1, f"headrace-{backend.metadata.name}-{instance}-beside")
        self._committing: Future[None] | None = None
        """The commit of the last batch, while the next call may be made."""
        self._next_batch: Future[TakenBatch | None] | None = None
        """The next batch, prepared while the model is called for this one."""

    def take(self, consumer: BlockingConsumer) -> TakenBatch | WaitCondition | None:
        """Wait for the next batch.

        Return a WaitCondition once the backend is lost, and None when the queue is closed and nothing
        is left.
        """
        if self._next_batch is not None:
            if self._backend.lost:
                return WaitCondition()
            if (ahead := self._take_ahead()) is not None:
                return ahead
        taken = self._queue.take(consumer, self._instance, self._backend)
        if taken is None:
            # Sequences that end with the last calls are reported to the model as well.
            self._finish_commits()
            taken = self._queue.take(consumer, self._instance, self._backend)
        return taken

    def _take_ahead(self) -> TakenBatch | None:
        """Return the batch taken ahead; None if there is none or its preparation has not begun."""
        next_batch, self._next_batch = self._next_batch, None
        return None if next_batch is None or next_batch.cancel() else next_batch.result()

    def _prepare_ahead(self, make_items: Callable[[TakenBatch], Sequence[CallItem]]) -> TakenBatch | None:
        taken = self._queue.take_full(self._instance)
        if taken is None:
            return None
        taken.items = make_items(taken)
        try:
            taken.inputs = prepare_inputs(taken.items)
        except Exception:  # noqa: BLE001 - raised again where the call is made
            taken.inputs = None
        return taken

    def run_batch(self, taken: TakenBatch) -> bool:
        """Run a batch and complete its requests. Return True if the model was called.

        Raises InstanceLostError when the instance died meanwhile; `instance_lost` follows.
        """
        self._taken, self._caller.died_in = taken, ()
        counters, committer = self._counters, self._committer
        committer.prepare(taken, self._wait_for_commit)
        if not taken.items:
            now = self._clock.now()
            committer.commit(taken, (), now, now)
            self._taken = _NOTHING
            return False
        began_s = self._clock.now()
        counters.running_call = counters.busy_s, began_s
        try:
            if committer.make_items is not None and self._queue.schedule.is_full(self._instance):
                self._next_batch = self._side_thread.submit(self._prepare_ahead, committer.make_items)
            calls = self._caller.call(taken.items, taken.inputs)
        finally:
            counters.ended_s = ended_s = self._clock.now()
            counters.busy_s += ended_s - began_s
            counters.running_call = None
        reason = taken.reason
        counters.close_reasons[reason] = counters.close_reasons.get(reason, 0) + 1
        if self._committing is not None:
            self._wait_for_commit()
        if committer.commits_beside and (
            self._next_batch is not None or self._queue.schedule.is_full(self._instance)
        ):
            # The next call is full already, so it runs while this one is committed.
            self._committing = self._side_thread.submit(
                committer.commit, taken, calls or (), began_s, ended_s
            )
        else:
            committer.commit(taken, calls or (), began_s, ended_s)
        self._taken = _NOTHING
        return calls is not None

    def _wait_for_commit(self) -> None:
        """Wait for the commit of the last call: calls are committed in order."""
        committing = self._committing
        if committing is not None:
            # A commit whose error handling failed raises in every later call.
            committing.result()
            self._committing = None

    def _finish_commits(self) -> None:
        self._wait_for_commit()
        self._committer.wait_for_commits()

    def internal_failure(self, error: BaseException) -> None:
        """Fail the taken requests that have no result, after a defect raised `error`.

        The instance may go on, unless this method raises.
        """
        self._finish_commits()
        taken, self._taken, self._caller.died_in = self._taken, _NOTHING, ()
        if taken is not _NOTHING:
            self._committer.fail(taken, error)

    def instance_lost(self, error: InstanceLostError | None) -> bool:
        """Handle the death of the instance: in the call that raised `error`, or without a call.

        Its requests are requeued; those of the call are repeated in calls of their own. Return True
        if the death was intended, since no client wanted the call.
        """
        self._finish_commits()
        lost = [] if self._taken is _NOTHING else [self._taken]
        if (ahead := self._take_ahead()) is not None:
            lost.append(ahead)
        died_in = () if error is None else self._caller.died_in
        self._taken = _NOTHING
        return self._committer.instance_lost(lost, died_in, error)

    def close(self) -> None:
        """Finish what is in progress; no further batch is taken."""
        try:
            self._finish_commits()
        finally:
            self._side_thread.shutdown()
            self._committer.close()


class RequestCommitter(Committer):
    """The committer of one instance's requests without states."""

    commits_beside = False
    make_items = None

    def __init__(
        self,
        queue: RequestQueue,
        schedule: IndependentRequests,
        backend: Backend,
        counters: EngineCounters,
        clock: Clock,
        *,
        unopened: WeakSet[ChunkedResponse],
        respond: ResponseBuilder,
    ) -> None:
        self._queue = queue
        self._schedule = schedule
        self._unopened = unopened
        self.respond = respond
        self._name = backend.metadata.name
        self._takes_requests = backend.metadata.whole_requests
        self._counters = counters
        self._clock = clock
        self._end_error = queue.end_error

    def item(self, entry: PendingRequest) -> CallItem:
        """Return the item of a request."""
        if (self._takes_requests and entry.strict) or isinstance(entry.request, HandleRequest):
            return CallItem(entry, {}, 1, is_whole=True, is_opaque=True)
        tensors: dict[str, Array] = {}
        for tensor in entry.request.inputs:
            tensors[tensor.name] = tensor.data
        return CallItem(entry, tensors, entry.rows, is_whole=entry.strict)

    def result(self, item: CallItem) -> RequestResult:
        """Return the result of an item whose calls are applied. Expired requests get an error."""
        entry = item.entry
        error = item.error or self._end_error(entry)
        if error is not None:
            return error
        try:
            if item.is_opaque:
                return self._selected(item)
            return self.respond(item.outputs, entry.request, item.failures)
        except Exception as raised:  # noqa: BLE001 - such as MemoryError: only this request fails
            return reported_error(self._name, raised)

    def _selected(self, item: CallItem) -> RequestResult:
        request, response = item.entry.request, item.response
        if isinstance(response, ChunkedResponse):
            self._unopened.add(response)
            return response
        if isinstance(request, HandleRequest) or not request.outputs:
            return response
        names = select_outputs({t.name: t.data for t in response.outputs}, request, self._name)
        return replace(response, outputs=tuple(t for n in names for t in response.outputs if t.name == n))

    @override
    def prepare(self, taken: TakenBatch, wait_for_commit: Callable[[], None]) -> None:
        taken.items = items = [self.item(entry) for entry in taken.work if entry.callback.start()]
        counters = self._counters
        if items and counters.ended_s is not None:
            counters.starved_s += max(0.0, items[0].entry.arrived_s - counters.ended_s)

    @override
    def commit(self, taken: TakenBatch, calls: Sequence[ModelCall], began_s: float, ended_s: float) -> None:
        for call in calls:
            call.apply()
        results = [(item.entry, self.result(item)) for item in taken.items or ()]
        self._end(taken, results)
        for entry, result in results:
            self._counters.record_result(entry, result, began_s, ended_s)
        deliver(results)

    def _end(self, taken: TakenBatch, results: Sequence[tuple[PendingRequest, RequestResult]]) -> None:
        """Mark the requests that have results as ended, and the batch, if it was not marked before."""
        with self._queue.lock:
            for entry, _ in results:
                entry.ended = not entry.cancelled
            if not taken.is_ended:
                self._schedule.end(len(taken.work), taken.rows, self._clock.now())
                taken.is_ended = True

    @override
    def wait_for_commits(self) -> None:
        pass

    @override
    def close(self) -> None:
        pass

    @override
    def fail(self, taken: TakenBatch, error: BaseException) -> None:
        entries: Sequence[PendingRequest] = taken.work
        unfinished = [entry for entry in entries if not entry.ended]
        reported = internal_error(self._name, error)
        self._fail_entries(taken, entries, unfinished, reported)

    def _fail_entries(
        self,
        taken: TakenBatch,
        entries: Sequence[PendingRequest],
        unfinished: Sequence[PendingRequest],
        error: HeadraceError,
    ) -> None:
        results = [(entry, error) for entry in entries]
        self._end(taken, results)
        now = self._clock.now()
        try:
            for entry in unfinished:
                self._counters.record_result(entry, error, now, now)
        finally:
            deliver(results)

    @override
    def instance_lost(
        self, taken: Sequence[TakenBatch], died_in: Sequence[CallItem], error: InstanceLostError | None
    ) -> bool:
        for item in died_in:
            item.entry.deaths += 1
            # In a call of its own from now on, since it may have killed the instance.
            item.entry.key = item.entry
        intended = bool(died_in) and all(item.entry.cancelled for item in died_in)
        for each in taken:
            started: Sequence[PendingRequest] = (
                each.work if each.items is None else [item.entry for item in each.items]
            )
            wanted = [entry for entry in started if not entry.cancelled]
            exhausted = [entry for entry in wanted if entry.deaths >= DEATHS_MAX]
            if exhausted:
                assert error is not None
                self._fail_entries(each, exhausted, exhausted, error)
            else:
                self._end(each, ())
            with self._queue.lock:
                self._schedule.requeue([entry for entry in wanted if entry.deaths < DEATHS_MAX])
        return intended

    @override
    def instance_restarted(self) -> None:
        pass

    @override
    def instance_given_up(self) -> None:
        pass
