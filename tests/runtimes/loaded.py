"""A model loaded as in an engine, called with one request after another."""

from collections.abc import Callable
from concurrent.futures import Future
from weakref import WeakSet

from headrace.core import InferRequest, InferResponse, Model, SystemClock
from headrace.engine.batch_caller import BatchCaller
from headrace.engine.batch_loop import RequestCommitter
from headrace.engine.counters import EngineCounters
from headrace.engine.local_backend import LocalBackend
from headrace.engine.outputs import ResponseBuilder
from headrace.engine.pending_request import FutureCallback, PendingRequest
from headrace.engine.request_queue import RequestQueue
from headrace.engine.schedule import IndependentRequests


class LoadedModel:
    """A made, loaded and warmed-up model. The test closes it."""

    def __init__(self, make: Callable[[], Model], name: str) -> None:
        self._backend = backend = LocalBackend(make, name)
        self.inputs = backend.inputs
        self.metadata = backend.metadata
        clock, counters, schedule = SystemClock(), EngineCounters(), IndependentRequests(merge=False)
        queue = RequestQueue(
            clock, schedule, model=name, in_flight_max=1, queue_rows_max=1, deliver_results=lambda _: None
        )
        self._caller = BatchCaller(backend, name, clock, counters, end_error=queue.end_error)
        self._committer = RequestCommitter(
            queue,
            schedule,
            backend,
            counters,
            clock,
            unopened=WeakSet(),
            respond=ResponseBuilder(backend.check, backend.metadata),
        )

    def predict(self, request: InferRequest) -> InferResponse:
        """Return the response to a checked request. Raises its error."""
        self.inputs.check(request)
        item = self._committer.item(PendingRequest(request, request.rows, 0.0, FutureCallback(Future())))
        for call in self._caller.call([item]) or ():
            call.apply()
        result = self._committer.result(item)
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        """Close the model."""
        self._backend.close()
