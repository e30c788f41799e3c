"""Where a door's blocking work is done: a bounded number of threads, and of calls that wait for one."""

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


class Workroom:
    """Runs blocking calls for one event loop. Threads begin with the first call, and end with `close`."""

    def __init__(self, threads: int = THREADS, calls_max: int = CALLS_MAX) -> None:
        self._pool = ThreadPoolExecutor(threads, "headrace-jobs-api")
        self._calls_max = calls_max
        self._calls = 0

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the call returns or raises. OverloadedError where too many wait already, StoppedError after `close`.

        Whoever is cancelled meanwhile leaves the call to itself: it is finished all the same.
        """
        if self._calls >= self._calls_max:
            raise OverloadedError(
                f"{self._calls_max} requests are being worked on here", retry_after_s=RETRY_AFTER_S
            )
        try:
            done: Future[T] = self._pool.submit(partial(call, *args, **kwargs))
        except RuntimeError:
            raise StoppedError("this server is going down") from None
        self._calls += 1
        loop = asyncio.get_running_loop()
        done.add_done_callback(lambda _: _soon(loop, self._ended))
        # Shielded, so that what has not begun is not dropped half way through a caller's work.
        return await asyncio.shield(asyncio.wrap_future(done))

    @property
    def calls(self) -> int:
        """How many are under way or wait."""
        return self._calls

    def close(self) -> None:
        """Take no more calls, and wait for those that are under way. Twice does nothing."""
        self._pool.shutdown(wait=True)

    def _ended(self) -> None:
        self._calls -= 1


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    # A loop that has ended counts no more.
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
