"""What is left of sequences that have ended: nothing. 100,000 of them, so that anything kept of each would show."""

import asyncio
import gc

import numpy as np
import psutil
import pytest

from engine.support import nothing_left, serving
from headrace.core import InferRequest, Model, Tensor

SEQUENCES = 100_000
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


def _rss_mib():
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sequences_that_have_ended_take_no_memory(record_property):
    """After the first 10,000, which fill what remembers recent ends: not a byte for each that follows, nor a millisecond's worth."""
    numbers = iter(range(10**9))
    with nothing_left(), serving(Sum, instances=2) as engine:
        asyncio.run(_many(engine, SEQUENCES // 10, numbers))
        before_mib = _rss_mib()
        asyncio.run(_many(engine, SEQUENCES, numbers))
        grown_mib = _rss_mib() - before_mib
        channel = engine._life.steps
        assert (len(channel._table), channel._parts, channel._put) == (0, {}, {})
        assert engine.model_statistics().success.count == 2 * (SEQUENCES + SEQUENCES // 10)
    record_property("rss_grown_mib", round(grown_mib, 1))
    # 50 bytes for each would be 5 MiB; a state that stays is 4 KiB, so 400 MiB.
    assert grown_mib < 8.0
