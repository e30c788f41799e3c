"""A reading of a ledger that many scrapes, probes and autoscalers share.

Readings happen in a thread of their own: their readers neither load the database nor wait long for it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import JobLedgerUnavailableError

SHARED_S: Final = 5.0
"""The default time for which readers share a reading."""
READING_SHARE: Final = 0.1
"""The largest share of time in which the ledger is read."""
WAIT_S: Final = 3.0
"""The default limit of waits for the ledger. Prometheus gives up after 10 s by default."""

_Result = TypeVar("_Result")
_log = logging.getLogger("headrace.jobs")


class SharedReading(Generic[_Result]):
    """A reading that threads and event loops share for some seconds. It never runs twice at once.

    Args:
        read: The reading. It may raise, and may block for long.
        shared_s: The time for which readers share a reading.
        clock: The clock of ages.
        wait_s: The longest wait of a reader.
    """

    def __init__(
        self,
        read: Callable[[], _Result],
        *,
        shared_s: float = SHARED_S,
        clock: Clock | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        self._read = read
        self._shared_s = shared_s
        self._clock = clock or SystemClock()
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._current: Future[_Result] | None = None
        self._expires_s = 0.0
        self._succeeded_s: float | None = None

    def latest(self) -> _Result | None:
        """Return the current reading, as `result` does. None if it failed or takes long."""
        try:
            return self.result()
        except Exception:  # noqa: BLE001 - `_run` logged it
            return None

    def result(self) -> _Result:
        """Return the current reading, after a new one if it is too old.

        Raise what the reading raised, or JobLedgerUnavailableError if it takes longer than `wait_s`.
        """
        try:
            return self._reading().result(self._wait_s)
        except TimeoutError as error:
            raise self._overdue() from error

    async def wait(self) -> _Result:
        """Return the current reading, as `result` does. The wait takes no thread, and can be cancelled."""
        # The shield: a client that disconnects must not cancel the reading of the others.
        reading = asyncio.shield(asyncio.wrap_future(self._reading()))
        try:
            # Not `wait_for`: until Python 3.12 it ignores a cancellation that comes with the result.
            async with asyncio.timeout(self._wait_s):
                return await reading
        except TimeoutError as error:
            raise self._overdue() from error

    def succeeded_within(self, seconds: float) -> bool:
        """Return True if a reading succeeded in the last `seconds`."""
        with self._lock:
            return self._succeeded_s is not None and self._clock.now() - self._succeeded_s <= seconds

    def _reading(self) -> Future[_Result]:
        """Return the current reading. Begin a new one if it is too old."""
        with self._lock:
            current = self._current
            if current is None or (current.done() and self._clock.now() >= self._expires_s):
                current = self._current = Future()
                threading.Thread(
                    target=self._run, args=(current,), name="headrace-ledger-reading", daemon=True
                ).start()
            return current

    def _overdue(self) -> JobLedgerUnavailableError:
        return JobLedgerUnavailableError(f"the ledger did not respond within {self._wait_s:g} s")

    def _run(self, future: Future[_Result]) -> None:
        began_s = self._clock.now()
        try:
            result = self._read()
        except BaseException as error:  # noqa: BLE001 - the thread must end the future
            if not isinstance(error, JobLedgerUnavailableError):
                _log.exception("the ledger could not be read")
            self._end(began_s, succeeded=False)
            future.set_exception(error)
        else:
            self._end(began_s, succeeded=True)
            future.set_result(result)

    def _end(self, began_s: float, *, succeeded: bool) -> None:
        with self._lock:
            now_s = self._clock.now()
            self._expires_s = now_s + max(self._shared_s, (now_s - began_s) / READING_SHARE)
            if succeeded:
                self._succeeded_s = now_s
