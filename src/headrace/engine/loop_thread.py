"""A thread with an event loop of its own."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headrace.engine.reason import ToldError, reason


class LoopThread:
    """Runs an event loop in a thread until it is stopped."""

    def __init__(self, name: str) -> None:
        self._runner = asyncio.Runner()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        with self._runner:
            self.loop = self._runner.get_loop()
            self._over = asyncio.Event()
            started.set()
            self._runner.run(self._over.wait())

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a function in the loop, and await what it returns where that is a coroutine. Any other thread."""
        return asyncio.run_coroutine_threadsafe(_called(function), self.loop)

    def stop(self) -> None:
        """Cancel what runs, and end the thread."""
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


async def _called(function: Callable[[], Any]) -> Any:
    try:
        result = function()
        return await result if inspect.iscoroutine(result) else result
    except (SystemExit, KeyboardInterrupt) as error:
        # They would end the loop, and with it everything else that runs there.
        raise ToldError(reason(error)) from error
