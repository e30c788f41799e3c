"""Stream sound to the model vad, and print when somebody speaks.

    python listen.py speech.wav
    arecord -q -t raw -f S16_LE -c 1 -r 16000 | python listen.py -

A WAV file must be mono, 16 bits, 16 kHz; ``-`` reads such samples, without a header, from standard input. Each request holds
what came in a quarter of a second, as so many rows of 512 samples; all of them are one sequence of the server's.
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
"""In one request: 256 ms."""
BARS = "▁▂▃▄▅▆▇█"
BAR_CHUNKS, LINE_BARS = 4, 50
"""A bar is 128 ms, a line 6.4 s."""

# As the network's authors have them.
SPEECH, SILENCE = 0.5, 0.35
"""Speech begins at this, and ends below that."""
SPEECH_MIN, SILENCE_MIN = RATE * 250 // 1000, RATE * 100 // 1000
"""Samples; shorter speech is none, and shorter silence does not end it."""


class Vad:
    """One sequence of the model, asked over REST: sound goes as raw float32, behind the JSON."""

    def __init__(self, url: str, model: str = "vad", timeout_s: float = 30.0):
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)
        self.path = f"/v2/models/{model}/infer"
        self.id = f"listen-{uuid.uuid4()}"

    def speech(self, chunks: np.ndarray, *, start: bool = False, end: bool = False) -> list[float]:
        """How likely each of the chunks [rows, 512] has speech in it."""
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
        answer = self.connection.getresponse()
        said = json.loads(answer.read())
        if answer.status != 200:
            raise SystemExit(f"the server says {answer.status}: {said.get('error', said)}")
        return said["outputs"][0]["data"]


def read_sound(name: str) -> Iterator[bytes]:
    """The samples of a file, or of standard input, in pieces of `CHUNKS` chunks but for the last."""
    if name == "-":
        yield from pieces(sys.stdin.buffer)
        return
    with wave.open(name) as file:
        form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        if form != (1, 2, RATE):
            raise SystemExit(
                f"{name} has {form[0]} channels of {form[1] * 8} bits at {form[2]} Hz; what is wanted makes: "
                f"ffmpeg -i {name} -ac 1 -ar {RATE} -sample_fmt s16 speech.wav"
            )
        while piece := file.readframes(CHUNKS * SAMPLES):
            yield piece


def pieces(source: BinaryIO) -> Iterator[bytes]:
    while piece := source.read(CHUNKS * SAMPLES * 2):
        yield piece


def as_chunks(piece: bytes) -> np.ndarray:
    """16-bit samples as float32 from -1 to 1 [rows, 512]; the last chunk is filled up with silence."""
    samples = np.frombuffer(piece[: len(piece) // 2 * 2], "<i2").astype(np.float32) / 32768
    return np.pad(samples, (0, -len(samples) % SAMPLES)).reshape(-1, SAMPLES)


def ask(vad: Vad, sound: Iterable[bytes]) -> Iterator[float]:
    """How likely each chunk has speech in it, as it is heard. A chunk of silence ends the sequence, since nobody knows before
    it is over which piece of a live sound is the last.
    """
    start = True
    for piece in sound:
        yield from vad.speech(as_chunks(piece), start=start)
        start = False
    if not start:
        vad.speech(np.zeros((1, SAMPLES), np.float32), end=True)


def segments(probabilities: Iterable[float]) -> Iterator[tuple[int, int]]:
    """Where somebody speaks, as first and last sample, as soon as it is known."""
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
    """Lines of bars, as high as speech is likely."""
    for first in range(0, len(probabilities), BAR_CHUNKS * LINE_BARS):
        line = probabilities[first : first + BAR_CHUNKS * LINE_BARS]
        highest = (max(line[i : i + BAR_CHUNKS]) for i in range(0, len(line), BAR_CHUNKS))
        bars = "".join(BARS[min(int(p * len(BARS)), len(BARS) - 1)] for p in highest)
        yield f"{first * SAMPLES / RATE:6.1f} s  {bars}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sound", help="a WAV file, or - for samples on standard input")
    parser.add_argument("--url", default="http://localhost:8080", help="of the server (%(default)s)")
    arguments = parser.parse_args()
    heard: list[float] = []

    def noted() -> Iterator[float]:
        for probability in ask(Vad(arguments.url), read_sound(arguments.sound)):
            heard.append(probability)
            yield probability

    with suppress(KeyboardInterrupt):
        for begun, ended in segments(noted()):
            print(f"speech from {begun / RATE:6.2f} s to {ended / RATE:6.2f} s", flush=True)
    for line in timeline(heard):
        print(line)


if __name__ == "__main__":
    main()
