"""Memory of ended sequences, in numbers that would show any leak."""

import asyncio
import gc
import sys

import numpy as np
import psutil
import pytest

from engine.support import no_leaks, serving
from headrace.core import InferRequest, Model, Tensor

REMEMBERED = 10_000
"""The number of ended sequences that the engine remembers for a while: memory grows until then."""
SEQUENCES = 20_000
TOGETHER = 200


class Sum(Model):
    """Adds up, and keeps 4 KiB per sequence."""

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
    first = await engine.infer(_request(1.0, sequence_id=name, sequence_start=True))
    last = await engine.infer(_request(2.0, sequence_id=name, sequence_end=True))
    assert (first.outputs[0].data.item(), last.outputs[0].data.item()) == (1.0, 3.0)


async def _many(engine, count, numbers):
    for _ in range(count // TOGETHER):
        await asyncio.gather(*[_one(engine, f"s{next(numbers)}") for _ in range(TOGETHER)])


def _held():
    """Return the number of Python objects, and the MiB of the process."""
    gc.collect()
    return sys.getallocatedblocks(), psutil.Process().memory_info().rss / 2**20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ended_sequences_free_memory(record_property):
    """After the first ones: no object for each that follows, and no memory of states."""
    numbers = iter(range(10**9))
    with no_leaks(), serving(Sum, instances=2) as engine:
        asyncio.run(_many(engine, REMEMBERED, numbers))
        objects_before, before_mib = _held()
        asyncio.run(_many(engine, SEQUENCES, numbers))
        objects, mib = _held()
        queue, sequences = engine._session.queue, engine._session.sequences
        assert (len(sequences.table), sequences._row_requests, queue._entries_by_future) == (0, {}, {})
        assert engine.model_statistics().success.count == 2 * (REMEMBERED + SEQUENCES)
    record_property("objects_grown", objects - objects_before)
    record_property("rss_grown_mib", round(mib - before_mib, 1))
    assert objects - objects_before < SEQUENCES / 10
    # A leaked state of 4 KiB each would be 80 MiB.
    assert mib - before_mib < 8.0
