"""A fixed pool of daemon threads. A task that never returns does not keep the process from exiting.

(The interpreter waits at exit for the threads of `concurrent.futures`, however they were shut
down.)
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_log = logging.getLogger("headrace.jobs")

Task = Callable[[], object]


class WorkerThreads:
    """A fixed number of threads over one queue whose length the caller bounds. Use it once."""

    def __init__(self, size: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(size)
        ]

    def start(self) -> None:
        """Start the threads.

        Raise RuntimeError if a thread cannot be created; then `stop` ends the others.
        """
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> None:
        """Queue a task for the next free thread.

        Never block and never raise; tasks after `stop` are dropped.
        """
        self._tasks.put(task)

    def stop(self, timeout_s: float) -> bool:
        """Finish queued tasks; after `timeout_s`, begin no more.

        Return True if all threads have ended.
        """
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
            except BaseException:  # noqa: BLE001 - the thread must continue
                _log.exception("a task failed in a worker thread, the thread continues")
