"""Measure the time to encode and decode a sequence's state, and the checkpoint rate of each store.

python benchmarks/checkpoint_micro.py [ADDRESS...]

The default is memory, and SQLite in a new folder below the current one, because its cost is fsync.
"""

import sys
import tempfile
import time
import timeit
from contextlib import closing

import numpy as np

from headrace.checkpoints import open_store
from headrace.checkpoints.codec import decode_state, encode_state
from headrace.checkpoints.store import SequenceCheckpoint

REPEATS, NUMBER = 9, 20_000
SECONDS = 3.0
CASES = ((1, 1 << 10), (64, 1 << 10), (64, 32 << 10))
"""The number of states in a batch, and the size of each in bytes."""

_random = np.random.default_rng(0)
STATES = {
    "one 2x128 float32, three ints": {
        "h": _random.random((2, 128), np.float32),
        "n": 1,
        "last": 17,
        "seen": 5,
    },
    "two 2x128 float32, text, floats": {
        "h": _random.random((2, 128), np.float32),
        "c": _random.random((2, 128), np.float32),
        "n": 1,
        "text": "so far",
        "score": -1.5,
    },
}


def codec() -> None:
    for name, state in STATES.items():
        data = encode_state(state)
        us = [
            min(timeit.repeat(act, number=NUMBER, repeat=REPEATS)) / NUMBER * 1e6
            for act in (lambda state=state: encode_state(state), lambda data=data: decode_state(data))
        ]
        print(f"{name}: {len(data)} bytes, encoded in {us[0]:.2f} us, decoded in {us[1]:.2f} us")


def store(address: str) -> None:
    for count, size in CASES:
        ids = [f"{count}-{size}-{number}" for number in range(count)]
        state = _random.bytes(size)
        took_s: list[float] = []
        with closing(open_store(address, "benchmark")) as opened:
            opened.save([SequenceCheckpoint(id, 1, state, 0) for id in ids])
            steps, begun_s = 1, time.perf_counter()
            while time.perf_counter() - begun_s < SECONDS:
                at_s = time.perf_counter()
                kept = opened.save([SequenceCheckpoint(id, steps + 1, state, steps) for id in ids])
                took_s.append(time.perf_counter() - at_s)
                assert all(kept), "another process saves these sequences"
                steps += 1
            opened.delete(ids)
        took_s.sort()
        p50_ms, p99_ms = (took_s[int(len(took_s) * share)] * 1000 for share in (0.5, 0.99))
        rate = count * len(took_s) / sum(took_s)
        print(
            f"{address.partition(':')[0]}{'?'.join(['', *address.split('?')[1:]])}: "
            f"{count:2} x {size:5} bytes: {rate:9,.0f} checkpoints/s, "
            f"a batch p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms"
        )


def main() -> None:
    codec()
    if addresses := sys.argv[1:]:
        for address in addresses:
            store(address)
        return
    store("memory:")
    with tempfile.TemporaryDirectory(dir=".", prefix="checkpoints-") as folder:
        for options in ("", "?synchronous=normal"):
            store(f"sqlite:///{folder}/checkpoints.db{options}")


if __name__ == "__main__":
    main()
