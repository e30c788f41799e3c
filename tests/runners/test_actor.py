"""A worker that is driven by calls, without an engine around it."""

import threading
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.runners import worker as module
from headrace.runners.messages import Assignment
from headrace.runners.worker import ORPHANED

LOCATION = ("node-1", None)


class FakeWorker:
    """A worker that sends a message for each call."""

    def __init__(self, send) -> None:
        self._send = send

    def send_ready(self) -> None:
        self._send({"ready": 1})

    def do(self, assignment: Assignment) -> None:
        for number in assignment.tasks:
            self._send({"task": number})

    def drain(self) -> None:
        self._send({"drained": 1})

    def send_counters(self) -> None:
        self._send({"tally": 1})


class RecordingOpener:
    """An opener of fake workers that records regions and closings."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.regions, self.closed = error, [], threading.Event()

    @contextmanager
    def __call__(self, send, region):
        self.regions.append(region)
        if self.error:
            raise self.error
        try:
            yield FakeWorker(send)
        finally:
            self.closed.set()


def remaining(stream: Any) -> list[dict[str, Any]]:
    return [message for messages in stream for message in messages]


def test_messages_stream_from_start_to_stop():
    opened = RecordingOpener()
    worker_actor = module.Actor(opened, "eu", lambda: LOCATION)
    stream = worker_actor.messages()
    assert next(stream) == [{"node": "node-1", "region": "eu"}]
    worker_actor.drain()  # nothing to drain yet
    assert next(stream) == [{"ready": 1}]
    worker_actor.do(Assignment((3, 4)).to_json())
    assert next(stream) == [{"task": 3}, {"task": 4}]
    worker_actor.drain()
    worker_actor.stop()
    assert remaining(stream) == [{"drained": 1}, {"tally": 1}]
    assert opened.closed.is_set()


def test_pending_messages_are_sent_together():
    worker_actor = module.Actor(RecordingOpener(), None, lambda: LOCATION)
    stream = worker_actor.messages()
    next(stream)
    next(stream)
    worker_actor.stop()
    assert list(stream) == [[{"tally": 1}]]


def test_declared_region_of_the_node_is_used():
    opened = RecordingOpener()
    stream = module.Actor(opened, "eu", lambda: ("node-1", "us")).messages()
    assert next(stream) == [{"node": "node-1", "region": "us"}]
    next(stream)
    assert opened.regions == ["us"]


def test_load_error_is_sent():
    stream = module.Actor(RecordingOpener(ValueError("no weights")), None, lambda: LOCATION).messages()
    next(stream)
    assert remaining(stream) == [{"error": {"type": "ValueError", "message": "no weights"}}]


def test_idle_orphan_ends_its_process(monkeypatch):
    """Otherwise it would occupy memory and a GPU forever. A busy orphan finishes its work."""
    monkeypatch.setattr(module, "PARENT_CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr("os._exit", exit_stub)
    worker_actor = module.Actor(RecordingOpener(), None, lambda: LOCATION)
    stream = worker_actor.messages()
    assert len([next(stream), next(stream)]) == 2
    checks: list[int] = []

    def other_parent() -> int:
        checks.append(1)
        if len(checks) == 3:
            worker_actor._messages.put({"task": 1})
        return -1

    monkeypatch.setattr("os.getppid", other_parent)
    worker_actor._working = True
    assert next(stream) == [{"task": 1}]
    worker_actor._working = False
    with pytest.raises(SystemExit, match=str(ORPHANED)):
        next(stream)


def exit_stub(status: int) -> None:
    raise SystemExit(status)
