"""Worker threads: tasks, errors, and a stop that never blocks the end of the process."""

import subprocess
import sys
import threading

import pytest

from cases import for_each
from headrace.jobs.worker.worker import WorkerThreads

WAIT_S = 20.0


def raise_(error):
    raise error


def test_tasks_are_shared_by_all_threads():
    pool, line, done = WorkerThreads(3, "test"), threading.Barrier(3), threading.Semaphore(0)
    pool.start()
    for _ in range(6):
        pool.submit(lambda: (line.wait(WAIT_S), done.release()))
    for _ in range(6):
        assert done.acquire(timeout=WAIT_S)
    assert pool.stop(WAIT_S)


@for_each("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_raising_task_does_not_end_its_thread(error):
    pool, done = WorkerThreads(1, "test"), threading.Event()
    pool.start()
    pool.submit(lambda: raise_(error))
    pool.submit(done.set)
    assert done.wait(WAIT_S)
    assert pool.stop(WAIT_S)


def test_stop_finishes_queued_tasks():
    pool, done = WorkerThreads(1, "test"), []
    pool.start()
    for number in range(50):
        pool.submit(lambda n=number: done.append(n))
    assert pool.stop(WAIT_S)
    assert done == list(range(50))


def test_stop_timeout_drops_queued_tasks():
    pool, held, begun = WorkerThreads(1, "test"), threading.Event(), threading.Event()
    late: list[int] = []
    pool.start()
    pool.submit(lambda: (begun.set(), held.wait(WAIT_S)))
    pool.submit(lambda: late.append(1))
    assert begun.wait(WAIT_S)
    assert not pool.stop(0.0)
    held.set()
    assert pool.stop(WAIT_S)
    assert late == []


def test_stop_after_a_failed_start_ends_the_started_threads(monkeypatch):
    pool, start, began = WorkerThreads(3, "test"), threading.Thread.start, []

    def refuse(thread):
        if len(began) == 2:
            raise RuntimeError("can't start new thread")
        began.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        pool.start()
    assert pool.stop(WAIT_S)
    assert not any(thread.is_alive() for thread in began)


def test_endless_task_does_not_block_process_exit():
    code = (
        "import threading; from headrace.jobs.worker.worker import WorkerThreads\n"
        "threads, begun = WorkerThreads(1, 'c'), threading.Event(); threads.start()\n"
        "threads.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "assert begun.wait(20) and not threads.stop(0.0); print('left')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("left\n", 0), done.stderr
