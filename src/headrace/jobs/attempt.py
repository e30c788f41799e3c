"""One attempt at one job, as its kind sees it while it runs; and why it is told to stop."""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import StrEnum
from typing import Any, Final, TypeVar

from headrace.core.errors import HeadraceError
from headrace.jobs.job import Job, Progress

T = TypeVar("T")

_log = logging.getLogger("headrace.jobs")


class StopReason(StrEnum):
    """Why an attempt is told to stop."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """The job's deadline has passed."""
    TIME_LIMIT = "time_limit"
    LOST = "lost"
    """The lease is somebody else's now: nothing of this attempt counts any more."""
    DRAIN = "drain"
    """The worker is leaving: the job goes back, and goes on elsewhere."""


class AttemptStoppedError(HeadraceError):
    """The attempt was told to stop, and has. Never leaves the worker."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(f"the attempt was stopped: {reason.value}")
        self.reason: Final = reason


class Attempt:
    """One attempt. Its kind works in one thread; `stop` and what is read of it are for any.

    Whoever waits for anything long looks at it (`check`, `answer`) or is told (`on_stop`): an attempt that was stopped
    raises AttemptStoppedError soon, and what it has written by then counts for nothing.
    """

    def __init__(self, job: Job) -> None:
        self.job: Final = job
        self.cursor: Mapping[str, Any] | None = job.cursor
        self._lock = threading.Lock()
        self._stopped: StopReason | None = None
        self._on_stop: list[Callable[[], None]] = []
        self._changed = threading.Event()
        self._look: Callable[[], Progress | None] = lambda: None

    def report(self, look: Callable[[], Progress | None]) -> None:
        """How far it is, whenever somebody looks; from any thread, so it must be quick and must not raise."""
        self._look = look

    @property
    def progress(self) -> Progress | None:
        """How far it is; goes to the ledger with the next beat, and with its settlement. None where looking failed."""
        try:
            return self._look()
        except Exception:  # noqa: BLE001 - one that cannot tell must not cost the others their sign of life
            _log.exception("an attempt could not tell how far it is", extra={"job": self.job.id})
            return None

    @property
    def stopped(self) -> StopReason | None:
        """Why it was told to stop; None while it may go on."""
        return self._stopped

    def stop(self, reason: StopReason) -> None:
        """Tell it to stop. The first reason stands, but for LOST, which nothing excuses."""
        with self._lock:
            if self._stopped is not None:
                if reason is StopReason.LOST:
                    self._stopped = reason
                return
            self._stopped = reason
            told, self._on_stop = self._on_stop, []
        self._changed.set()
        for tell in told:
            try:
                tell()
            except Exception:  # noqa: BLE001 - the others must be told all the same
                _log.exception("an attempt could not be told to stop", extra={"job": self.job.id})

    def check(self) -> None:
        """Raise AttemptStoppedError when it was told to stop."""
        if self._stopped is not None:
            raise AttemptStoppedError(self._stopped)

    def on_stop(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when it is told to stop, in whichever thread says so; at once when it was."""
        with self._lock:
            if self._stopped is None:
                self._on_stop.append(tell)
                return
        tell()

    def answer(self, future: "Future[T]", abandon: Callable[["Future[T]"], None]) -> T:
        """What a future comes to. When told to stop meanwhile: abandon it, and raise AttemptStoppedError."""
        self._changed.clear()
        future.add_done_callback(lambda _: self._changed.set())
        while not future.done():
            if self._stopped is not None:
                abandon(future)
                raise AttemptStoppedError(self._stopped)
            self._changed.wait()
            self._changed.clear()
        self.check()
        return future.result()
