"""Sequences whose states are in processes, which are killed."""

import asyncio
import functools
import json
import os
import random
import signal

import numpy as np
import pytest

from engine.sequences.models import run
from engine.step_models import Summing
from engine.support import no_leaks, serving, wait_until
from headrace.core import InferRequest, Tensor
from headrace.core.errors import InstanceLostError, SequenceGoneError, SequenceLostError


def step_request(do="", x=1.0, **parameters):
    """One step that adds `x`."""
    tensors = (Tensor("x", np.full((1, 1), x, np.float32)), Tensor("do", np.array([do], object)))
    return InferRequest(tensors, parameters=parameters)


def total(response):
    return response["total"].item()


def steps(response):
    return json.loads(response["seen"][0])["steps"]


def serving_processes(**settings):
    return serving(
        functools.partial(Summing),
        isolation="process",
        sequences={"live_max": 1000, "time_ms_max": None},
        **settings,
    )


@pytest.mark.slow
def test_fatal_step_loses_states_of_its_instance():
    """Each sequence fails once, at its next request; then a new one starts."""

    async def main(engine):
        for id in "ab":
            await engine.infer(step_request(sequence_id=id, sequence_start=True))
        try:
            await engine.infer(step_request("die", sequence_id="a"))
        except SequenceLostError as error:
            lost = error
        assert "died" in str(lost)
        for id in "ab":
            try:
                await engine.infer(step_request(sequence_id=id))
            except SequenceLostError:
                assert (
                    total(await engine.infer(step_request(x=5.0, sequence_id=id, sequence_start=True))) == 5.0
                )
        assert len(engine.sequences()) == 2

    with no_leaks(), serving_processes() as engine:
        run(main(engine))


@pytest.mark.slow
def test_fatal_first_step_is_retried_once():
    async def main(engine):
        try:
            await engine.infer(step_request("die"))
        except InstanceLostError as error:
            await wait_until(lambda: engine.model_statistics().restarts == 2)
            return type(error)
        return None

    with serving_processes() as engine:
        assert run(main(engine)) is InstanceLostError


@pytest.mark.slow
def test_no_step_is_lost_or_doubled_while_processes_are_killed():
    """Every client sees its own sum and number of steps, or the loss of its sequence; no client
    hangs.
    """

    async def client(engine, name, chance, counts):
        expected, done = 0.0, 0
        start = True
        for i in range(60):
            x = float(chance.randint(1, 9))
            try:
                response = await engine.infer(step_request(x=x, sequence_id=name, sequence_start=start))
            except (SequenceLostError, SequenceGoneError, InstanceLostError):
                counts["lost"] += 1
                expected, done, start = 0.0, 0, True
                continue
            start = False
            expected += x
            assert (total(response), steps(response)) == (expected, done), (name, i)
            done += 1
            counts["answered"] += 1

    async def kill(engine, counts):
        for at in (0, 1, 0):
            enough = counts["answered"] + 100
            await wait_until(lambda enough=enough: counts["answered"] >= enough)
            before = engine._session.slots[at].backend.pid
            os.kill(before, signal.SIGKILL)
            slot = engine._session.slots[at]
            await wait_until(
                lambda slot=slot, before=before: slot.backend.pid not in (None, before) and slot.alive
            )
            counts["killed"] += 1

    async def main(engine):
        chance = random.Random(7)
        counts = dict.fromkeys(("lost", "answered", "killed"), 0)
        killing = asyncio.create_task(kill(engine, counts))
        while not killing.done():
            await asyncio.gather(*[client(engine, f"s{i}", chance, counts) for i in range(12)])
        await killing
        return counts

    with no_leaks(), serving_processes(instances=2) as engine:
        counts = run(main(engine))
        queue, sequences = engine._session.queue, engine._session.sequences
        assert (sequences.table.requests, sequences._row_requests, queue._entries_by_future) == (0, {}, {})
    assert counts["killed"] == 3
    assert counts["lost"] > 0
    assert counts["answered"] > 500
