"""The orders of a worker process, over a real connection."""

import threading
from multiprocessing import Pipe

import pytest

from headrace.runners.messages import Assignment, Message, receive, send
from headrace.runners.processes import ConnectedWorker
from headrace.runners.worker import ORPHANED


class FakeWorker:
    """A worker that sends a message for each call; an assignment with `checkpoint_all` waits for a
    drain.
    """

    def __init__(self, send) -> None:
        self._send, self.drained = send, threading.Event()

    def send_ready(self) -> None:
        self._send({"ready": 1})

    def do(self, assignment: Assignment) -> None:
        self._send({"doing": list(assignment.tasks)})
        if assignment.checkpoint_all:
            assert self.drained.wait(30)
        self._send({"idle": True})

    def drain(self) -> None:
        self.drained.set()

    def send_counters(self) -> None:
        self._send({"tally": 1})


@pytest.fixture
def run():
    run_end, worker_end = Pipe()
    orders = ConnectedWorker(worker_end)
    thread = threading.Thread(target=orders.run, args=[FakeWorker(orders.send)])
    thread.start()
    yield run_end, thread
    run_end.close()
    worker_end.close()


def receive_all(connection, count: int) -> list[Message]:
    return [receive(connection) for _ in range(count)]


def test_assignments_run_in_order_until_stop(run):
    run_end, thread = run
    for number in (1, 2):
        send(run_end, {"do": Assignment((number,)).to_json()})
    send(run_end, {"stop": True})
    messages = [{"ready": 1}, {"doing": [1]}, {"idle": True}, {"doing": [2]}, {"idle": True}, {"tally": 1}]
    assert receive_all(run_end, 6) == messages
    thread.join(30)
    assert not thread.is_alive()


def test_busy_worker_receives_the_drain(run):
    run_end, thread = run
    send(run_end, {"do": Assignment((1,), checkpoint_all=True).to_json()})
    assert receive_all(run_end, 2)[1] == {"doing": [1]}
    send(run_end, {"drain": True})
    assert receive_all(run_end, 1) == [{"idle": True}]
    send(run_end, {"stop": True})
    thread.join(30)
    assert not thread.is_alive()


def test_orphaned_worker_ends_at_once(monkeypatch):
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    run_end, worker_end = Pipe()
    run_end.close()
    ConnectedWorker(worker_end).send({"tally": 1})
    worker_end.close()
    assert ended == [ORPHANED]
