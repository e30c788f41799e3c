"""Batches as one instance answers them, and what becomes of them when it dies."""

import asyncio
import threading

import numpy as np

from engine.support import WAIT_S, request, rows, values
from headrace.core import Model
from headrace.core.errors import InstanceLostError
from headrace.engine import Engine
from headrace.engine.backend import LocalBackend
from headrace.engine.settings import ServeSettings


class Doubling(Model):
    max_batch_rows = 8
    max_batch_delay_ms = 0.0

    def predict(self, x):
        return x * np.float32(2)


class _Mortal(LocalBackend):
    """Dies of a value; the first call waits until it may go on."""

    POISON = 13.0

    def __init__(self, settings):
        super().__init__(Doubling, "m", settings=settings)
        self.dead = False
        self.calls = []
        self.gate = threading.Event()

    @property
    def lost(self):
        return self.dead

    def restart(self):
        self.dead = False

    def call(self, parts, rows, request, call, *, fresh):
        assert self.gate.wait(WAIT_S)
        self.calls.append([part["x"].ravel().tolist() for part in parts])
        if any(self.POISON in part["x"] for part in parts):
            self.dead = True
            raise InstanceLostError("m", "it died")
        return super().call(parts, rows, request, call, fresh=fresh)


def _asked(*asked):
    """What came of these, that waited together for a call; and the calls that there were."""
    settings = ServeSettings(isolation="thread")
    backend = _Mortal(settings)

    class Here:
        def load(self):
            return backend

        def inline(self, _):
            return False

    engine = Engine(Doubling, name="m", serving=settings)
    engine._placement = Here()
    engine.start()

    async def main():
        first = asyncio.ensure_future(engine.ask(request(rows(0))))
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(engine.ask(request(rows(v)))) for v in asked]
        await asyncio.sleep(0)
        backend.gate.set()
        return (await asyncio.gather(first, *others, return_exceptions=True))[1:]

    try:
        answers = asyncio.run(asyncio.wait_for(main(), WAIT_S))
        return answers, backend.calls, engine.model_statistics()
    finally:
        backend.gate.set()
        engine.stop()


def test_requests_of_one_batch_share_a_call():
    answers, calls, _ = _asked(1, 2, 3)
    assert [values(answer) for answer in answers] == [[2.0], [4.0], [6.0]]
    assert sorted(value for call in calls for part in call for value in part) == [0.0, 1.0, 2.0, 3.0]


def test_what_was_in_a_call_that_killed_is_asked_once_more_each_by_itself():
    """Whatever killed twice is not asked again."""
    answers, calls, statistics = _asked(1, _Mortal.POISON, 3)
    assert isinstance(answers[1], InstanceLostError)
    assert [values(answers[i]) for i in (0, 2)] == [[2.0], [6.0]]
    killing = [call for call in calls if [_Mortal.POISON] in call]
    assert len(killing) == 2
    assert killing[1] == [[_Mortal.POISON]]
    assert statistics.restarts == 2
    assert (statistics.success.count, statistics.fail.count) == (3, 1)
