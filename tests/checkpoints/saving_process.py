"""A process that saves checkpoints until a test kills it, or races with others.

python saving_process.py forever ADDRESS     saves step after step of the sequences `IDS`, prints each
python saving_process.py race ADDRESS COUNT  tries COUNT steps of each, prints the number saved
"""

import math
import os
import sys

import numpy as np

from headrace.checkpoints import open_store
from headrace.checkpoints.codec import decode_state, encode_state
from headrace.checkpoints.store import CheckpointStore, SequenceCheckpoint

MODEL = "killed"
IDS = [f"s-{n}" for n in range(16)]


def state_after(id: str, steps: int) -> bytes:
    """Return a state of 20 kB, in which a torn write shows. No other process has the same."""
    return encode_state({"of": id, "by": os.getpid(), "x": np.full(2500, steps, np.int64)})


def steps_of(store: CheckpointStore) -> list[int]:
    """Return the steps of each sequence. Raise AssertionError if a state is torn or has other
    steps.
    """
    counts = []
    for id, found in zip(IDS, store.load(IDS, idle_ms_max=math.inf), strict=True):
        steps, state = found or (0, b"")
        if found:
            values = decode_state(state)
            assert values["of"] == id
            assert (values["x"] == steps).all()
        counts.append(steps)
    return counts


def forever(store: CheckpointStore) -> None:
    steps = steps_of(store)[0]
    while True:
        batch = [SequenceCheckpoint(id, steps + 1, state_after(id, steps + 1), steps) for id in IDS]
        assert all(store.save(batch))
        steps += 1
        sys.stdout.write(f"{steps}\n")
        sys.stdout.flush()


def race(store: CheckpointStore, count: int) -> None:
    saved = 0
    for _ in range(count):
        found = zip(IDS, steps_of(store), strict=True)
        saved += sum(
            store.save(
                [SequenceCheckpoint(id, at + 1, state_after(id, at + 1), at) for id, at in found if at]
            )
        )
    sys.stdout.write(f"{saved}\n")


if __name__ == "__main__":
    mode, address, *rest = sys.argv[1:]
    opened = open_store(address, MODEL)
    if mode == "forever":
        forever(opened)
    else:
        race(opened, int(rest[0]))
        opened.close()
