"""Streams of a model: the runner of `predict_stream`, and the client's side of a stream.

Takes one or many requests; gives responses in order as the model yields them. An ``async def``
generator runs as a task in the event loop of its instance. A plain generator runs in a thread of
its own, which holds the lock of the instance only while the model's code runs.
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

import numpy as np
from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import (
    CancelledRequestError,
    HeadraceError,
    ModelContractError,
)
from headrace.core.model import CALL, Call, Model
from headrace.core.tensor import Array, InferRequest, InferResponse, Tensor, datatype_of, text_array
from headrace.engine.model_methods import reported_error
from headrace.engine.pipe import Pipe
from headrace.engine.tracebacks import Explain, TracebackLog

T = TypeVar("T")

ITEMS_MAX: Final = 256
"""Limit of responses, and of requests, of one stream in transit before its producer waits."""
YIELD_INTERVAL_S: Final = 0.001
"""Seconds that a stream that never waits may keep its event loop before it yields."""


class StreamCall(Call):
    """One open stream: its pipes, and the call as its model sees it (`headrace.core.model.Call`)."""

    def __init__(self, clock: Clock, *, deadline: float | None, id: str) -> None:
        self.requests: Pipe[InferRequest] = Pipe(ITEMS_MAX)
        self.responses: Pipe[Any] = Pipe(ITEMS_MAX)
        self.body: Any = None
        """The iterator of chunks that are the responses, for `handle`; None for `predict_stream`."""
        self.deadline = deadline
        self.id = id
        self.items = 0
        """Number of responses taken by the client."""
        self._clock = clock
        self._stop: Callable[[], object] | None = None
        self._on_end_callback: Callable[[], object] | None = None
        self._reason: HeadraceError | None = None
        self._ended = False
        self._lock = threading.Lock()

    @property
    @override
    def deadline_s(self) -> float | None:
        return None if self.deadline is None else self.deadline - self._clock.now()

    @property
    @override
    def cancelled(self) -> bool:
        return self.responses.abandoned or (self.deadline is not None and self._clock.now() >= self.deadline)

    def on_cancel(self, stop: Callable[[], object]) -> None:
        """Set the callback for the client's departure.

        It is called once; at once after a departure.
        """
        with self._lock:
            abandoned = self.responses.abandoned
            self._stop = None if abandoned else stop
        if abandoned:
            stop()

    def on_end(self, callback: Callable[[], object]) -> None:
        """Set the callback for the end of the model's generator, called once."""
        self._on_end_callback = callback

    def cancel(self, reason: HeadraceError | None = None) -> None:
        """Cancel the stream: the client has left, or gets `reason`.

        The model's generator is closed soon.
        """
        with self._lock:
            if self._ended:
                return  # the stream is complete, and its client may still read the last items
            self._reason = self._reason or reason
            self.responses.abandon()
            stop, self._stop = self._stop, None
        self.requests.close(CancelledRequestError("the client has closed the stream"))
        if stop is not None:
            stop()

    def end(self, error: BaseException | None = None) -> None:
        """End the stream: the model yields no more responses and takes no more requests.

        The first call counts.
        """
        with self._lock:
            callback, self._on_end_callback, self._stop = self._on_end_callback, None, None
            reason, self._ended = self._reason, True
        self.requests.abandon()
        if self.responses.abandoned:
            # Items were dropped, so this must not look like a complete stream.
            error = reason or error or CancelledRequestError("the stream was cancelled")
        self.responses.close(error)
        if callback is not None:
            callback()


