"""How often a second something is done, and how often the disk can: what no durable commit is faster than."""

import os
import threading
import time
from collections.abc import Callable

from inputs import FOLDER

PAGE = b"\0" * 4096
DISK_PAGES = 1024


def rate(submit_s: float, threads: int, do: Callable[[], object]) -> float:
    """How often a second `do` is done, by so many threads, for about so long."""
    do()
    counts = [0] * threads
    began_s = time.perf_counter()

    def repeat(place: int) -> None:
        while time.perf_counter() - began_s < submit_s:
            do()
            counts[place] += 1

    workers = [threading.Thread(target=repeat, args=(place,)) for place in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began_s)


def disk_per_s(submit_s: float) -> float:
    """One page written over an old one, and waited for, again and again: what no durable commit is faster than."""
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
