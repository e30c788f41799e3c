"""Streams of a model: what runs `predict_stream`, and what its caller holds.

Arrives: requests, one or many. Leaves: responses as the model yields them, in order. An ``async def`` generator runs as a
task of its instance's event loop, a plain one in a thread of its own that holds the instance's lock only while the
model's code runs.
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from headrace.core.call import CALL
from headrace.core.clock import Clock
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    HeadraceError,
    ModelContractError,
)
from headrace.core.model import Model
from headrace.core.tensor import Array, InferRequest, InferResponse, Tensor, datatype_of, text_array
from headrace.engine.pipe import Pipe
from headrace.engine.reason import failure

ITEMS_MAX: Final = 256
"""Responses, and requests, of one stream that may be on the way before its producer waits."""
TURN_S: Final = 0.001
"""How long a stream that never waits may keep its event loop before others get their turn."""


class StreamCall:
    """One stream while it is open: its pipes, and what its model can ask about it (`headrace.core.call.Call`)."""

    def __init__(self, clock: Clock, *, deadline: float | None, id: str) -> None:
        self.requests: Pipe[InferRequest] = Pipe(ITEMS_MAX)
        self.answers: Pipe[InferResponse] = Pipe(ITEMS_MAX)
        self.deadline = deadline
        self.id = id
        self.items = 0
        """Responses that were taken."""
        self._clock = clock
        self._stop: Callable[[], object] | None = None
        self._ended: Callable[[], object] | None = None
        self._why: HeadraceError | None = None
        self._over = False
        self._lock = threading.Lock()

    @property
    def deadline_s(self) -> float | None:
        """See `Call`."""
        return None if self.deadline is None else self.deadline - self._clock.now()

    @property
    def cancelled(self) -> bool:
        """See `Call`."""
        return self.answers.abandoned or (self.deadline is not None and self._clock.now() >= self.deadline)

    def on_cancel(self, stop: Callable[[], object]) -> None:
        """What to call, once, when the caller goes; at once, when it has gone already."""
        with self._lock:
            gone = self.answers.abandoned
            self._stop = None if gone else stop
        if gone:
            stop()

    def on_end(self, ended: Callable[[], object]) -> None:
        """What to call, once, when the model has ended."""
        self._ended = ended

    def cancel(self, why: HeadraceError | None = None) -> None:
        """The caller has gone, or is sent away with `why`; the model's generator is closed as soon as it can be."""
        with self._lock:
            if self._over:
                return  # what is still on the way is all there was, for a caller who is not the one that cancels
            self._why = self._why or why
            self.answers.abandon()
            stop, self._stop = self._stop, None
        self.requests.close(CancelledRequestError("whoever asked has gone"))
        if stop is not None:
            stop()

    def end(self, error: BaseException | None = None) -> None:
        """The model has ended: no more answers; no more requests are taken. The first call counts."""
        with self._lock:
            ended, self._ended, self._stop = self._ended, None, None
            why, self._over = self._why, True
        self.requests.abandon()
        if self.answers.abandoned:
            # However it ended: what was dropped must not look like all there was.
            error = why or error or CancelledRequestError("the stream was cancelled")
        self.answers.close(error)
        if ended is not None:
            ended()


class StreamModel:
    """Runs the `predict_stream` of one instance. `turns` is held while the code of a plain generator runs."""

    def __init__(
        self,
        model: Model,
        name: str,
        version: str | None,
        *,
        clock: Clock,
        turns: AbstractContextManager[Any],
    ) -> None:
        self._predict_stream = model.predict_stream
        self._names = [s.name for s in model.outputs]
        self._name = name
        self._version = version
        self._clock = clock
        self._turns = turns
        self.is_async = inspect.isasyncgenfunction(model.predict_stream)

    def run_in_thread(self, call: StreamCall) -> threading.Thread:
        """Begin a stream of a plain generator."""
        thread = threading.Thread(
            target=self._run, args=(call,), name=f"headrace-{self._name}-stream", daemon=True
        )
        thread.start()
        return thread

    async def run(self, call: StreamCall) -> None:
        """A stream of an async generator, to its end; cancel the task to close the generator."""
        CALL.set(call)
        error: BaseException | None = None
        try:
            await self._iterate(call)
        except BaseException as raised:  # noqa: BLE001 - whatever a model raises ends its stream, nothing more
            error = self._as_error(raised, call)
        call.end(error)

    async def _iterate(self, call: StreamCall) -> None:
        items = self._generator(_Arriving(call.requests), "__anext__")
        turn_ends_s = self._clock.now() + TURN_S
        try:
            async for item in items:
                response = self.response(item, call.id)
                await call.answers.aput(response)
                if self._clock.now() >= turn_ends_s:
                    await asyncio.sleep(0)
                    turn_ends_s = self._clock.now() + TURN_S
        finally:
            await items.aclose()

    def _run(self, call: StreamCall) -> None:
        token = CALL.set(call)
        error: BaseException | None = None
        try:
            self._iterate_in_turns(call)
        except BaseException as raised:  # noqa: BLE001 - see `run`
            error = self._as_error(raised, call)
        finally:
            CALL.reset(token)
        call.end(error)

    def _iterate_in_turns(self, call: StreamCall) -> None:
        with self._turns:
            items = self._generator(_Waiting(call, self._turns), "__next__")
        end = object()
        try:
            while True:
                if call.answers.abandoned:
                    raise self.cancelled()
                with self._turns:
                    item = next(items, end)
                if item is end:
                    return
                call.answers.put(self.response(item, call.id))
        finally:
            # An iterator that is no generator, such as a map, has nothing to be closed.
            if hasattr(items, "close"):
                with self._turns:
                    items.close()

    def _generator(self, requests: Any, step: str) -> Any:
        items: Any = self._predict_stream(requests)
        if hasattr(items, step):
            return items
        if inspect.iscoroutine(items):
            items.close()
        raise ModelContractError(self._name, "predict_stream must be a generator: it has no yield")

    def cancelled(self) -> CancelledRequestError:
        """What a stream comes to that its caller left."""
        return CancelledRequestError(f"model {self._name}: the stream was cancelled")

    def _as_error(self, raised: BaseException, call: StreamCall) -> BaseException:
        if call.answers.abandoned and isinstance(raised, (asyncio.CancelledError, CancelledRequestError)):
            return self.cancelled()
        return raised if raised is call.requests.error else failure(self._name, raised)

    def response(self, item: Any, id: str) -> InferResponse:
        """What the model yielded, as a response. Raises ModelContractError for what is none."""
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
        """An array with at least the axis of rows; text as objects."""
        try:
            if isinstance(data, str | bytes):
                return text_array([data])
            if isinstance(data, list) and data and isinstance(data[0], str):
                # Numpy would pad them all to the longest first.
                return text_array(cast("list[object]", data))
            array: Array = np.asarray(cast("Any", data))
            if array.ndim == 0:
                if array.dtype.kind == "O":
                    raise TypeError(f"it is a {type(cast('Any', data)).__name__}")  # noqa: TRY301 - told like numpy's own
                array = array.reshape(1)
            return array.astype(object) if datatype_of(array.dtype) == "BYTES" else array
        except (TypeError, ValueError) as error:
            raise ModelContractError(
                self._name,
                f"predict_stream yielded {name!r}, which is no array that can be handed on: {error}",
            ) from error


