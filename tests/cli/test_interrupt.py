import os
import signal
import subprocess
import sys
import threading

import pytest

from headrace.cli.runs import InterruptHandler


def test_first_signal_stops_and_handlers_are_restored(capfd):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stopped = threading.Event()
    ran_on = []

    def stop() -> None:
        ran_on.append(threading.current_thread())
        stopped.set()

    with InterruptHandler(stop):
        signal.raise_signal(signal.SIGTERM)
        assert stopped.wait(10)
    assert {number: signal.getsignal(number) for number in before} == before
    assert ran_on[0] is not threading.main_thread()
    assert capfd.readouterr().err == "stopping after work in progress; press Ctrl-C again to stop at once\n"


def test_stop_can_take_a_lock_of_the_main_thread():
    """The main thread may wait on a condition: a handler in the main thread would deadlock."""
    lock, ended = threading.Lock(), threading.Event()

    def stop() -> None:
        with lock:
            ended.set()

    with InterruptHandler(stop):
        with lock:
            signal.raise_signal(signal.SIGINT)
        assert ended.wait(10)


def test_second_signal_exits_with_status_130(monkeypatch, capfd):
    exits = []
    monkeypatch.setattr(os, "_exit", exits.append)
    with InterruptHandler(lambda: None):
        signal.raise_signal(signal.SIGINT)
        assert exits == []
        signal.raise_signal(signal.SIGTERM)
    assert exits == [130]


@pytest.mark.slow
def test_second_signal_ends_the_process_at_once():
    script = (
        "import signal, threading\n"
        "from headrace.cli.runs import InterruptHandler\n"
        "with InterruptHandler(threading.Event().wait):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "print('still here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=os.environ
    )
    assert (done.returncode, done.stdout) == (130, "")
