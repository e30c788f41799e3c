"""Runs of sequences, killed at random and resumed: states die with the process, and the predictions must not tell."""

import io
import json
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.command import contents, headrace, predictions
from integration.killing import KILLS

MODEL = str(Path(__file__).parent / "summing_model.py")
MEMBERS = 6
ROWS = 700
USERS = 23

Row = tuple[str, str, str]
"""A user, whether the session ends, a value."""


def rows_of(member: int) -> list[Row]:
    """Users in no order; bad records, refused ones, and ends of sessions, some of them in a bad record."""
    rng = random.Random(member)
    found: list[Row] = []
    for _ in range(ROWS):
        value = rng.choice(["13", "oops"]) if rng.random() < 0.05 else str(rng.randrange(20, 1000))
        found.append((f"user-{rng.randrange(USERS)}", str(int(rng.random() < 0.2)), value))
    return found


def make_archive(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for member in range(MEMBERS):
            data = "".join(f"{','.join(row)}\n" for row in rows_of(member)).encode()
            info = tarfile.TarInfo(f"day/{member:03d}.csv")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def added_up(by: str, *, ends: bool) -> Iterator[str]:
    """The predictions, as a loop over the rows has them."""
    states: dict[str, tuple[int, int]] = {}
    for member in range(MEMBERS):
        for user, end, value in rows_of(member):
            id = user if by == "0" else str(member)
            if value not in ("oops", "13"):
                total, steps = states.get(id, (0, 0))
                states[id] = (total + int(value), steps + 1)
                yield f"{total + int(value)},{steps}"
            if ends and end == "1":
                states.pop(id, None)


def command(source: Path, output: Path, options: tuple[str, ...]) -> list[str]:
    return [
        "stream", str(source), "--model", MODEL, "--output", str(output), "--columns", "2",
        "--part-bytes", "5k", "--checkpoint-s", "0.05", "--json", "--resume", *options,
    ]  # fmt: skip


def kill_after_commits(args: list[str], output: Path, rng: random.Random) -> bool:
    """Kill the command once its ledger has changed some times more, and a little later; whether it was still running."""
    ledger = output / "_headrace"
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        before, changes = set(ledger.glob("*")), rng.randrange(2, 9)
        while changes and process.poll() is None:
            time.sleep(0.001)
            now = set(ledger.glob("*"))
            changes -= now != before
            before = now
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        error = process.stderr.read().decode() if process.stderr else ""
    assert process.returncode in (-signal.SIGKILL, 3), error
    return process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("by", "options"),
    [
        ("0", ("--sequence", "0", "--sequence-end", "1")),
        ("0", ("--sequence", "0")),
        ("@member", ("--sequence", "@member")),
    ],
)
def test_a_killed_run_of_sequences_predicts_what_an_undisturbed_one_does(tmp_path, by, options):
    source = tmp_path / "source.tar.gz"
    make_archive(source)
    undisturbed = tmp_path / "undisturbed"
    report = headrace(*command(source, undisturbed, options)).report
    expected = "".join(f"{line}\n" for line in added_up(by, ends="--sequence-end" in options))
    assert predictions(undisturbed).decode() == expected
    assert (report["records_in"], report["rows_out"]) == (MEMBERS * ROWS, expected.count("\n"))
    assert report["records_replayed"] == 0

    rng = random.Random(20261122)
    output = tmp_path / "killed"
    kills = sum(kill_after_commits(command(source, output, options), output, rng) for _ in range(KILLS))
    assert kills >= KILLS // 2
    resumed = headrace(*command(source, output, options)).report
    assert contents(output) == contents(undisturbed)
    counts = ("records_in", "rows_out", "rows_failed")
    assert [resumed[name] for name in counts] == [report[name] for name in counts]
    marks = [json.loads(p.read_text()) for p in (output / "_headrace").glob("part-*.json")]
    assert any("replay" in mark for mark in marks)
