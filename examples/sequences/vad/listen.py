"""Stream sound to the model vad, and print the times of speech.

    python listen.py speech.wav
    arecord -q -t raw -f S16_LE -c 1 -r 16000 | python listen.py -

A WAV file must be mono, 16 bits, 16 kHz. ``-`` reads such samples without a header from standard
input. Each request contains a quarter of a second of sound, as rows of 512 samples. All requests
belong to one sequence.
"""

import argparse
import http.client
import json
import sys
import uuid
import wave
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO
from urllib.parse import urlsplit

import numpy as np

RATE, SAMPLES = 16_000, 512
CHUNKS = 8
"""Chunks of one request: 256 ms."""
BARS = "▁▂▃▄▅▆▇█"
BAR_CHUNKS, LINE_BARS = 4, 50
"""A bar is 128 ms, a line 6.4 s."""

# The values of the network's authors.
SPEECH, SILENCE = 0.5, 0.35
"""Probabilities: speech begins at SPEECH and ends below SILENCE."""
SPEECH_MIN, SILENCE_MIN = RATE * 250 // 1000, RATE * 100 // 1000
"""Samples. Shorter speech is ignored, and shorter silence does not end speech."""


class Vad:
    """A client of one sequence of the model over REST.

    Sound is sent as raw float32 after the JSON.
    """

    def __init__(self, url: str, model: str = "vad", timeout_s: float = 30.0):
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)
        self.path = f"/v2/models/{model}/infer"
        self.id = f"listen-{uuid.uuid4()}"

    def speech(self, chunks: np.ndarray, *, start: bool = False, end: bool = False) -> list[float]:
        """Return the probability of speech in each of the chunks [rows, 512]."""
        sound = chunks.astype("<f4").tobytes()
        tensor = {"name": "audio", "datatype": "FP32", "shape": chunks.shape}
        tensor["parameters"] = {"binary_data_size": len(sound)}
        parameters = {"sequence_id": self.id, "sequence_start": start, "sequence_end": end}
        head = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        headers = {
            "content-type": "application/octet-stream",
            "inference-header-content-length": str(len(head)),
        }
        self.connection.request("POST", self.path, head + sound, headers)
        response = self.connection.getresponse()
        document = json.loads(response.read())
        if response.status != 200:
            raise SystemExit(f"the server responded {response.status}: {document.get('error', document)}")
        return document["outputs"][0]["data"]


def read_sound(name: str) -> Iterator[bytes]:
    """Yield the samples of a file, or of standard input, in pieces of `CHUNKS` chunks.

    The last piece may be shorter.
    """
    if name == "-":
        yield from pieces(sys.stdin.buffer)
        return
    with wave.open(name) as file:
        form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        if form != (1, 2, RATE):
            raise SystemExit(
                f"{name} has {form[0]} channels of {form[1] * 8} bits at {form[2]} Hz; convert it with: "
                f"ffmpeg -i {name} -ac 1 -ar {RATE} -sample_fmt s16 speech.wav"
            )
        while piece := file.readframes(CHUNKS * SAMPLES):
            yield piece


def pieces(source: BinaryIO) -> Iterator[bytes]:
    while piece := source.read(CHUNKS * SAMPLES * 2):
        yield piece


def as_chunks(piece: bytes) -> np.ndarray:
    """Return 16-bit samples as float32 from -1 to 1 [rows, 512].

    The last chunk is padded with silence.
    """
    samples = np.frombuffer(piece[: len(piece) // 2 * 2], "<i2").astype(np.float32) / 32768
    return np.pad(samples, (0, -len(samples) % SAMPLES)).reshape(-1, SAMPLES)


def speech_probabilities(vad: Vad, sound: Iterable[bytes]) -> Iterator[float]:
    """Yield the probability of speech in each chunk as the sound arrives.

    The last piece of live sound is unknown until the end, so an extra chunk of silence ends the
    sequence.
    """
    start = True
    for piece in sound:
        yield from vad.speech(as_chunks(piece), start=start)
        start = False
    if not start:
        vad.speech(np.zeros((1, SAMPLES), np.float32), end=True)


def segments(probabilities: Iterable[float]) -> Iterator[tuple[int, int]]:
    """Yield the first and last sample of each span of speech, as soon as the span is complete."""
    begun = quiet = None
    at = 0
    for probability in probabilities:
        if probability >= SPEECH:
            begun, quiet = at if begun is None else begun, None
        elif probability < SILENCE and begun is not None:
            quiet = at if quiet is None else quiet
            if at - quiet >= SILENCE_MIN:
                if quiet - begun > SPEECH_MIN:
                    yield begun, quiet
                begun = quiet = None
        at += SAMPLES
    if begun is not None and at - begun > SPEECH_MIN:
        yield begun, at


def timeline(probabilities: list[float]) -> Iterator[str]:
    """Yield lines of bars; the height of a bar is the probability of speech."""
    for first in range(0, len(probabilities), BAR_CHUNKS * LINE_BARS):
        line = probabilities[first : first + BAR_CHUNKS * LINE_BARS]
        highest = (max(line[i : i + BAR_CHUNKS]) for i in range(0, len(line), BAR_CHUNKS))
        bars = "".join(BARS[min(int(p * len(BARS)), len(BARS) - 1)] for p in highest)
        yield f"{first * SAMPLES / RATE:6.1f} s  {bars}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sound", help="WAV file, or - for samples on standard input")
    parser.add_argument(
        "--url", default="http://localhost:8080", help="URL of the server (default %(default)s)"
    )
    arguments = parser.parse_args()
    probabilities: list[float] = []

    def recorded() -> Iterator[float]:
        for probability in speech_probabilities(Vad(arguments.url), read_sound(arguments.sound)):
            probabilities.append(probability)
            yield probability

    with suppress(KeyboardInterrupt):
        for begun, ended in segments(recorded()):
            print(f"speech from {begun / RATE:6.2f} s to {ended / RATE:6.2f} s", flush=True)
    for line in timeline(probabilities):
        print(line)


if __name__ == "__main__":
    main()
