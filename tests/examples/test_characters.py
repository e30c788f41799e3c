"""The character generator: real trained weights, text that depends only on the seed, and
continuation.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.stepping import WAYS, InferFunction, open_client
from engine.support import serving
from headrace.core import InferRequest, Tensor
from headrace.core.errors import ModelLoadError, RefusedRowsError
from headrace.engine.local_backend import LocalBackend
from headrace.runtimes.classes import load_class

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "sequences" / "characters"
SDIST = Path(sys.prefix) / "share" / "textgenrnn" / "textgenrnn-2.0.0.tar.gz"
PROMPTS = ["The river ", "I don't know ", "My dog ", "", "Why is the ", "A very long text about " * 4]


def get_weights(sdist: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLE / "get_weights.py", "--sdist", sdist, "--to", to]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    to = tmp_path_factory.mktemp("characters") / "weights.npz"
    done = get_weights(SDIST, to)
    assert done.returncode == 0, done.stderr
    return to


@pytest.fixture(scope="module")
def make(weights):
    characters = load_class("characters.py:Characters", EXAMPLE)
    return lambda: characters(weights=str(weights))


@pytest.fixture(params=WAYS)
def ask(make, request):
    with open_client(request.param, make) as ask:
        yield ask


async def written(ask: InferFunction, text: str, **parameters: object) -> list[str]:
    request = InferRequest((Tensor("text", np.array([text], object)),), parameters=parameters)
    return (await ask(request))["character"].tolist()


def test_it_writes_words_one_character_at_a_time(ask):
    """Temperature 0 leaves nothing to chance: a wrong gate or transposed kernel would spell no word
    of this.
    """
    characters = asyncio.run(written(ask, "I don't know ", max_characters=25, temperature=0))
    assert "".join(characters) == "what to do anything about"
    assert {len(c) for c in characters} == {1}


def test_the_network_is_that_of_the_other_example(make, weights):
    """The other example reads the same weights from their HDF5 file and processes one window at a
    time.
    """
    writer = load_class("writer.py:Writer", EXAMPLES / "serving" / "writer")()
    writer.load()
    model = make()
    model.load()
    windows = np.random.default_rng(5).integers(0, len(writer.index), (9, 40))
    expected = np.stack([writer.probabilities(window.tolist()) for window in windows])
    np.testing.assert_allclose(model.network.probabilities(windows), expected, rtol=0, atol=1e-5)


def test_neighbours_change_nothing_to_the_last_bit(make):
    model = make()
    model.load()
    windows = np.random.default_rng(5).integers(0, 400, (32, 40))
    together = model.network.probabilities(windows)
    for rows in (slice(1), slice(3, 5), slice(7, 20), slice(31, 32)):
        np.testing.assert_array_equal(model.network.probabilities(windows[rows]), together[rows])


def test_a_text_is_the_same_in_company_and_alone(make, ask):
    asked = [
        {"text": PROMPTS[n % len(PROMPTS)], "max_characters": 8 + n, "temperature": 0.2 + n / 20, "seed": n}
        for n in range(16)
    ]

    async def together():
        return await asyncio.gather(*(written(ask, **a) for a in asked))

    in_company = asyncio.run(together())
    with open_client("steps", make) as other:
        alone = [asyncio.run(written(other, **a)) for a in asked]
    assert in_company == alone
    assert len({"".join(text) for text in alone}) > 12


def test_the_seed_decides_and_without_one_chance_does(ask):
    async def texts(*given: dict):
        asked = (written(ask, "The river ", max_characters=30, temperature=1, **g) for g in given)
        return ["".join(text) for text in await asyncio.gather(*asked)]

    first, same, other, drawn, again = asyncio.run(texts({"seed": 0}, {"seed": 0}, {"seed": 1}, {}, {}))
    assert first == same
    assert len({first, other, drawn, again}) == 4


def test_characters_come_one_by_one_as_a_stream(make):
    request = InferRequest(
        (Tensor("text", np.array(["I don't know "], object)),),
        parameters={"max_characters": 25, "temperature": 0},
    )

    async def streamed(engine):
        return [response["character"].tolist() async for response in engine.stream(request)]

    with serving(make) as engine:
        characters = asyncio.run(streamed(engine))
    assert characters == [[c] for c in "what to do anything about"]


def test_a_sequence_goes_on_where_it_stopped(ask):
    """Three requests of a sequence write the same text as one request."""

    async def in_parts():
        first = await written(
            ask, "The river ", sequence_id="a", sequence_start=True, max_characters=7, seed=11
        )
        second = await written(ask, "", sequence_id="a", max_characters=1)
        return first + second + await written(ask, "", sequence_id="a", max_characters=12, seed=11)

    whole = asyncio.run(written(ask, "The river ", max_characters=20, seed=11))
    assert asyncio.run(in_parts()) == whole
    assert len(whole) == 20


def test_text_is_added_to_what_was_written(ask):
    async def in_parts(*texts: str):
        for n, text in enumerate(texts):
            said = await written(
                ask, text, sequence_id="a", sequence_start=n == 0, max_characters=3, temperature=0
            )
        return said

    first = asyncio.run(in_parts("The river "))
    assert asyncio.run(in_parts("The river ", "of gold ")) == asyncio.run(
        in_parts(f"The river {''.join(first)}of gold ")
    )


def test_a_text_ends_where_the_network_ends_it(ask):
    """The text ends well before its limit, without an end character; the next text starts anew."""

    async def two():
        first = await written(
            ask,
            "My dog ",
            sequence_id="a",
            sequence_start=True,
            max_characters=1000,
            temperature=0.3,
            seed=7,
        )
        second = await written(ask, "The ", sequence_id="a", temperature=0, max_characters=30)
        return first, second

    first, second = asyncio.run(two())
    assert 5 < len(first) < 1000
    assert all(len(c) == 1 for c in first)
    assert second == asyncio.run(written(ask, "The ", temperature=0, max_characters=30))


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"max_characters": 0}, "max_characters must be a whole number from 1 to 1000, not 0"),
        ({"max_characters": 2.5}, "max_characters must be a whole number"),
        ({"temperature": "hot"}, "temperature must be a number from 0 to 100, not 'hot'"),
        ({"temperature": float("nan")}, "temperature must be a number"),
        ({"seed": True}, "seed must be a whole number"),
    ],
)
def test_wrong_parameters_are_refused_and_nobody_else_notices(ask, parameters, why):
    async def two():
        right = {"max_characters": 25, "temperature": 0}
        return await asyncio.gather(
            written(ask, "I don't know ", **parameters),
            written(ask, "I don't know ", **right),
            return_exceptions=True,
        )

    refused, answered = asyncio.run(two())
    assert isinstance(refused, RefusedRowsError)
    assert why in str(refused)
    assert "".join(answered) == "what to do anything about"


def test_another_package_is_not_taken(tmp_path):
    other = tmp_path / "textgenrnn-2.0.0.tar.gz"
    other.write_bytes(SDIST.read_bytes()[:-1])
    done = get_weights(other, tmp_path / "weights.npz")
    assert (done.returncode, "is not textgenrnn 2.0.0" in done.stderr) == (1, True)
    assert not (tmp_path / "weights.npz").exists()


def test_without_weights_it_says_how_to_get_them(tmp_path):
    characters = load_class("characters.py:Characters", EXAMPLE)
    with pytest.raises(ModelLoadError, match=r"get_weights\.py"):
        LocalBackend(lambda: characters(weights=str(tmp_path / "weights.npz")), "m")
