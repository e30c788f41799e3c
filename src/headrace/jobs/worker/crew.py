"""Threads that do what they are handed. Daemons: one that does not return never keeps the process from ending.

(The threads of `concurrent.futures` are waited for when the interpreter ends, however they were shut down.)
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_log = logging.getLogger("headrace.jobs")

Task = Callable[[], object]


class Crew:
    """A fixed number of threads over one queue, whose length is the caller's to bound. Use it once."""

    def __init__(self, size: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(size)
        ]

    def start(self) -> None:
        """Begin; raises RuntimeError where no thread can be made. Then `stop` ends those that were."""
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> None:
        """Have it done by the next thread that is free. Never blocks, never raises; after `stop` it is not done."""
        self._tasks.put(task)

    def stop(self, timeout_s: float) -> bool:
        """Let what waits be done; after `timeout_s` nothing more is begun. Whether all threads have ended."""
        for _ in self._threads:
            self._tasks.put(None)
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))
        self._leaving.set()
        with suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
        for _ in self._threads:
            self._tasks.put(None)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while not self._leaving.is_set():
            task = self._tasks.get()
            if task is None:
                return
            try:
                task()
            except BaseException:  # noqa: BLE001 - the thread has others to do
                _log.exception("a worker's thread goes on after an error of its task")
