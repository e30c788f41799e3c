"""The deadline of a shutdown: the process ends, whatever its threads wait for."""

import logging
import signal
import subprocess
import sys
import threading
import time

from cases import for_each
from headrace.server.exit_deadline import EXIT_STATUS, ExitDeadline, waiting_threads

WAIT_S = 20


def test_deadline_ends_the_process_and_names_the_waiting_threads(caplog):
    ended, statuses = threading.Event(), []
    held = threading.Thread(target=ended.wait, args=(WAIT_S,), name="held")

    def end(status):
        statuses.append(status)
        ended.set()

    held.start()
    with caplog.at_level(logging.ERROR, "headrace.server"):
        ExitDeadline(end).begin(0.01)
        assert ended.wait(WAIT_S)
    held.join(WAIT_S)
    assert statuses == [EXIT_STATUS]
    assert "held (threading.py:wait" in caplog.text


def test_earliest_deadline_counts():
    ended = threading.Event()
    deadline = ExitDeadline(lambda _: ended.set())
    deadline.begin(float("inf"))
    deadline.begin(WAIT_S)
    deadline.begin(0.01)
    deadline.begin(WAIT_S)
    assert ended.wait(WAIT_S / 2)


def test_cancelled_deadline_does_not_end_the_process():
    ended = threading.Event()
    deadline = ExitDeadline(lambda _: ended.set())
    deadline.begin(0.05)
    deadline.cancel()
    assert not ended.wait(0.1)
    deadline.begin(0.01)
    assert ended.wait(WAIT_S)


def test_deadline_holds_while_the_interpreter_waits_for_threads():
    """Executors' threads are joined at exit, also those that a library left behind."""
    program = (
        "import threading; from headrace.server.exit_deadline import ExitDeadline\n"
        "threading.Thread(target=threading.Event().wait).start(); ExitDeadline().begin(0.2)"
    )
    began_s = time.monotonic()
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, "not done after its limit of 0.2 s" in done.stderr) == (EXIT_STATUS, True)
    assert time.monotonic() - began_s < WAIT_S


def test_deadline_does_not_delay_an_exit():
    program = f"from headrace.server.exit_deadline import ExitDeadline; ExitDeadline().begin({WAIT_S * 10})"
    done = subprocess.run([sys.executable, "-c", program], timeout=WAIT_S, check=False)
    assert done.returncode == 0


SERVER = """
import asyncio, threading
from headrace.server import listener
from headrace.server.listener import DrainSettings, Serving

class Hanging:
    def start(self): pass
    def stop(self, *, drain=True): threading.Event().wait()

listener.EXIT_S = 0.2
serving = Serving(Hanging(), lambda: None, [], drain=DrainSettings(grace_s={grace_s}))
asyncio.run(serving.run(lambda: print("ready", flush=True)))
"""


@for_each(("grace_s", "signals"), [(0, 1), (600, 2)])
def test_server_ends_although_a_service_hangs(grace_s, signals):
    """A second signal ends it soon, within the grace period."""
    command = [sys.executable, "-c", SERVER.format(grace_s=grace_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "ready\n"
        server.send_signal(signal.SIGTERM)
        if signals == 2:
            server.send_signal(signal.SIGINT)
        _, log = server.communicate(timeout=WAIT_S)
    assert (server.returncode, "threads wait in" in log) == (EXIT_STATUS, True)


def test_list_of_threads_is_bounded():
    go = threading.Event()
    threads = [threading.Thread(target=go.wait, args=(WAIT_S,)) for _ in range(40)]
    for thread in threads:
        thread.start()
    found = waiting_threads()
    go.set()
    for thread in threads:
        thread.join()
    assert len(found) == 20
