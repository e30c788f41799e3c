"""Replace `time.sleep` in each Python process under faketime, a model's process included.

A worker finds this folder on its PYTHONPATH. Under libfaketime 0.9.10 CPython's `time.sleep` fails
with EINVAL: the library subtracts the wall clock from the deadline of `clock_nanosleep`, although
that deadline is on the monotonic clock. Relative waits, such as `select` and waits for locks, are
correct.
"""

import select
import time


def sleep(seconds: float, /) -> None:
    """Wait as `time.sleep` does; signal handlers run meanwhile."""
    select.select([], [], [], seconds)


time.sleep = sleep
