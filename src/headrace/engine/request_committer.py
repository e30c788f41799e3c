"""Results of requests without states: responses from their calls, delivered at once."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, InstanceLostError
from headrace.core.model import HandleRequest
from headrace.engine.backend import Backend
from headrace.engine.batch_caller import BeforeCall, CallItem, ModelCall, end_error
from headrace.engine.batch_loop import Committer, TakenBatch
from headrace.engine.counters import EngineCounters
from headrace.engine.model_errors import internal_error, reported_error
from headrace.engine.outputs import ResponseBuilder, select_outputs
from headrace.engine.pending_request import DEATHS_MAX, PendingRequest, RequestResult, deliver
from headrace.engine.ready_queue import IndependentRequests
from headrace.engine.request_queue import ReadyBatch, RequestQueue


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
