"""A thread with an event loop of its own."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from headrace.engine.model_errors import RemoteError, describe_error


class LoopThread:
    """An event loop that runs in a thread until it is stopped."""

    def __init__(self, name: str) -> None:
        self._runner = asyncio.Runner()
        started = Future[None]()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.result()

    def _run(self, started: "Future[None]") -> None:
        try:
            self.loop = self._runner.get_loop()
        except BaseException as error:  # noqa: BLE001 - raised again in the constructor
            started.set_exception(error)
            return
        with self._runner:
            self._over = asyncio.Event()
            started.set_result(None)
            self._runner.run(self._over.wait())

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a function in the loop, and await its result if that is a coroutine.

        Any other thread.
        """
        return asyncio.run_coroutine_threadsafe(_called(function), self.loop)

    def stop(self) -> None:
        """Cancel the running tasks and end the thread. Does nothing the second time."""
        with suppress(RuntimeError):  # the loop is closed already
            self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


async def _called(function: Callable[[], Any]) -> Any:
    try:
        result = function()
        return await result if inspect.iscoroutine(result) else result
    except (SystemExit, KeyboardInterrupt) as error:
        # They would end the loop and all other tasks in it.
        raise RemoteError(describe_error(error)) from error
