"""Threads that do what they are handed, and never keep a process from ending."""

import subprocess
import sys
import threading

import pytest

from headrace.jobs.worker.crew import Crew

WAIT_S = 20.0


def raise_(error):
    raise error


def test_all_is_done_by_as_many_threads_as_there_are():
    crew, line, done = Crew(3, "crew"), threading.Barrier(3), threading.Semaphore(0)
    crew.start()
    for _ in range(6):
        crew.submit(lambda: (line.wait(WAIT_S), done.release()))
    for _ in range(6):
        assert done.acquire(timeout=WAIT_S)
    assert crew.stop(WAIT_S)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_a_task_that_raises_costs_no_thread(error):
    crew, done = Crew(1, "crew"), threading.Event()
    crew.start()
    crew.submit(lambda: raise_(error))
    crew.submit(done.set)
    assert done.wait(WAIT_S)
    assert crew.stop(WAIT_S)


def test_stopping_lets_what_waits_be_done():
    crew, done = Crew(1, "crew"), []
    crew.start()
    for number in range(50):
        crew.submit(lambda n=number: done.append(n))
    assert crew.stop(WAIT_S)
    assert done == list(range(50))


def test_after_its_time_nothing_more_is_begun():
    crew, held, begun = Crew(1, "crew"), threading.Event(), threading.Event()
    late: list[int] = []
    crew.start()
    crew.submit(lambda: (begun.set(), held.wait(WAIT_S)))
    crew.submit(lambda: late.append(1))
    assert begun.wait(WAIT_S)
    assert not crew.stop(0.0)
    held.set()
    assert crew.stop(WAIT_S)
    assert late == []


def test_stopping_one_whose_start_failed_ends_what_was_begun(monkeypatch):
    crew, start, began = Crew(3, "crew"), threading.Thread.start, []

    def refuse(thread):
        if len(began) == 2:
            raise RuntimeError("can't start new thread")
        began.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        crew.start()
    assert crew.stop(WAIT_S)
    assert not any(thread.is_alive() for thread in began)


def test_a_task_that_never_returns_does_not_keep_the_process():
    code = (
        "import threading; from headrace.jobs.worker.crew import Crew\n"
        "crew, begun = Crew(1, 'c'), threading.Event(); crew.start()\n"
        "crew.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "assert begun.wait(20) and not crew.stop(0.0); print('left')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("left\n", 0), done.stderr
