import os
import signal
import subprocess
import sys
import threading

from headrace.cli.interrupt import Interrupts


def test_the_first_signal_asks_to_end_and_handlers_come_back_afterwards(capfd):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    asked = threading.Event()
    ran_on = []

    def end() -> None:
        ran_on.append(threading.current_thread())
        asked.set()

    with Interrupts(end):
        signal.raise_signal(signal.SIGTERM)
        assert asked.wait(10)
    assert {number: signal.getsignal(number) for number in before} == before
    assert ran_on[0] is not threading.main_thread()
    assert capfd.readouterr().err == "stopping: what is under way is delivered; again to stop at once\n"


def test_ending_may_take_a_lock_that_the_main_thread_holds():
    """As a condition does that the main thread waits on: handled in the main thread itself it would hang."""
    lock, ended = threading.Lock(), threading.Event()

    def end() -> None:
        with lock:
            ended.set()

    with Interrupts(end):
        with lock:
            signal.raise_signal(signal.SIGINT)
        assert ended.wait(10)


def test_the_second_signal_ends_the_process_at_once():
    script = (
        "import signal, time\n"
        "from headrace.cli.interrupt import Interrupts\n"
        "with Interrupts(lambda: time.sleep(60)):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "print('still here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=os.environ
    )
    assert (done.returncode, done.stdout) == (130, "")
