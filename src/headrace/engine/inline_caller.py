"""Inline calls of a model, in the client's own thread or event loop.

For models whose call takes less time than a hop to a thread.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, InstanceLostError
from headrace.core.tensor import Array, InferRequest, InferResponse, Tensor
from headrace.engine.backend import Backend
from headrace.engine.batch_caller import BatchCaller
from headrace.engine.batch_loop import RequestCommitter
from headrace.engine.counters import EngineCounters
from headrace.engine.local_backend import LocalBackend
from headrace.engine.outputs import OutputCheck
from headrace.engine.pending_request import PendingRequest, RequestResult, ResponseCallback, stopped_error


class _FastPath(NamedTuple):
    """The properties of a model that `call_fast` needs."""

    name: str
    version: str | None
    exact_rows: Callable[[InferRequest], int | None]
    rows_max: int
    writes_inputs: bool
    predict: Callable[..., Any]
    resolve: Callable[[Any], Any]
    check: OutputCheck
    lost_error: Callable[[BaseException], InstanceLostError | None]


def _fast_path(backend: Backend) -> _FastPath | None:
    metadata, inputs = backend.metadata, backend.inputs
    if not isinstance(backend, LocalBackend) or inputs.exact is None or inputs.positional:
        return None
    if metadata.whole_requests or metadata.can_stream or not metadata.can_predict:
        return None
    return _FastPath(
        metadata.name,
        metadata.version,
        inputs.exact_rows,
        backend.rows_max,
        backend.writes_inputs,
        backend.predict,
        backend.resolve,
        backend.check,
        backend.lost_error,
    )


class InlineCaller:
    """A caller of one instance in the clients' threads, for one request at a time."""

    def __init__(
        self,
        caller: BatchCaller,
        committer: RequestCommitter,
        backend: Backend,
        counters: EngineCounters,
        clock: Clock,
    ) -> None:
        self.backend = backend
        self._fast_path = _fast_path(backend)
        self._caller = caller
        self._committer = committer
        self._respond = committer.respond
        self._model = backend.metadata.name
        self._counters = counters
        self._now = clock.now
        self._lock = threading.Lock()
        """Held while the model is called."""
        self._closed = self._withdrawn = False

    def call(self, entry: PendingRequest) -> RequestResult | None:
        """Call the model now, and count the result.

        Return None if the request must be queued: the instance is lost, or no longer called inline.
        """
        with self._lock:
            if self._withdrawn or self.backend.lost:
                return None
            if self._closed:
                return stopped_error(self._model, "it is stopping")
            began_s = self._now()
            item = self._committer.item(entry)
            try:
                for call in self._caller.call((item,)) or ():
                    call.apply()
            except InstanceLostError as error:
                item.error, self._closed = error, self.backend.lost
            result = self._committer.result(item)
            self._record(entry, result, began_s, self._now())
        return result

    def _record(self, entry: PendingRequest, result: RequestResult, began_s: float, ended_s: float) -> None:
        counters = self._counters
        counters.ended_s = ended_s
        counters.busy_s += ended_s - began_s
        entry.ended = True
        counters.record_result(entry, result, began_s, ended_s)

    def call_fast(self, request: InferRequest) -> InferResponse | None:
        """Return the response to a request with exactly the declared inputs and no options.

        Return None for any other request, which `call` handles. Raises the error of the call.
        Responses and counters equal those of `call`. The path takes few steps, because at this
        scale cache misses cost more than instructions.
        """
        fast_path = self._fast_path
        if fast_path is None or request.deadline is not None or request.outputs:
            return None
        rows = fast_path.exact_rows(request)
        if rows is None or not 0 < rows <= fast_path.rows_max:
            return None
        tensors: dict[str, Array] = {}
        for tensor in request.inputs:
            data = tensor.data
            if not data.flags.c_contiguous:
                return None
            tensors[tensor.name] = data.copy() if fast_path.writes_inputs else data
        counters = self._counters
        with self._lock:
            if self._closed:
                return None
            began_s = self._now()
            error: BaseException | None = None
            try:
                returned = fast_path.predict(**tensors)
                outputs = fast_path.check(fast_path.resolve(returned), rows, request.id)
            except BaseException as caught:  # noqa: BLE001 - becomes the error of the request
                lost = fast_path.lost_error(caught)
                self._closed = lost is not None
                outputs, error = {}, lost or self._reported_error(caught)
            ended_s = self._now()
            if error is None:
                if self._respond.needs_outputs:
                    self._respond.record_outputs(outputs)
                counters.record_inline(rows, ended_s - began_s, ended_s)
            else:
                counters.calls += 1
                entry = PendingRequest(request, rows, began_s, NO_CALLBACK, strict=True)
                self._record(entry, error, began_s, ended_s)
        if error is not None:
            raise error
        return InferResponse(
            tuple([Tensor(name, data) for name, data in outputs.items()]),
            fast_path.name,
            fast_path.version,
            request.id,
        )

    def _reported_error(self, error: BaseException) -> HeadraceError:
        return self._caller.reported_error(error, self.backend.traceback_of(error), is_served=True)

    def close(self) -> None:
        """Wait for the call in progress, and call no more."""
        with self._lock:
            self._closed = True

    def withdraw(self) -> None:
        """Wait for the call in progress, and leave all later requests to the queue."""
        with self._lock:
            self._closed = self._withdrawn = True


class NoCallback(ResponseCallback):
    """The callback of a request whose client gets the result as a return value."""

    loop = None

    @override
    def start(self) -> bool:
        return True

    @override
    def complete(self, result: RequestResult) -> None:
        del result


NO_CALLBACK = NoCallback()
