"""The rate of an action, and the rate of durable writes of the disk: the limit of durable commits."""

import os
import threading
import time
from collections.abc import Callable

from inputs import FOLDER

PAGE = b"\0" * 4096
DISK_PAGES = 1024


def rate(submit_s: float, threads: int, do: Callable[[], object]) -> float:
    """Return how often per second `threads` threads run `do`, measured for about `submit_s`
    seconds.
    """
    do()
    counts = [0] * threads
    began_s = time.perf_counter()

    def repeat(index: int) -> None:
        # At least one call, even if the thread starts late.
        while not counts[index] or time.perf_counter() - began_s < submit_s:
            do()
            counts[index] += 1

    workers = [threading.Thread(target=repeat, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began_s)


def disk_per_s(submit_s: float) -> float:
    """Return the rate of synced writes of one page over an old one: the limit of durable commits."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "disk-limit"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(file, PAGE * DISK_PAGES, 0)
        os.fsync(file)
        at = 0

        def write() -> None:
            nonlocal at
            os.pwrite(file, PAGE, at % DISK_PAGES * len(PAGE))
            os.fdatasync(file)
            at += 1

        return rate(min(submit_s, 1.0), 1, write)
    finally:
        os.close(file)
        path.unlink()
