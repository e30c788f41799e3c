"""Wait for processes and threads that give no event: the one place of the tests that polls."""

import threading
import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 90.0
"""Far above what any condition needs on a busy machine."""
INTERVAL_S = 0.02


def reached(
    condition: Callable[[], Any], *, timeout_s: float = TIMEOUT_S, interval_s: float = INTERVAL_S
) -> bool:
    """Call `condition` until it returns something true. Return False after `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() >= end_s:
            return False
        pause.wait(interval_s)
    return True


def wait_until(
    condition: Callable[[], Any], name: str = "a condition", *, timeout_s: float = TIMEOUT_S
) -> None:
    """Wait until `condition` returns something true.

    Raise AssertionError with its `name` after `timeout_s`.
    """
    assert reached(condition, timeout_s=timeout_s), f"{name} was not reached in {timeout_s:g} s"
