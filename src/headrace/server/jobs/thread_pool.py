"""A thread pool for the blocking work of the job API, with limits on threads and waiting calls."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

from headrace.core.errors import OverloadedError, StoppedError

THREADS: Final = 16
CALLS_MAX: Final = 2_000
RETRY_AFTER_S: Final = 1.0

P = ParamSpec("P")
T = TypeVar("T")


class BoundedThreadPool:
    """Runs blocking calls for one event loop. The first call starts threads; `close` ends them."""

    def __init__(self, threads: int = THREADS, calls_max: int = CALLS_MAX) -> None:
        self._pool = ThreadPoolExecutor(threads, "headrace-jobs-api")
        self._calls_max = calls_max
        self._calls = 0

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call, or raise its error.

        If the waiting task is cancelled, the call still runs to its end.

        Raises:
            OverloadedError: Too many calls wait.
            StoppedError: The pool is closed.
        """
        if self._calls >= self._calls_max:
            raise OverloadedError(
                f"{self._calls_max} requests are running already", retry_after_s=RETRY_AFTER_S
            )
        try:
            future: Future[T] = self._pool.submit(partial(call, *args, **kwargs))
        except RuntimeError:
            raise StoppedError("the server is stopping") from None
        self._calls += 1
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _call_in_loop(loop, self._on_done))
        # The shield keeps a cancelled task from dropping a call that has not begun.
        return await asyncio.shield(asyncio.wrap_future(future))

    @property
    def calls(self) -> int:
        """The number of running and waiting calls."""
        return self._calls

    def close(self) -> None:
        """Accept no more calls, and wait for the running ones. A second call does nothing."""
        self._pool.shutdown(wait=True)

    def _on_done(self) -> None:
        self._calls -= 1


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    # A closed loop needs no count.
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
