"""The calls of a checkpoint store, in a thread of their own: a stalled store stops no other work."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

STORE_WAIT_S: Final = 0.1
"""Limit, in seconds, of the wait for a store call. Work that needs no store waits no longer."""


class StoreThread:
    """A thread for the store calls of one instance, which run in order.

    One thread at a time calls the methods. It waits for its call, which keeps the batches of a
    quick store together; but not for a slow call, nor for one behind that. Without `is_remote`,
    it makes each call itself.
    """

    def __init__(self, name: str, *, is_remote: bool) -> None:
        self._is_remote = is_remote
        # It starts its thread with its first call.
        self._executor = ThreadPoolExecutor(1, name)
        self._late: Future[None] | None = None
        """The last call that was not waited for."""

    def run(self, call: Callable[[], None], when_late: Callable[[BaseException | None], None]) -> bool:
        """Run a call of the store. Return True if it is finished; raise its error.

        Otherwise return False. Then `when_late` is called once the call is finished, with its error
        or None, before the next call begins. It must not raise.
        """
        if not self._is_remote:
            call()
            return True
        future = self._executor.submit(call)
        if self._late is None or self._late.done():
            try:
                error = future.exception(STORE_WAIT_S)
            except TimeoutError:
                pass
            else:
                if error is not None:
                    raise error
                return True
        self._late = future
        future.add_done_callback(lambda done: when_late(done.exception()))
        return False

    def wait(self) -> None:
        """Wait until all calls are finished, as long as the store takes."""
        if self._late is not None:
            # Behind the late calls, and what follows each of them.
            self._executor.submit(lambda: None).result()
            self._late = None

    def close(self) -> None:
        """Finish all calls, and end the thread."""
        self._executor.shutdown()
