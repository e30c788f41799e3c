"""A server's life: open the doors, load the models, answer, drain, leave."""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.errors import StoppedError
from headrace.core.service import Service
from headrace.server.dataplane import Dataplane
from headrace.server.listen import Listener

_log = logging.getLogger("headrace.server")


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """How a server leaves.

    On the first SIGTERM or SIGINT it says that it is not ready, goes on answering for `notice_s` so that whoever sends it
    requests can look elsewhere, takes no new connections then, and finishes what is under way for at most `grace_s`. The
    second signal ends it at once.
    """

    notice_s: float = 0.0
    grace_s: float = 30.0


class Serving:
    """Runs listeners over the models of one repository; use it once.

    `listeners` are opened in order, before the models are loaded, so that liveness can be asked while they load; `last`
    are closed after everything else has ended: metrics. `repository` is what answers: models, perhaps with what works by them.
    """

    def __init__(
        self,
        repository: Service,
        dataplane: Dataplane,
        listeners: Sequence[Listener],
        *,
        last: Sequence[Listener] = (),
        drain: DrainSettings | None = None,
    ) -> None:
        self._repository = repository
        self._dataplane = dataplane
        self._listeners = listeners
        self._last = last
        self._drain = drain or DrainSettings()
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Leave gracefully; the second time, at once. In the event loop."""
        if self._stop.is_set():
            self._at_once.set()
        self._stop.set()

    def stop_soon(self) -> None:
        """What `stop` does, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.stop)

    async def run(self, on_ready: Callable[[], None] | None = None, *, signals: bool = True) -> None:
        """Serve until stopped. Raises what kept it from being ready; `on_ready` is called when it is."""
        self._loop = loop = asyncio.get_running_loop()
        taken = (signal.SIGTERM, signal.SIGINT) if signals else ()
        for number in taken:
            loop.add_signal_handler(number, self.stop)
        try:
            await self._open()
            if await self._loaded():
                # What is there now stays: the collector need not look at it again and again.
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
            for number in taken:
                loop.remove_signal_handler(number)

    async def _open(self) -> None:
        for listener in (*self._last, *self._listeners):
            await listener.start()

    async def _loaded(self) -> bool:
        """Load the models; False when it is stopped meanwhile."""
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
                await self._at_once.wait()
        except TimeoutError:
            return

    async def _close(self) -> None:
        closing = asyncio.ensure_future(self._finish())
        hurrying = asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait({closing, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not closing.done():
            await asyncio.to_thread(self._repository.stop, drain=False)
            await asyncio.gather(*(listener.stop(0) for listener in self._listeners))
            closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await asyncio.gather(*(listener.stop(1) for listener in self._last))

    async def _finish(self) -> None:
        """Doors first, so that nothing new comes; then the models, which finish what they have."""
        grace_s = self._drain.grace_s
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + grace_s
        await asyncio.gather(*(listener.stop(grace_s) for listener in self._listeners))
        stopping = asyncio.ensure_future(asyncio.to_thread(self._repository.stop, drain=True))
        _, late = await asyncio.wait({stopping}, timeout=max(ends_s - loop.time(), 0.1))
        if late:
            _log.warning("requests were cut off after the grace", extra={"grace_s": grace_s})
            await asyncio.to_thread(self._repository.stop, drain=False)
            await asyncio.wait({stopping})
