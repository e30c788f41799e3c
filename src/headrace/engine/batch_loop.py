"""The loop of an instance: take a batch, call the model, commit the results; for every kind of call.

The model is called in the thread of the instance. While calls of steps are full, a second thread
commits the last call and prepares the next one. Results of requests without states are committed
here, those of steps by `headrace.engine.sequences.step_committer`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol

from typing_extensions import override

from headrace.batching.adaptive import WaitCondition
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, InstanceLostError
from headrace.core.handle import HandleRequest
from headrace.engine.backend import Backend
from headrace.engine.batch_caller import BatchCaller, BeforeCall, CallItem, ModelCall, PreparedCall, end_error
from headrace.engine.counters import EngineCounters
from headrace.engine.model_errors import internal_error, reported_error
from headrace.engine.outputs import ResponseBuilder, select_outputs
from headrace.engine.pending_request import DEATHS_MAX, PendingRequest, RequestResult, deliver
from headrace.engine.ready_queue import IndependentRequests
from headrace.engine.request_queue import BlockingConsumer, ReadyBatch, RequestQueue


class TakenBatch:
    """A batch that an instance has taken."""

    __slots__ = ("batch", "call", "endings_reported", "is_ended", "items")

    def __init__(self, batch: ReadyBatch) -> None:
        self.batch = batch
        self.items: Sequence[CallItem] | None = None
        """Its items; None until they are made."""
        self.call: PreparedCall | None = None
        """The call of all items, if it was made ahead."""
        self.endings_reported = False
        """True once the model was told of the sequences that ended before this batch."""
        self.is_ended = False
        """True once the schedule knows its end."""


class Committer(Protocol):
    """The committer of one instance's batches. In the instance's thread, except `commit`.

    For requests without states, and for steps of sequences.
    """

    commits_beside: bool
    """True if the next full call may run while `commit` runs in another thread."""
    takes_ahead: bool
    """True if the next full call may be prepared during a call."""

    def make_items(self, batch: ReadyBatch) -> Sequence[CallItem]:
        """Return the items of a batch, without those that no client wants."""
        ...

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


_NOTHING: Final = TakenBatch(ReadyBatch())


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
        instance: int,
        name: str,
    ) -> None:
        self._queue = queue
        self._instance = instance
        self._caller = caller
        self._committer = committer
        self._counters = counters
        self._clock = clock
        self._taken = _NOTHING
        """The batch in progress."""
        # It starts its thread with its first task.
        self._side_thread = ThreadPoolExecutor(1, f"headrace-{name}-{instance}-beside")
        self._committing: Future[None] | None = None
        """The commit of the last batch, while the next call may be made."""
        self._next_batch: Future[TakenBatch | None] | None = None
        """The next batch, prepared while the model is called for this one."""

    def take(
        self, consumer: BlockingConsumer, unavailable: Callable[[], bool]
    ) -> TakenBatch | WaitCondition | None:
        """Wait for the next batch.

        Return a WaitCondition once the instance is `unavailable`, and None when the queue is closed
        and nothing is left.
        """
        if self._next_batch is not None:
            if unavailable():
                return WaitCondition()
            if (ahead := self._take_ahead()) is not None:
                return ahead
        batch = self._queue.take(consumer, self._instance, unavailable)
        if batch is None:
            # Sequences that end with the last calls are reported to the model as well.
            self._finish_commits()
            batch = self._queue.take(consumer, self._instance, unavailable)
        return TakenBatch(batch) if isinstance(batch, ReadyBatch) else batch

    def _take_ahead(self) -> TakenBatch | None:
        """Return the batch taken ahead; None if there is none or its preparation has not begun."""
        next_batch, self._next_batch = self._next_batch, None
        return None if next_batch is None or next_batch.cancel() else next_batch.result()

    def _prepare_ahead(self) -> TakenBatch | None:
        batch = self._queue.take_full(self._instance)
        if batch is None:
            return None
        taken = TakenBatch(batch)
        taken.items = self._committer.make_items(batch)
        try:
            taken.call = PreparedCall.from_items(taken.items)
        except Exception:  # noqa: BLE001 - raised again where the call is made
            taken.call = None
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
        try:
            if committer.takes_ahead and self._queue.schedule.is_full(self._instance):
                self._next_batch = self._side_thread.submit(self._prepare_ahead)
            calls = self._caller.call(taken.items, taken.call)
        finally:
            counters.ended_s = ended_s = self._clock.now()
            counters.busy_s += ended_s - began_s
        reason = taken.batch.reason
        counters.close_reasons[reason] = counters.close_reasons.get(reason, 0) + 1
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

    commits_beside = takes_ahead = False

    def __init__(
        self,
        queue: RequestQueue,
        schedule: IndependentRequests,
        backend: Backend,
        counters: EngineCounters,
        clock: Clock,
        *,
        respond: ResponseBuilder,
        before_call: BeforeCall,
    ) -> None:
        self._queue = queue
        self._schedule = schedule
        self.respond = respond
        self._name = backend.metadata.name
        self._takes_requests = backend.metadata.whole_requests
        self._counters = counters
        self._clock = clock
        self._before_call = before_call

    def item(self, entry: PendingRequest) -> CallItem:
        """Return the item of a request."""
        if (self._takes_requests and entry.strict) or isinstance(entry.request, HandleRequest):
            return CallItem(entry, {}, 1, is_whole=True, is_opaque=True)
        tensors = {tensor.name: tensor.data for tensor in entry.request.inputs}
        return CallItem(entry, tensors, entry.rows, is_whole=entry.strict)

    def result(self, item: CallItem) -> RequestResult:
        """Return the result of an item whose calls are applied. Expired requests get an error."""
        entry = item.entry
        error = item.error or end_error(entry, self._before_call)
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
        if isinstance(request, HandleRequest) or not request.outputs:
            return response
        names = select_outputs({t.name: t.data for t in response.outputs}, request, self._name)
        return replace(response, outputs=tuple(t for n in names for t in response.outputs if t.name == n))

    @override
    def make_items(self, batch: ReadyBatch) -> Sequence[CallItem]:
        return [self.item(entry) for entry in batch.taken if entry.callback.start()]

    @override
    def prepare(self, taken: TakenBatch, wait_for_commit: Callable[[], None]) -> None:
        taken.items = items = self.make_items(taken.batch)
        counters = self._counters
        if items and counters.ended_s is not None:
            counters.starved_s += max(0.0, items[0].entry.arrived_s - counters.ended_s)

    @override
    def commit(self, taken: TakenBatch, calls: Sequence[ModelCall], began_s: float, ended_s: float) -> None:
        for call in calls:
            call.apply()
        results = [(item.entry, self.result(item)) for item in taken.items or ()]
        self._end(taken, [entry for entry, _ in results])
        for entry, result in results:
            self._counters.record_result(entry, result, began_s, ended_s)
        deliver(results)

    def _end(self, taken: TakenBatch, entries: Sequence[PendingRequest]) -> None:
        with self._queue.lock:
            self._queue.mark_ended_locked(entries)
            if not taken.is_ended:
                self._schedule.end(len(taken.batch.taken), taken.batch.rows, self._clock.now())
                taken.is_ended = True

    @override
    def wait_for_commits(self) -> None:
        pass

    @override
    def close(self) -> None:
        pass

    @override
    def fail(self, taken: TakenBatch, error: BaseException) -> None:
        entries: Sequence[PendingRequest] = taken.batch.taken
        unfinished = [entry for entry in entries if not entry.ended]
        self._end(taken, entries)
        self._fail_entries(entries, unfinished, internal_error(self._name, error))

    def _fail_entries(
        self, entries: Sequence[PendingRequest], unfinished: Sequence[PendingRequest], error: HeadraceError
    ) -> None:
        now = self._clock.now()
        try:
            for entry in unfinished:
                self._counters.record_result(entry, error, now, now)
        finally:
            deliver([(entry, error) for entry in entries])

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
                each.batch.taken if each.items is None else [item.entry for item in each.items]
            )
            wanted = [entry for entry in started if not entry.cancelled]
            exhausted = [entry for entry in wanted if entry.deaths >= DEATHS_MAX]
            self._end(each, exhausted)
            if exhausted:
                assert error is not None
                self._fail_entries(exhausted, exhausted, error)
            with self._queue.lock:
                self._schedule.requeue([entry for entry in wanted if entry.deaths < DEATHS_MAX])
        return intended

    @override
    def instance_restarted(self) -> None:
        pass

    @override
    def instance_given_up(self) -> None:
        pass
