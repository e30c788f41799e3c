"""A worker process's orders, over a real pair of connections."""

import threading
from multiprocessing import Pipe

import pytest

from headrace.transforms.runners.connected import ORPHANED, ConnectedWorker
from headrace.transforms.runners.messages import Assignment, Message, receive, send


class Fake:
    """A worker that tells what it is asked, and does an assignment until it is drained."""

    def __init__(self, tell) -> None:
        self._tell, self.drained = tell, threading.Event()

    def tell_ready(self) -> None:
        self._tell({"ready": 1})

    def do(self, assignment: Assignment) -> None:
        self._tell({"doing": list(assignment.tasks)})
        if assignment.keep_all:
            assert self.drained.wait(30)
        self._tell({"idle": True})

    def drain(self) -> None:
        self.drained.set()

    def tell(self) -> None:
        self._tell({"tally": 1})


@pytest.fixture
def run():
    ours, theirs = Pipe()
    orders = ConnectedWorker(theirs)
    thread = threading.Thread(target=orders.run, args=[Fake(orders.tell)])
    thread.start()
    yield ours, thread
    ours.close()
    theirs.close()


def heard(connection, count: int) -> list[Message]:
    return [receive(connection) for _ in range(count)]


def test_orders_are_done_in_turn_until_there_is_no_more(run):
    ours, thread = run
    for number in (1, 2):
        send(ours, {"do": Assignment((number,)).to_json()})
    send(ours, {"stop": True})
    said = [{"ready": 1}, {"doing": [1]}, {"idle": True}, {"doing": [2]}, {"idle": True}, {"tally": 1}]
    assert heard(ours, 6) == said
    thread.join(30)
    assert not thread.is_alive()


def test_it_hears_that_it_should_drain_while_it_works(run):
    ours, thread = run
    send(ours, {"do": Assignment((1,), keep_all=True).to_json()})
    assert heard(ours, 2)[1] == {"doing": [1]}
    send(ours, {"drain": True})
    assert heard(ours, 1) == [{"idle": True}]
    send(ours, {"stop": True})
    thread.join(30)
    assert not thread.is_alive()


def test_one_whose_run_has_gone_ends_at_once(monkeypatch):
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    ours, theirs = Pipe()
    ours.close()
    ConnectedWorker(theirs).tell({"tally": 1})
    theirs.close()
    assert ended == [ORPHANED]
