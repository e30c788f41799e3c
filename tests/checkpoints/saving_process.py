"""Saves checkpoints from a process of its own, which a test kills, or races with others.

python saving_process.py forever ADDRESS     saves step after step of `IDS` sequences, and says each that was kept
python saving_process.py race ADDRESS COUNT  tries so many steps of them, and says how many were kept
"""

import math
import os
import sys

import numpy as np

from headrace.checkpoints.codec import decode_state, encode_state
from headrace.checkpoints.open import open_store
from headrace.checkpoints.store import Checkpoint, CheckpointStore

MODEL = "killed"
IDS = [f"s-{n}" for n in range(16)]


def state_after(id: str, steps: int) -> bytes:
    """20 kB, in which a torn write shows; no other process has the same."""
    return encode_state({"of": id, "by": os.getpid(), "x": np.full(2500, steps, np.int64)})


def steps_of(store: CheckpointStore) -> list[int]:
    """The steps of each sequence; AssertionError when a state is not whole, or not of those steps."""
    told = []
    for id, found in zip(IDS, store.load(IDS, idle_ms_max=math.inf), strict=True):
        steps, state = found or (0, b"")
        if found:
            values = decode_state(state)
            assert values["of"] == id
            assert (values["x"] == steps).all()
        told.append(steps)
    return told


def forever(store: CheckpointStore) -> None:
    steps = steps_of(store)[0]
    while True:
        batch = [Checkpoint(id, steps + 1, state_after(id, steps + 1), steps) for id in IDS]
        assert all(store.save(batch))
        steps += 1
        sys.stdout.write(f"{steps}\n")
        sys.stdout.flush()


def race(store: CheckpointStore, count: int) -> None:
    kept = 0
    for _ in range(count):
        found = zip(IDS, steps_of(store), strict=True)
        kept += sum(
            store.save([Checkpoint(id, at + 1, state_after(id, at + 1), at) for id, at in found if at])
        )
    sys.stdout.write(f"{kept}\n")


if __name__ == "__main__":
    what, address, *rest = sys.argv[1:]
    opened = open_store(address, MODEL)
    if what == "forever":
        forever(opened)
    else:
        race(opened, int(rest[0]))
        opened.close()