class StreamModel:
    """A runner of one instance's streams: of `predict_stream`, and of bodies that `handle` returned.

    `model_lock` is held while plain generators run. `lost_error` returns the error to report instead
    of one after which the instance is lost, else None.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        version: str | None,
        *,
        clock: Clock,
        model_lock: AbstractContextManager[Any],
        lost_error: Callable[[BaseException], HeadraceError | None] = lambda _: None,
        traceback_of: Explain = lambda _: None,
    ) -> None:
        self._traceback_of = traceback_of
        self._traceback_log = TracebackLog(name)
        self._lost_error = lost_error
        self._predict_stream = model.predict_stream
        self._names = [s.name for s in model.outputs]
        self._name = name
        self._version = version
        self._clock = clock
        self._model_lock = model_lock
        self.is_async = inspect.isasyncgenfunction(model.predict_stream)
        self._changed = threading.Condition()
        self._open: set[StreamCall] = set()
        self._end_error: Callable[[], HeadraceError] | None = None

    def open(self, call: StreamCall, loop: asyncio.AbstractEventLoop | None) -> None:
        """Start a stream. An async generator runs in `loop`; without one, in the current event loop.

        Raises the error of `end_all`.
        """
        call.on_end(lambda: self._forget(call))
        with self._changed:
            if self._end_error is not None:
                raise self._end_error()
            # Started under the lock, so that `wait_until_ended` sees it.
            if not self.runs_in_loop(call):
                self._start_thread(call)
            elif loop is None:
                self._start_task(call)
            else:
                loop.call_soon_threadsafe(self._start_task, call)
            self._open.add(call)

    def _forget(self, call: StreamCall) -> None:
        with self._changed:
            self._open.discard(call)
            self._changed.notify_all()

    def end_all(self, make_error: Callable[[], HeadraceError]) -> None:
        """End all open streams with this error, and refuse later ones."""
        with self._changed:
            self._end_error = make_error
            open_calls = list(self._open)
        for call in open_calls:
            call.cancel(make_error())

    def wait_until_ended(self) -> None:
        """Wait until no stream is open."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open)

    def runs_in_loop(self, call: StreamCall) -> bool:
        """Return True for a stream of an async generator."""
        return self.is_async if call.body is None else isinstance(call.body, AsyncIterator)

    def _start_thread(self, call: StreamCall) -> None:
        name = f"headrace-{self._name}-stream"
        threading.Thread(target=self._run, args=(call,), name=name, daemon=True).start()

    def _start_task(self, call: StreamCall) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run_async(call))
        # A task that is cancelled before its first step does not run at all.
        task.add_done_callback(lambda _: call.end(self._cancelled()))

        def stop() -> None:
            with suppress(RuntimeError):  # the client's event loop is closed, and the task with it
                loop.call_soon_threadsafe(task.cancel)

        call.on_cancel(stop)

    async def _run_async(self, call: StreamCall) -> None:
        # A cancellation of the task closes the generator.
        CALL.set(call)
        error: BaseException | None = None
        try:
            await self._iterate(call)
        except BaseException as raised:  # noqa: BLE001 - whatever a model raises ends its stream only
            error = self._as_error(raised, call)
        call.end(error)

    async def _iterate(self, call: StreamCall) -> None:
        items = call.body or self._generator(_AsyncRequests(call.requests), "__anext__")
        yield_at_s = self._clock.now() + YIELD_INTERVAL_S
        try:
            async for item in items:
                await call.responses.aput(self._item(item, call))
                if self._clock.now() >= yield_at_s:
                    await asyncio.sleep(0)
                    yield_at_s = self._clock.now() + YIELD_INTERVAL_S
        finally:
            if hasattr(items, "aclose"):
                await items.aclose()

    def _run(self, call: StreamCall) -> None:
        token = CALL.set(call)
        error: BaseException | None = None
        try:
            self._iterate_locked(call)
        except BaseException as raised:  # noqa: BLE001 - see `_run_async`
            error = self._as_error(raised, call)
        finally:
            CALL.reset(token)
        call.end(error)

    def _iterate_locked(self, call: StreamCall) -> None:
        with self._model_lock:
            items = call.body or self._generator(_BlockingRequests(call, self._model_lock), "__next__")
        end = object()
        try:
            while True:
                if call.responses.abandoned:
                    raise self._cancelled()
                with self._model_lock:
                    item = next(items, end)
                if item is end:
                    return
                call.responses.put(self._item(item, call))
        finally:
            # An iterator that is not a generator, such as a map, may have no close().
            if hasattr(items, "close"):
                with self._model_lock:
                    items.close()

    def _generator(self, requests: Any, step: str) -> Any:
        items: Any = self._predict_stream(requests)
        if hasattr(items, step):
            return items
        if inspect.iscoroutine(items):
            items.close()
        raise ModelContractError(self._name, "predict_stream must be a generator, but has no yield")

    def _cancelled(self) -> CancelledRequestError:
        """Return the error of a cancelled stream."""
        return CancelledRequestError(f"model {self._name}: the stream was cancelled")

    def _as_error(self, raised: BaseException, call: StreamCall) -> BaseException:
        if call.responses.abandoned and isinstance(raised, (asyncio.CancelledError, CancelledRequestError)):
            return self._cancelled()
        if raised is call.requests.error:
            return raised
        if (lost := self._lost_error(raised)) is not None:
            return lost
        # The client receives the message alone.
        traceback = self._traceback_of(raised)
        self._traceback_log.add(traceback)
        return reported_error(self._name, raised, traceback)

    def _item(self, item: Any, call: StreamCall) -> InferResponse | bytes:
        return self.response(item, call.id) if call.body is None else _chunk(self._name, item)

    def response(self, item: Any, id: str) -> InferResponse:
        """Return the yielded item as a response. Raises ModelContractError for an invalid item."""
        if isinstance(item, InferResponse):
            return replace(
                item,
                model_name=item.model_name or self._name,
                model_version=item.model_version or self._version,
                id=item.id or id,
            )
        if type(item) is dict or isinstance(item, Mapping):
            named: Mapping[Any, Any] = cast("Mapping[Any, Any]", item)
        else:
            named = {self._names[0] if len(self._names) == 1 else "output": item}
        tensors = tuple([Tensor(str(name), self._array(name, data)) for name, data in named.items()])
        if not tensors:
            raise ModelContractError(self._name, "predict_stream yielded an empty mapping")
        return InferResponse(tensors, self._name, self._version, id)

    def _array(self, name: Any, data: Any) -> Any:
        """Return an array; text as objects. Values that are no arrays get one axis."""
        try:
            if isinstance(data, str | bytes):
                return text_array([data])
            if isinstance(data, list) and data and isinstance(data[0], str):
                # Numpy would pad all elements to the longest.
                return text_array(cast("list[object]", data))
            array: Array = np.asarray(cast("Any", data))
            if array.ndim == 0 and not isinstance(data, np.ndarray):
                if array.dtype.kind == "O":
                    kind = type(cast("Any", data)).__name__
                    raise TypeError(f"it is a {kind}")  # noqa: TRY301 - reported as numpy's own errors are
                array = array.reshape(1)
            return array.astype(object) if datatype_of(array.dtype) == "BYTES" else array
        except (TypeError, ValueError) as error:
            raise ModelContractError(
                self._name,
                f"predict_stream yielded {name!r}, which cannot be converted to an array: {error}",
            ) from error


