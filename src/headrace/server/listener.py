"""Listeners: their contracts, their settings, and the server that opens, drains and stops them.

A server opens and stops each socket through a `Listener`. A listener answers by an ASGI application
or by a table of `GrpcMethod`; a `DirectHandler` answers whole HTTP requests without ASGI. Importing
this module needs neither a package of a listener nor the engine.
"""

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

from headrace.core.errors import StoppedError
from headrace.core.predictor import Service
from headrace.core.settings import Setting, check
from headrace.server.exit_deadline import SECOND_SIGNAL_S, ExitDeadline

_log = logging.getLogger("headrace.server")

ERRORS_S: Final = 1.0
"""The seconds after the grace period in which cancelled requests receive their errors."""
EXIT_S: Final = 10.0
"""The seconds after that in which models and connections are closed."""
IDLE_STOP_S: Final = 0.5
"""The seconds within which listeners without requests close."""
BODY_S_MAX: Final = 300.0
"""The default maximum seconds for a request body to arrive."""


class Listener(Protocol):
    """A listening socket and its protocol.

    The event loop of the server runs both `start` and `stop`.
    """

    @property
    def address(self) -> str:
        """The address as a URL. It is known before `start`, except for a port that the system chooses."""
        ...

    async def start(self) -> None:
        """Accept requests from now on.

        Raises:
            ConfigError: The listener cannot be opened.
        """
        ...

    async def stop(self, grace_s: float) -> None:
        """Accept no more requests, finish the running ones, and cancel them after `grace_s` seconds.

        A second call meanwhile cancels them at once.
        """
        ...


class DirectResponse(NamedTuple):
    """A complete response."""

    status: int
    head: bytes
    """Header lines, each with its line end, without content-length."""
    body: bytes


DeferredResponse = Callable[[], Coroutine[Any, Any, DirectResponse]]
"""A response that takes time. The coroutine is cancelled when the client disconnects."""


