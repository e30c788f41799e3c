"""The running sum: one client's numbers add up beside other clients, and an odd number has six
responses.
"""

import asyncio
from pathlib import Path
from random import Random

import numpy as np
import pytest

from engine.stepping import WAYS, open_client
from headrace.core import InferRequest, Tensor
from headrace.core.errors import SequenceGoneError
from headrace.runtimes.classes import load_class

EXAMPLE = Path(__file__).parents[2] / "examples" / "sequences" / "running-sum"


@pytest.fixture(params=WAYS)
def ask(request):
    with open_client(request.param, load_class("running_sum.py:RunningSum", EXAMPLE)) as ask:

        async def sums(*numbers: int, **parameters: object) -> list[int]:
            x = Tensor("x", np.array(numbers, np.int64))
            return (await ask(InferRequest((x,), parameters=parameters)))["sum"].tolist()

        yield sums


def test_numbers_are_added_up(ask):
    async def ask_all():
        first = await ask(2, sequence_id="a", sequence_start=True)
        return [*first, *await ask(4, sequence_id="a"), *await ask(6, 8, sequence_id="a", sequence_end=True)]

    assert asyncio.run(ask_all()) == [2, 6, 12, 20]


def test_an_odd_number_is_answered_six_times(ask):
    """Later requests, of this sequence and of others, are answered after it."""

    async def ask_all():
        await ask(2, sequence_id="a", sequence_start=True)
        return await asyncio.gather(ask(3, sequence_id="a"), ask(4, sequence_id="a"))

    assert asyncio.run(ask_all()) == [[5] * 6, [9]]


def test_zero_ends_a_sequence_and_so_does_its_client(ask):
    async def ask_all(last, **parameters):
        await ask(2, sequence_id="a", sequence_start=True)
        assert await ask(last, sequence_id="a", **parameters) == [2 + last]
        with pytest.raises(SequenceGoneError):
            await ask(4, sequence_id="a")

    asyncio.run(ask_all(0))
    asyncio.run(ask_all(4, sequence_end=True))


def test_a_start_forgets_what_was_before(ask):
    async def ask_all():
        await ask(2, sequence_id="a", sequence_start=True)
        return await ask(4, sequence_id="a", sequence_start=True)

    assert asyncio.run(ask_all()) == [4]


def test_nobody_gets_a_neighbours_sum(ask):
    async def client(name: str) -> None:
        random = Random(name)
        total = 0
        for turn in range(30):
            number = random.randrange(1, 1000)
            total += number
            said = await ask(number, sequence_id=name, sequence_start=turn == 0)
            assert said == [total] * (6 if number % 2 else 1)

    async def all_clients():
        await asyncio.gather(*(client(f"c{n}") for n in range(40)))

    asyncio.run(all_clients())
