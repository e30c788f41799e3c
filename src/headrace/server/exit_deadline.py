"""The hard limit of a shutdown: the process ends at a time, whatever its threads wait for.

A database, store or broker that accepts a request and never answers holds its thread until a timeout
of the request. Jobs, results and notifications outlive a killed process, so waiting longer saves nothing.
"""

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

SECOND_SIGNAL_S: Final = 5.0
"""Seconds from a second signal to the end of the process."""
INTERPRETER_S: Final = 10.0
"""Seconds from the end of a service to the end of the process; the interpreter joins threads meanwhile."""
EXIT_STATUS: Final = 1
_STACK_LINES: Final = 3
_THREADS_MAX: Final = 20

_log = logging.getLogger("headrace.server")


class ExitDeadline:
    """A deadline of this process. `end` replaces `os._exit` in tests. Thread-safe."""

    def __init__(self, end: Callable[[int], object] = os._exit) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._at_s = float("inf")
        self._timer: threading.Timer | None = None

    def begin(self, after_s: float) -> None:
        """End the process after these seconds, unless it ends earlier or `cancel` is called.

        An earlier deadline stays. Call it from any thread, but not from a signal handler of Python,
        which may interrupt this very method.
        """
        with self._lock:
            at_s = time.monotonic() + after_s
            if at_s >= self._at_s:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._at_s = at_s
            self._timer = threading.Timer(after_s, self._pass, (after_s,))
            self._timer.name, self._timer.daemon = "headrace-exit-deadline", True
            self._timer.start()

    def cancel(self) -> None:
        """Do not end the process."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._at_s, self._timer = float("inf"), None

    def _pass(self, after_s: float) -> None:
        _log.error(
            "the shutdown is not done after its limit of %g s, the process ends now; threads wait in: %s",
            after_s,
            "; ".join(waiting_threads()),
        )
        for handler in logging.getLogger().handlers:
            handler.flush()
        self._end(EXIT_STATUS)


def waiting_threads() -> list[str]:
    """Return the names of the other threads, with the functions that they are in, the innermost first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found: list[str] = []
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - the documented way
    for ident, frame in frames.items():
        if ident == threading.get_ident():
            continue
        stack = traceback.extract_stack(frame)[: -_STACK_LINES - 1 : -1]
        calls = " < ".join(f"{Path(entry.filename).name}:{entry.name}" for entry in stack)
        found.append(f"{names.get(ident, ident)} ({calls})")
    return found[:_THREADS_MAX]