class DirectHandler(Protocol):
    """A handler of ``POST`` requests that arrived whole, without an ASGI exchange.

    An exchange costs a task, four messages and a dozen objects, which is more than a fast model costs.
    A request that the handler declines becomes an ASGI exchange. The event loop calls the handler,
    which must be quick and must not raise.
    """

    def route(self, target: bytes) -> Any:
        """Return a value for `respond`, or None if this handler does not serve the target.

        `target` is the request target as sent.
        """
        ...

    def respond(
        self, route: Any, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> DirectResponse | DeferredResponse | None:
        """Return the response, a deferred response, or None to decline the request.

        The names of the headers are in lower case.
        """
        ...


StreamDialect = Literal["mlserver", "triton"]
"""The response formats of gRPC streams."""


class GrpcCall(Protocol):
    """One call, as its transport sees it."""

    __slots__ = ()

    def metadata(self, key: str) -> str | None:
        """Return the first value of a lower-case key, or None."""
        ...

    def remaining_s(self) -> float | None:
        """Return the seconds until the deadline of the call, or None without a deadline."""
        ...


UnaryHandler = Callable[[GrpcCall, bytes], bytes | Awaitable[bytes]]
"""A handler that returns a response, or an awaitable only if it has to wait: a coroutine costs as
much as a fast model.
"""
StreamHandler = Callable[[GrpcCall, AsyncIterator[bytes]], AsyncGenerator[Sequence[bytes], None]]
"""A handler that yields batches of messages. A batch has all messages that are ready."""


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """The handler of a path: exactly one of `unary` and `stream`.

    Both take and return encoded messages. The transport closes the stream that it iterates.
    Exceptions become statuses; see `errors`.
    """

    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None


class GrpcMethods(Protocol):
    """The methods of a gRPC listener."""

    def methods(self) -> dict[str, GrpcMethod]:
        """Return every method by its path, such as ``/inference.GRPCInferenceService/ModelInfer``."""
        ...

    def drain(self) -> None:
        """Prepare for the end of the listener: endless streams end. The event loop calls it."""
        ...


@dataclass(frozen=True, slots=True)
class RestLimits:
    """The limits of requests, and the compression of responses."""

    body_bytes_max: Annotated[int, Setting("Size limit of a decompressed request body.", least=0)] = 64 << 20
    body_s_max: Annotated[
        float,
        Setting("Seconds within which a request body must arrive.", above=0, most=inf, python_only=True),
    ] = BODY_S_MAX
    gzip_bytes_min: Annotated[
        int | None,
        Setting(
            "Size from which responses are gzipped, for clients that accept gzip.",
            least=0,
            python_only=True,
            default="never",
        ),
    ] = 64 << 10

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """The steps and times of a graceful stop.

    On the first SIGTERM or SIGINT the server reports that it is not ready. It serves for `notice_s`
    more seconds, so that load balancers can stop sending requests. Then it closes its listeners and
    finishes running requests within `grace_s` seconds. The requests that are left get an error, within
    `ERRORS_S` more seconds. A second signal stops it at once. The process ends at the latest `EXIT_S`
    seconds after these times, and `SECOND_SIGNAL_S` seconds after a second signal.
    """

    notice_s: Annotated[
        float,
        Setting(
            "Seconds after SIGTERM in which requests are accepted with readiness 'not ready'.",
            name="drain_notice_s",
            least=0,
            most=inf,
        ),
    ] = 0.0
    grace_s: Annotated[
        float,
        Setting(
            "Seconds after that in which running requests may finish.",
            name="drain_grace_s",
            least=0,
            most=inf,
        ),
    ] = 30.0

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a server. With `client_ca`, clients need a certificate signed by it."""

    certificate: Annotated[Path, Setting("PEM file of the server certificate.", name="tls_certificate")]
    key: Annotated[Path, Setting("PEM file of the server key.", name="tls_key")]
    client_ca: Annotated[
        Path | None,
        Setting("PEM file of the CA that must sign client certificates (mTLS).", name="tls_client_ca"),
    ] = None


class Serving:
    """The run of one server: listeners over the models of one repository. Use it once.

    The `listeners` open in order, before the models load, so that liveness probes succeed
    meanwhile. The `stopped_last` listeners (metrics) close after everything else. `repository` is
    the service behind the listeners: models, and possibly other services. `on_drain` is called when the
    server must no longer be ready.
    """

    def __init__(
        self,
        repository: Service,
        on_drain: Callable[[], None],
        listeners: Sequence[Listener],
        *,
        stopped_last: Sequence[Listener] = (),
        drain: DrainSettings | None = None,
    ) -> None:
        self._repository = repository
        self._on_drain = on_drain
        self._listeners = listeners
        self._stopped_last = stopped_last
        self._drain = drain or DrainSettings()
        self._stop = asyncio.Event()
        self._force_stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exit_deadline = ExitDeadline()

    def stop(self) -> None:
        """Stop gracefully. A second call stops at once. Call it in the event loop."""
        if self._stop.is_set():
            self._force_stop.set()
        self._stop.set()

    def _on_signal(self) -> None:
        drain = self._drain
        stop_s_max = drain.notice_s + max(drain.grace_s, IDLE_STOP_S) + ERRORS_S + EXIT_S
        self._exit_deadline.begin(SECOND_SIGNAL_S if self._stop.is_set() else stop_s_max)
        self.stop()

    def stop_threadsafe(self) -> None:
        """Call `stop` from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.stop)

    async def run(self, on_ready: Callable[[], None] | None = None, *, signals: bool = True) -> None:
        """Serve until `stop`. Call `on_ready` when the models are loaded.

        Raise the error that prevented the start.
        """
        self._loop = loop = asyncio.get_running_loop()
        handled_signals = (signal.SIGTERM, signal.SIGINT) if signals else ()
        for number in handled_signals:
            loop.add_signal_handler(number, self._on_signal)
        try:
            await self._open()
            if await self._load():
                # The objects of the start live as long as the server, so later collections can skip
                # them.
                gc.collect()
                gc.freeze()
                if on_ready is not None:
                    on_ready()
                await self._stop.wait()
                self._on_drain()
                _log.info(
                    "draining", extra={"notice_s": self._drain.notice_s, "grace_s": self._drain.grace_s}
                )
                await self._wait(self._drain.notice_s)
        finally:
            await self._close()
            self._exit_deadline.cancel()
            for number in handled_signals:
                loop.remove_signal_handler(number)

    async def _open(self) -> None:
        for listener in (*self._stopped_last, *self._listeners):
            await listener.start()

    async def _load(self) -> bool:
        """Load the models. Return False if the server was stopped meanwhile."""
        loading = asyncio.ensure_future(asyncio.to_thread(self._repository.start))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                await asyncio.to_thread(self._repository.stop, drain=False)
            await asyncio.wait({loading})
        finally:
            stopping.cancel()
        error = loading.exception()
        if error is not None and not (self._stop.is_set() and isinstance(error, StoppedError)):
            raise error
        return error is None and not self._stop.is_set()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._force_stop.wait()
        except TimeoutError:
            return

    async def _close(self) -> None:
        closing = asyncio.ensure_future(self._finish())
        forced = asyncio.ensure_future(self._force_stop.wait())
        await asyncio.wait({closing, forced}, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        if not closing.done():
            await asyncio.to_thread(self._repository.stop, drain=False)
            await asyncio.gather(*(listener.stop(0) for listener in self._listeners))
            closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await asyncio.gather(*(listener.stop(1) for listener in self._stopped_last))

    async def _finish(self) -> None:
        grace_s = self._drain.grace_s
        finishing = asyncio.ensure_future(self._close_and_drain(grace_s + ERRORS_S))
        try:
            _, late = await asyncio.wait({finishing}, timeout=max(grace_s, IDLE_STOP_S))
            if late:
                _log.warning(
                    "running requests were cancelled after the grace period", extra={"grace_s": grace_s}
                )
                # The listeners are open for a moment longer, so that streams and waiting requests
                # receive their errors.
                await asyncio.to_thread(self._repository.stop, drain=False)
            await finishing
        finally:
            finishing.cancel()

    async def _close_and_drain(self, grace_s: float) -> None:
        """Close the listeners, so that no new requests arrive; then let the models finish theirs."""
        await asyncio.gather(*(listener.stop(grace_s) for listener in self._listeners))
        await asyncio.to_thread(self._repository.stop, drain=True)
