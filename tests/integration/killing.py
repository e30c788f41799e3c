"""When to kill a run, at random, and how often."""

import os
import random
import subprocess
import time
from pathlib import Path

KILLS = int(os.environ.get("HEADRACE_KILLS", "6"))
"""Each run is killed so often; HEADRACE_KILLS=60 takes minutes."""
STARTING = 1 / 6
"""The share of kills that may come while the run still starts."""


def wait_for_some_point(
    process: subprocess.Popen[bytes], output: Path, rng: random.Random, *, changes_max: int
) -> bool:
    """Wait until the ledger has changed some times, and a little longer; whether it still runs then.

    Time alone would kill a run that still starts, on a slow machine each time, and then nothing is found.
    """
    ledger = output / "_headrace"
    if rng.random() < STARTING:
        changes, later_s = 0, rng.uniform(0.0, 1.0)
    else:
        changes, later_s = rng.randrange(1, changes_max + 1), rng.uniform(0.0, 0.05)
    before = set(ledger.glob("*"))
    while changes:
        if process.poll() is not None:
            return False
        time.sleep(0.001)
        now = set(ledger.glob("*"))
        changes -= now != before
        before = now
    time.sleep(later_s)
    return process.poll() is None
