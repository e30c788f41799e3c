"""gRPC methods with response counters and observers, independent of the transport."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from headrace.server.errors import GrpcCode, quiet_status_of
from headrace.server.listener import GrpcCall, GrpcMethod, StreamHandler, UnaryHandler
from headrace.server.observation import CURRENT, Observers, RequestObservation, ResponseCounters

_OK: Final = GrpcCode.OK.name
_CANCELLED: Final = GrpcCode.CANCELLED.name


def observe_methods(
    methods: Mapping[str, GrpcMethod],
    counters: ResponseCounters,
    observers: Observers | None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, GrpcMethod]:
    """Return the methods, wrapped so that each finished call is counted and observed.

    `counters` count calls by the name of the method and the status code. A running call is
    `CURRENT` while it is observed, so that its handler can fill the observation in. `clock` is the
    clock of the engines.
    """
    observer = _CallObserver(counters, observers, clock)
    return {path: _method(path, method, observer) for path, method in methods.items()}


def _method(path: str, method: GrpcMethod, observer: "_CallObserver") -> GrpcMethod:
    if method.unary is not None:
        return GrpcMethod(unary=_unary(path, method.unary, observer))
    assert method.stream is not None
    return GrpcMethod(stream=_stream(path, method.stream, observer))


class _CallObserver:
    """The steps at the begin and at the end of every call."""

    def __init__(
        self, counters: ResponseCounters, observers: Observers | None, clock: Callable[[], float]
    ) -> None:
        self.counters = counters
        self.is_observing = observers is not None
        self._observers = observers
        self._clock = clock

    def begin(self, path: str, action: str, call: GrpcCall) -> RequestObservation | None:
        if self._observers is None:
            return None
        observation = RequestObservation("grpc", "POST", path, began_s=self._clock(), header=call.metadata)
        observation.action = action
        CURRENT.set(observation)
        self._observers.begin(observation)
        return observation

    def items(self, observation: RequestObservation, messages: Sequence[bytes]) -> None:
        observation.on_items_sent(len(messages), self._clock())
        observation.bytes_out += sum(map(len, messages))

    def end(self, action: str, code: str, observation: RequestObservation | None) -> None:
        self.counters.add(action, code)
        if observation is not None and self._observers is not None:
            observation.status, observation.ended_s = code, self._clock()
            self._observers.end(observation)


def _unary(path: str, handler: UnaryHandler, observer: _CallObserver) -> UnaryHandler:
    action = path.rpartition("/")[2]
    if not observer.is_observing:
        return _count_calls(action, handler, observer.counters)

    async def handle(call: GrpcCall, data: bytes) -> bytes:
        observation = observer.begin(path, action, call)
        code = _CANCELLED
        try:
            response = handler(call, data)
            if not isinstance(response, bytes):
                response = await response
            code = _OK
            if observation is not None:
                observation.bytes_in, observation.bytes_out = len(data), len(response)
        except Exception as error:
            code = _record_error(error, observation)
            raise
        finally:
            observer.end(action, code, observation)
        return response

    return handle


def _count_calls(action: str, handler: UnaryHandler, counters: ResponseCounters) -> UnaryHandler:
    """Return a handler that only counts, with the least work for each call."""

    def counted(call: GrpcCall, data: bytes) -> bytes | Awaitable[bytes]:
        try:
            response = handler(call, data)
        except Exception as error:
            counters.add(action, _record_error(error, None))
            raise
        if not isinstance(response, bytes):
            return later(response)
        counters.add(action, _OK)
        return response

    async def later(awaited: Awaitable[bytes]) -> bytes:
        code = _CANCELLED
        try:
            response = await awaited
            code = _OK
        except Exception as error:
            code = _record_error(error, None)
            raise
        finally:
            counters.add(action, code)
        return response

    return counted


def _stream(path: str, handler: StreamHandler, observer: _CallObserver) -> StreamHandler:
    action = path.rpartition("/")[2]

    async def counted(
        call: GrpcCall, requests: AsyncIterator[bytes]
    ) -> AsyncGenerator[Sequence[bytes], None]:
        observation = observer.begin(path, action, call)
        code = _CANCELLED
        responses = handler(call, requests)
        try:
            async for batch in responses:
                if observation is not None:
                    observer.items(observation, batch)
                yield batch
            code = _OK
        except Exception as error:
            code = _record_error(error, observation)
            raise
        finally:
            await responses.aclose()
            observer.end(action, code, observation)

    return counted


def _record_error(error: Exception, observation: RequestObservation | None) -> str:
    # The transport logs unexpected errors.
    status = quiet_status_of(error)
    if observation is not None:
        observation.on_error(error, status)
    return status.grpc.name
