"""The lifecycle of a server: open the listeners, load the models, serve, drain, stop."""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Sequence
from typing import Final

from headrace.core.errors import StoppedError
from headrace.core.predictor import Service
from headrace.server.dataplane import Dataplane
from headrace.server.listener import Listener
from headrace.server.settings import DrainSettings

_log = logging.getLogger("headrace.server")

ERRORS_S: Final = 1.0
"""The seconds after the grace period in which cancelled requests receive their errors."""
IDLE_STOP_S: Final = 0.5
"""The seconds within which listeners without requests close."""


class Serving:
    """The run of one server: listeners over the models of one repository. Use it once.

    The `listeners` open in order, before the models load, so that liveness probes succeed
    meanwhile. The `stopped_last` listeners (metrics) close after everything else. `repository` is
    the service behind the listeners: models, and possibly other services.
    """

    def __init__(
        self,
        repository: Service,
        dataplane: Dataplane,
        listeners: Sequence[Listener],
        *,
        stopped_last: Sequence[Listener] = (),
        drain: DrainSettings | None = None,
    ) -> None:
        self._repository = repository
        self._dataplane = dataplane
        self._listeners = listeners
        self._stopped_last = stopped_last
        self._drain = drain or DrainSettings()
        self._stop = asyncio.Event()
        self._force_stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Stop gracefully. A second call stops at once. Call it in the event loop."""
        if self._stop.is_set():
            self._force_stop.set()
        self._stop.set()

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
            loop.add_signal_handler(number, self.stop)
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
                self._dataplane.drain()
                _log.info(
                    "draining", extra={"notice_s": self._drain.notice_s, "grace_s": self._drain.grace_s}
                )
                await self._wait(self._drain.notice_s)
        finally:
            await self._close()
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