class _Arriving(AsyncIterator[InferRequest]):
    """Requests for an async generator. No generator itself: that would have to be closed, in its own event loop."""

    def __init__(self, requests: Pipe[InferRequest]) -> None:
        self._requests = requests
        self._arrived: list[InferRequest] = []

    async def __anext__(self) -> InferRequest:
        if not self._arrived:
            self._arrived = (await self._requests.aget())[::-1]
        if not self._arrived:
            raise StopAsyncIteration
        return self._arrived.pop()


class _Waiting(Iterator[InferRequest]):
    """Requests for a plain generator: others have their turn while it waits for one."""

    def __init__(self, call: StreamCall, turns: AbstractContextManager[Any]) -> None:
        self._call = call
        self._turns = turns
        self._arrived: list[InferRequest] = []

    def __next__(self) -> InferRequest:
        requests = self._call.requests
        if self._call.answers.abandoned:
            raise CancelledRequestError("whoever asked has gone")
        if not self._arrived:
            self._arrived = requests.take()[::-1]
        if not self._arrived:
            # The caller of next() holds the turn; it gets it back before the model's code goes on.
            self._turns.__exit__(None, None, None)
            try:
                self._arrived = requests.get()[::-1]
            finally:
                self._turns.__enter__()
        if not self._arrived:
            raise StopIteration
        return self._arrived.pop()


class AnswerStream:
    """What the caller of a stream holds, in its own event loop: responses, as they come.

    Iterate it, or ask `some` for all that are there at once. `aclose` it whatever happens: before the end that
    cancels the model's work. Raises what the model raised, after the items before it; DeadlineError when its time is over.
    """

    def __init__(
        self, call: StreamCall, feeding: "asyncio.Task[None] | None", on_close: Callable[[StreamCall], None]
    ) -> None:
        self._call = call
        self._feeding = feeding
        self._on_close = on_close
        self._ready: list[InferResponse] = []
        self._over = False

    def __aiter__(self) -> "AnswerStream":
        """Itself: a stream is iterated once."""
        return self

    async def __anext__(self) -> InferResponse:
        """The next response."""
        if not self._ready:
            self._ready = (await self.some())[::-1]
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.pop()

    async def some(self) -> list[InferResponse]:
        """All responses that are there, at least one; none at the end."""
        if self._over:
            return []
        try:
            items = await self._some()
        except BaseException:
            await self.aclose()
            raise
        self._call.items += len(items)
        if not items:
            await self.aclose()
        return items

    async def _some(self) -> list[InferResponse]:
        left_s = self._call.deadline_s
        if left_s is None:
            return await self._call.answers.aget()
        if left_s <= 0:
            # A model that is never waited for would never be late.
            raise self._late()
        timeout = asyncio.timeout(left_s)
        try:
            async with timeout:
                return await self._call.answers.aget()
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self._late() from None

    def _late(self) -> DeadlineError:
        name = f"stream {self._call.id}" if self._call.id else "a stream"
        return DeadlineError(f"{name} did not end before its deadline")

    async def aclose(self) -> None:
        """End it; nothing further comes. Does nothing the second time."""
        if self._over:
            return
        self._over = True
        self._ready.clear()
        self._call.cancel()
        try:
            if self._feeding is not None:
                self._feeding.cancel()
                # Not awaited itself: its being cancelled and ours could not be told apart.
                await asyncio.wait((self._feeding,))
        finally:
            self._on_close(self._call)
