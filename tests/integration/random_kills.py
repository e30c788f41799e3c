"""Runs that are killed at random moments, resumed and killed again until they end."""

import random
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import levels
from servers.polling import reached

KILLS = levels.by_level(2, 3, 60)
"""Kills of each run."""
STARTING = 1 / 6
"""The share of kills that may happen while the run still starts."""
CHANGE_TIMEOUT_S = 60.0

Contents = Mapping[str, bytes]
Kill = Callable[[subprocess.Popen[bytes], Path, random.Random], bool]


def wait_for_random_moment(
    process: subprocess.Popen[bytes],
    output: Path,
    rng: random.Random,
    *,
    changes: range,
    starting: float = STARTING,
) -> bool:
    """Wait until the run's ledger has changed a random number of times, and a random moment longer.

    Return True if the run has not ended. Time alone would kill a slow machine's runs while they
    start, and would test nothing else. `starting` is the share of moments during the start.
    """
    if rng.random() < starting:
        left, later_s = 0, rng.uniform(0.0, 1.0)
    else:
        left, later_s = rng.choice(changes), rng.uniform(0.0, 0.05)

    def records() -> set[Path]:
        # The ledger of a run whose output is a table is in a folder of the table.
        return {*output.glob("_headrace/*"), *output.glob("headrace-*/_headrace/*")}

    before = records()

    def changed_or_ended() -> bool:
        nonlocal before, left
        now = records()
        left -= now != before
        before = now
        return left <= 0 or process.poll() is not None

    assert not left or reached(changed_or_ended, timeout_s=CHANGE_TIMEOUT_S, interval_s=0.001)
    try:
        process.wait(later_s)
    except subprocess.TimeoutExpired:
        return True
    return False


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def run_with_kills(
    command: Callable[[Path], list[str]],
    folder: Path,
    kill_at_random: Kill,
    *,
    read: Callable[[Path], Any],
    expected: Any,
    status: int,
) -> Path:
    """Resume a run until it was killed `KILLS` times and has ended. Return its output.

    A run that ends before its last kill must have the `expected` output; then another run begins.
    `command` returns the arguments for an output, `read` the contents of an output.
    """
    rng = random.Random(20261121)
    kills = 0
    output = folder / "killed"
    while kills < KILLS:
        with subprocess.Popen(command(output), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            killed = kill_at_random(process, output, rng)
            error = process.stderr.read().decode() if process.stderr else ""
        if killed:
            kills += 1
            continue
        assert process.returncode == status, error
        assert read(output) == expected
        output = folder / f"killed-{kills}"
    done = subprocess.run(command(output), capture_output=True, check=False)
    assert done.returncode == status, done.stderr.decode()
    assert read(output) == expected
    assert not list((output / "_headrace").glob("*checkpoint*"))
    return output