def _chunk(model: str, item: Any) -> bytes:
    """Return one chunk of a body. Raises ModelContractError for anything but bytes and text."""
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, (bytearray, memoryview)):
        return bytes(cast("bytes", item))
    raise ModelContractError(model, f"a body of handle yielded a {type(item).__name__}: yield bytes or text")


class _AsyncRequests(AsyncIterator[InferRequest]):
    """The requests for an async generator. Not a generator itself: that would need to be closed."""

    def __init__(self, requests: Pipe[InferRequest]) -> None:
        self._requests = requests
        self._arrived: list[InferRequest] = []

    async def __anext__(self) -> InferRequest:
        if not self._arrived:
            self._arrived = (await self._requests.aget())[::-1]
        if not self._arrived:
            raise StopAsyncIteration
        return self._arrived.pop()


class _BlockingRequests(Iterator[InferRequest]):
    """The requests for a plain generator. The model's lock is free while it waits for one."""

    def __init__(self, call: StreamCall, model_lock: AbstractContextManager[Any]) -> None:
        self._call = call
        self._model_lock = model_lock
        self._arrived: list[InferRequest] = []

    def __next__(self) -> InferRequest:
        requests = self._call.requests
        if self._call.responses.abandoned:
            raise CancelledRequestError("the client has closed the stream")
        if not self._arrived:
            self._arrived = requests.take()[::-1]
        if not self._arrived:
            # The caller of next() holds the lock, and needs it again before the model's code
            # continues.
            self._model_lock.__exit__(None, None, None)
            try:
                self._arrived = requests.get()[::-1]
            finally:
                self._model_lock.__enter__()
        if not self._arrived:
            raise StopIteration
        return self._arrived.pop()
