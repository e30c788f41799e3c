"""Handle Ctrl-C: the first signal stops a run so that it can be resumed, the second one kills it."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from headrace.cli.reports import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MESSAGE = b"stopping after work in progress; press Ctrl-C again to stop at once\n"


class InterruptHandler:
    """A context manager that handles SIGINT and SIGTERM.

    The first signal calls `stop` in a new thread. The second one ends the process at once; the run
    can be resumed. Enter it in the main thread.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._signals_received = 0
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous_handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal without taking locks: the interrupted main thread may hold any lock."""
        self._signals_received += 1
        if self._signals_received > 1:
            os._exit(INTERRUPTED)
        threading.Thread(target=self._stop, name="headrace-interrupt", daemon=True).start()
        os.write(2, _MESSAGE)
