"""gRPC methods whose calls are counted, and observed where somebody asks; whatever carries them."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from headrace.server.answers import Answers
from headrace.server.errors import GrpcCode, quiet_status_of
from headrace.server.grpc_contract import Call, Method, Stream, Unary
from headrace.server.observation import CURRENT, Observation, Observers

_OK: Final = GrpcCode.OK.name
_CANCELLED: Final = GrpcCode.CANCELLED.name


def observed(
    methods: Mapping[str, Method],
    answers: Answers,
    observers: Observers | None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Method]:
    """The same methods; `answers` counts every call when it is over, by the method's name and its code.

    While a call is observed it is `CURRENT`, for its handlers to fill in. `clock` is the engines'.
    """
    watch = _Watch(answers, observers, clock)
    return {path: _method(path, method, watch) for path, method in methods.items()}


def _method(path: str, method: Method, watch: "_Watch") -> Method:
    if method.unary is not None:
        return Method(unary=_unary(path, method.unary, watch))
    assert method.stream is not None
    return Method(stream=_stream(path, method.stream, watch))


class _Watch:
    """What begins and ends with every call."""

    def __init__(self, answers: Answers, observers: Observers | None, clock: Callable[[], float]) -> None:
        self.answers = answers
        self.observes = observers is not None
        self._observers = observers
        self._clock = clock

    def begin(self, path: str, action: str, call: Call) -> Observation | None:
        if self._observers is None:
            return None
        seen = Observation("grpc", "POST", path, began_s=self._clock(), header=call.metadata)
        seen.action = action
        CURRENT.set(seen)
        self._observers.begin(seen)
        return seen

    def items(self, seen: Observation, messages: Sequence[bytes]) -> None:
        seen.sent(len(messages), self._clock())
        seen.bytes_out += sum(map(len, messages))

    def end(self, action: str, code: str, seen: Observation | None) -> None:
        self.answers.add(action, code)
        if seen is not None and self._observers is not None:
            seen.status, seen.ended_s = code, self._clock()
            self._observers.end(seen)


def _unary(path: str, answer: Unary, watch: _Watch) -> Unary:
    action = path.rpartition("/")[2]
    if not watch.observes:
        return _counted(action, answer, watch.answers)

    async def observed(call: Call, data: bytes) -> bytes:
        seen = watch.begin(path, action, call)
        code = _CANCELLED
        try:
            reply = answer(call, data)
            if not isinstance(reply, bytes):
                reply = await reply
            code = _OK
            if seen is not None:
                seen.bytes_in, seen.bytes_out = len(data), len(reply)
        except Exception as error:
            code = _failed(error, seen)
            raise
        finally:
            watch.end(action, code, seen)
        return reply

    return observed


def _counted(action: str, answer: Unary, answers: Answers) -> Unary:
    """Where nobody observes: no more than what is needed on the way of every call."""

    def counted(call: Call, data: bytes) -> bytes | Awaitable[bytes]:
        try:
            reply = answer(call, data)
        except Exception as error:
            answers.add(action, _failed(error, None))
            raise
        if not isinstance(reply, bytes):
            return later(reply)
        answers.add(action, _OK)
        return reply

    async def later(awaited: Awaitable[bytes]) -> bytes:
        code = _CANCELLED
        try:
            reply = await awaited
            code = _OK
        except Exception as error:
            code = _failed(error, None)
            raise
        finally:
            answers.add(action, code)
        return reply

    return counted


def _stream(path: str, answer: Stream, watch: _Watch) -> Stream:
    action = path.rpartition("/")[2]

    async def counted(call: Call, requests: AsyncIterator[bytes]) -> AsyncGenerator[Sequence[bytes], None]:
        seen = watch.begin(path, action, call)
        code = _CANCELLED
        replies = answer(call, requests)
        try:
            async for some in replies:
                if seen is not None:
                    watch.items(seen, some)
                yield some
            code = _OK
        except Exception as error:
            code = _failed(error, seen)
            raise
        finally:
            await replies.aclose()
            watch.end(action, code, seen)

    return counted


def _failed(error: Exception, seen: Observation | None) -> str:
    # Its carrier logs what was not expected.
    status = quiet_status_of(error)
    if seen is not None:
        seen.failed(error, status)
    return status.grpc.name
