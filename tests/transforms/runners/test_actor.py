"""A worker that is called, without an engine around it: what it says, and when it ends."""

import threading
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.transforms.runners import actor
from headrace.transforms.runners.connected import ORPHANED
from headrace.transforms.runners.messages import Assignment

WHERE = ("node-1", None)


class Fake:
    """A worker that tells what it is asked."""

    def __init__(self, tell) -> None:
        self._tell = tell

    def tell_ready(self) -> None:
        self._tell({"ready": 1})

    def do(self, assignment: Assignment) -> None:
        for number in assignment.tasks:
            self._tell({"task": number})

    def drain(self) -> None:
        self._tell({"drained": 1})

    def tell(self) -> None:
        self._tell({"tally": 1})


class Opened:
    """Opens fakes; sees in which region, and when they are let go of."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.regions, self.closed = error, [], threading.Event()

    @contextmanager
    def __call__(self, tell, region):
        self.regions.append(region)
        if self.error:
            raise self.error
        try:
            yield Fake(tell)
        finally:
            self.closed.set()


def rest(stream: Any) -> list[dict[str, Any]]:
    return [message for messages in stream for message in messages]


def test_it_says_where_it_is_loads_and_tells_all_until_it_is_stopped():
    opened = Opened()
    made = actor.Actor(opened, "eu", lambda: WHERE)
    stream = made.messages()
    assert next(stream) == [{"node": "node-1", "region": "eu"}]
    made.drain()  # nothing to drain yet
    assert next(stream) == [{"ready": 1}]
    made.do(Assignment((3, 4)).to_json())
    assert next(stream) == [{"task": 3}, {"task": 4}]
    made.drain()
    made.stop()
    assert rest(stream) == [{"drained": 1}, {"tally": 1}]
    assert opened.closed.is_set()


def test_what_waits_is_told_together_also_at_the_end():
    made = actor.Actor(Opened(), None, lambda: WHERE)
    stream = made.messages()
    next(stream)
    next(stream)
    made.stop()
    assert list(stream) == [[{"tally": 1}]]


def test_a_place_that_says_its_region_is_believed():
    opened = Opened()
    stream = actor.Actor(opened, "eu", lambda: ("node-1", "us")).messages()
    assert next(stream) == [{"node": "node-1", "region": "us"}]
    next(stream)
    assert opened.regions == ["us"]


def test_a_model_that_does_not_load_is_told():
    stream = actor.Actor(Opened(ValueError("no weights")), None, lambda: WHERE).messages()
    next(stream)
    assert rest(stream) == [{"error": {"type": "ValueError", "message": "no weights"}}]


def test_one_whose_engine_has_gone_ends_when_it_is_idle(monkeypatch):
    """Else it would hold its model, and a GPU, for ever; what it is doing it does to the end."""
    monkeypatch.setattr(actor, "LOOKED_EVERY_S", 0.001)
    monkeypatch.setattr("os._exit", _ends)
    made = actor.Actor(Opened(), None, lambda: WHERE)
    stream = made.messages()
    assert len([next(stream), next(stream)]) == 2
    monkeypatch.setattr("os.getppid", lambda: -1)
    made._doing = True
    later = threading.Timer(0.05, made._messages.put, [{"task": 1}])
    later.start()
    assert next(stream) == [{"task": 1}]
    made._doing = False
    with pytest.raises(SystemExit, match=str(ORPHANED)):
        next(stream)


def _ends(status: int) -> None:
    raise SystemExit(status)
