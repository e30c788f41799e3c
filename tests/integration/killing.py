"""When to kill a run, at random, and how often."""

import os
import random
import subprocess
import time
from pathlib import Path

KILLS = int(os.environ.get("HEADRACE_KILLS", "15"))
"""Each run is killed so often; HEADRACE_KILLS=60 takes minutes."""


def wait_for_some_point(
    process: subprocess.Popen[bytes],
    output: Path,
    rng: random.Random,
    *,
    between_s: tuple[float, float],
    watched: float,
    changes_max: int,
) -> bool:
    """Wait for a random time, or (a share of `watched`) for some changes of the ledger; whether it still runs then."""
    ledger = output / "_headrace"
    deadline = time.monotonic() + rng.uniform(*between_s)
    watch_ledger = rng.random() < watched
    before, changes = set(ledger.glob("*")), rng.randrange(1, changes_max + 1)
    while time.monotonic() < deadline + (2.0 if watch_ledger else 0.0):
        if process.poll() is not None:
            return False
        if watch_ledger and (now := set(ledger.glob("*"))) != before:
            before = now
            changes -= 1
            if changes == 0:
                break
        time.sleep(0.001)
    return True
