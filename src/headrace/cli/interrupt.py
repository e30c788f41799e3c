"""Ctrl-C: the first asks a run to come to a resumable end, the second ends it at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from headrace.cli.ending import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTE = b"stopping: what is under way is delivered; again to stop at once\n"


class Interrupts:
    """While entered, the first SIGINT or SIGTERM calls `end`, on a thread of its own; the second kills.

    Enter in the main thread. What a kill leaves can be resumed like anything else that was killed.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._asked = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Runs between any two steps of the main thread, which may hold any lock: takes none itself."""
        self._asked += 1
        if self._asked > 1:
            os._exit(INTERRUPTED)
        threading.Thread(target=self._end, name="headrace-interrupt", daemon=True).start()
        os.write(2, _NOTE)
