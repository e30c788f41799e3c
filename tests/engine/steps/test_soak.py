"""What is left of sequences that have ended: nothing. So many that anything kept of each would show."""

import asyncio
import gc
import sys

import numpy as np
import psutil
import pytest

from engine.support import nothing_left, serving
from headrace.core import InferRequest, Model, Tensor

REMEMBERED = 10_000
"""Of so many ends the engine knows for a while that they were: this grows before it stays."""
SEQUENCES = 20_000
TOGETHER = 200


class Sum(Model):
    """Adds up, and keeps 4 KiB of each sequence."""

    max_batch_rows = 64
    max_batch_delay_ms = 0.0

    def step(self, states, x):
        for state in states:
            state.setdefault("much", np.zeros(1024, np.float32))
        total = states.stack("total", (1,)) + x
        states.keep("total", total)
        return total


def _request(value, **parameters):
    return InferRequest((Tensor("x", np.full((1, 1), value, np.float32)),), parameters=parameters)


async def _one(engine, name):
    first = await engine.ask(_request(1.0, sequence_id=name, sequence_start=True))
    last = await engine.ask(_request(2.0, sequence_id=name, sequence_end=True))
    assert (first.outputs[0].data.item(), last.outputs[0].data.item()) == (1.0, 3.0)


async def _many(engine, count, numbers):
    for _ in range(count // TOGETHER):
        await asyncio.gather(*[_one(engine, f"s{next(numbers)}") for _ in range(TOGETHER)])


def _held():
    """Python's objects (exactly), and MiB of everything."""
    gc.collect()
    return sys.getallocatedblocks(), psutil.Process().memory_info().rss / 2**20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sequences_that_have_ended_take_no_memory(record_property):
    """After the first ones: not one object for each that follows, nor the memory of a state."""
    numbers = iter(range(10**9))
    with nothing_left(), serving(Sum, instances=2) as engine:
        asyncio.run(_many(engine, REMEMBERED, numbers))
        objects_before, before_mib = _held()
        asyncio.run(_many(engine, SEQUENCES, numbers))
        objects, mib = _held()
        channel = engine._life.steps
        assert (len(channel._table), channel._parts, channel._put) == (0, {}, {})
        assert engine.model_statistics().success.count == 2 * (REMEMBERED + SEQUENCES)
    record_property("objects_grown", objects - objects_before)
    record_property("rss_grown_mib", round(mib - before_mib, 1))
    assert objects - objects_before < SEQUENCES / 10
    # A state that stays is 4 KiB, so 80 MiB.
    assert mib - before_mib < 8.0
