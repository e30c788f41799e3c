"""Run a service until SIGTERM or SIGINT, then stop it within a time limit."""

import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

from headrace.server.exit_deadline import SECOND_SIGNAL_S, ExitDeadline


def run_until_signal(
    start: Callable[[], None],
    stop: Callable[[], None],
    hurry: Callable[[], None],
    *,
    stop_s_max: float,
    on_ready: Callable[[], None] | None = None,
    on_signal: Callable[[], None] | None = None,
) -> None:
    """Call `start`, wait for a signal, and call `stop`. Call it in the main thread; it blocks.

    A second signal calls `hurry` in another thread, also while `stop` runs. The process ends at the latest
    `stop_s_max` seconds after the first signal, and `SECOND_SIGNAL_S` after a second. `on_ready` is called
    after `start`, and `on_signal` at each signal, in the interrupted main thread: it must not wait.
    """
    deadline = ExitDeadline()
    stopping = threading.Event()

    def leave_at_once() -> None:
        deadline.begin(SECOND_SIGNAL_S)
        hurry()

    # For the first and the second signal. Further ones change nothing.
    steps = iter((partial(deadline.begin, stop_s_max), leave_at_once))

    def handle(_number: int, _frame: FrameType | None) -> None:
        if (step := next(steps, None)) is not None:
            # A separate thread: the interrupted main thread may hold a lock that this needs.
            threading.Thread(target=step, name="headrace-stop", daemon=True).start()
        stopping.set()
        if on_signal is not None:
            on_signal()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        start()
        try:
            if on_ready is not None:
                on_ready()
            stopping.wait()
        finally:
            stop()
    finally:
        deadline.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)
