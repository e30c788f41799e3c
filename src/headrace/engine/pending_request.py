"""A request on its way through the engine, and the callback for its result."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from typing_extensions import override

from headrace.core.errors import CancelledRequestError, DeadlineError, StoppedError
from headrace.core.model import HandleRequest, HandleResponse
from headrace.core.predictor import RequestTimes, complete_future
from headrace.core.tensor import InferRequest, InferResponse, Tensor
from headrace.engine.outputs import ChunkedResponse

BACKGROUND_PRIORITY: Final = 1 << 40
"""Added to the priority of background requests: it exceeds all priorities of live requests."""
DEATHS_MAX: Final = 2
"""Number of instance deaths during a request after which the request is not retried."""

_log = logging.getLogger("headrace.engine")

RequestResult = InferResponse | HandleResponse | ChunkedResponse | BaseException


class ResponseCallback(Protocol):
    """The receiver of a request's result."""

    __slots__ = ()

    loop: asyncio.AbstractEventLoop | None
    """The event loop in which `complete` must be called; None for any thread."""
    make_collector: Callable[[int], Any] | None = None
    """Makes the `OutputCollector` of a request's steps, given the number of its row requests. None for
    one response with all outputs.
    """

    def start(self) -> bool:
        """Mark the request as begun. Return False if no client wants it.

        Called once, by an instance.
        """
        ...

    def complete(self, result: RequestResult) -> None:
        """Deliver the result; ignored if the client has left."""
        ...


class PendingRequest:
    """A request with its number of rows and its callback. The lock of its queue guards its changes.

    Requests with an equal `key` can share a call of the model. A `strict` request fails as a whole:
    one bad row fails it. `deaths` counts the instances that died during the request. It is
    `cancelled` if its client left before it had `ended`; never both.
    """

    __slots__ = (
        "arrived_s",
        "callback",
        "cancelled",
        "deaths",
        "ended",
        "key",
        "priority",
        "request",
        "rows",
        "strict",
        "times",
    )

    def __init__(
        self,
        request: InferRequest | HandleRequest,
        rows: int,
        arrived_s: float,
        callback: ResponseCallback,
        *,
        key: Hashable = None,
        strict: bool = False,
        times: RequestTimes | None = None,
        background: bool = False,
    ) -> None:
        self.request: Any = request
        """The InferRequest or HandleRequest."""
        self.rows = rows
        self.arrived_s = arrived_s
        self.callback = callback
        self.key = key
        self.priority = request.priority + BACKGROUND_PRIORITY if background else request.priority
        self.strict = strict
        self.cancelled = False
        self.ended = False
        self.deaths = 0
        self.times = times

    @property
    def is_live(self) -> bool:
        """True if a client waits for the response as a whole; not for background work or a stream."""
        return self.priority < BACKGROUND_PRIORITY and self.callback.make_collector is None

    def is_wanted(self, now: float) -> bool:
        """Return True if the client still waits for the result."""
        deadline = self.request.deadline
        return not self.cancelled and (deadline is None or now < deadline)


def merge_key(tensors: Sequence[Tensor]) -> Hashable:
    """Return a key that is equal for requests whose tensors can be joined along the first axis."""
    if len(tensors) == 1:
        data = tensors[0].data
        signature: Hashable = (tensors[0].name, data.dtype, data.shape[1:])
    else:
        # In the given order, which matters to a model with positional inputs.
        signature = tuple([(t.name, t.data.dtype, t.data.shape[1:]) for t in tensors])
    return signature


class FutureCallback(ResponseCallback):
    """A callback that sets a `concurrent.futures.Future`, in any thread."""

    __slots__ = ("future",)

    loop = None

    def __init__(self, future: Future[InferResponse]) -> None:
        self.future = future

    @override
    def start(self) -> bool:
        """Mark the future as running.

        From then on it cannot be cancelled, only abandoned (`Engine.abandon`).
        """
        future = self.future
        if future.running():
            return True
        if future.done() and not future.cancelled():
            return False
        return future.set_running_or_notify_cancel()

    @override
    def complete(self, result: RequestResult) -> None:
        """Set the result of the future. Exceptions raised by its callbacks are logged."""
        if not self.start():
            return
        if (raised := complete_future(self.future, result)) is not None:
            _log.error("a callback of a future raised", exc_info=raised)


class LoopCallback(ResponseCallback):
    """A callback for the coroutine that awaits `future`, in its event loop."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop | None = loop
        self.future: asyncio.Future[Any] = loop.create_future()

    @override
    def start(self) -> bool:
        return not self.future.done()

    @override
    def complete(self, result: RequestResult) -> None:
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)

    def discard(self) -> None:
        """Mark an error of the future as seen, since no coroutine awaits the future any more."""
        if self.future.done() and not self.future.cancelled():
            self.future.exception()


def deliver(results: Sequence[tuple[PendingRequest, RequestResult]]) -> None:
    """Deliver the results, except to clients that have left.

    The entries are marked as ended before.

    One hop per event loop, since a hop costs more than a result.
    """
    by_loop: dict[asyncio.AbstractEventLoop | None, list[tuple[PendingRequest, RequestResult]]] = {}
    for entry, result in results:
        if not entry.cancelled:
            by_loop.setdefault(entry.callback.loop, []).append((entry, result))
    for loop, pairs in by_loop.items():
        if loop is None:
            _complete(pairs)
            continue
        try:
            loop.call_soon_threadsafe(_complete, pairs)
        except RuntimeError:  # the event loop is closed, so no client is left
            _log.debug(
                "results dropped: the event loop of their client is closed", extra={"requests": len(pairs)}
            )


def _complete(pairs: Sequence[tuple[PendingRequest, RequestResult]]) -> None:
    for entry, result in pairs:
        try:
            entry.callback.complete(result)
        except Exception:  # noqa: BLE001 - the other results must be delivered all the same
            _log.exception("a result could not be delivered", extra={"request": entry.request.id})


def cancelled_error(request: InferRequest | HandleRequest) -> CancelledRequestError:
    """Return the error of a request whose client has left."""
    return CancelledRequestError(f"{_named(request)} was cancelled by its client")


def deadline_error(model: str, request: InferRequest | HandleRequest) -> DeadlineError:
    """Return the error of an expired request."""
    return DeadlineError(f"model {model} did not complete {_named(request)} before its deadline")


def stopped_error(model: str, when: str) -> StoppedError:
    """Return the error of a request that is not run."""
    return StoppedError(f"model {model} is not running: {when}")


def _named(request: InferRequest | HandleRequest) -> str:
    return f"request {request.id}" if request.id else "a request"
