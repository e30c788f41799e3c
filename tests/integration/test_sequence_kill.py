"""A run of sequences that is killed at random and resumed predicts the same as an undisturbed one.

The states die with the process.
"""

import io
import json
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import levels
from integration.command import contents, headrace, predictions
from integration.random_kills import kill, run_with_kills, wait_for_random_moment

MODEL = str(Path(__file__).parent / "summing_model.py")
MEMBERS = levels.by_level(4, 4, 6)
ROWS = levels.by_level(300, 300, 700)
USERS = 23

Row = tuple[str, str, str]
"""A user, 1 if the session ends, and a value."""


def rows_of(member: int) -> list[Row]:
    """Return rows of users in random order; some records are bad or refused, some end a session."""
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


def expected_predictions(by: str, *, ends: bool) -> Iterator[str]:
    """Compute the predictions in a loop over the rows."""
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
        "--part-bytes-max", "2k", "--checkpoint-s", "0.05", "--json", "--resume", *options,
    ]  # fmt: skip


def kill_at_random(process: subprocess.Popen[bytes], output: Path, rng: random.Random) -> bool:
    """Kill the run after a few changes of its ledger. Return False if it ended before."""
    if not wait_for_random_moment(process, output, rng, changes=range(2, 9), starting=0):
        return False
    kill(process)
    return True


@pytest.mark.in_turn
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
def test_killed_run_of_sequences_predicts_the_same_as_an_undisturbed_one(tmp_path, by, options):
    source = tmp_path / "source.tar.gz"
    make_archive(source)
    undisturbed = tmp_path / "undisturbed"
    report = headrace(*command(source, undisturbed, options)).report
    expected = "".join(f"{line}\n" for line in expected_predictions(by, ends="--sequence-end" in options))
    assert predictions(undisturbed).decode() == expected
    assert (report["records_in"], report["rows_out"]) == (MEMBERS * ROWS, expected.count("\n"))
    assert report["records_replayed"] == 0

    output = run_with_kills(
        lambda output: [sys.executable, "-m", "headrace", *command(source, output, options)],
        tmp_path,
        kill_at_random,
        read=contents,
        expected=contents(undisturbed),
        status=3,
    )
    ended = json.loads((output / "_headrace" / "report.json").read_text())
    counts = ("records_in", "rows_out", "rows_failed")
    assert [ended[name] for name in counts] == [report[name] for name in counts]
    marks = [json.loads(path.read_text()) for path in tmp_path.glob("killed*/_headrace/part-*.json")]
    assert any(mark["replay"] for mark in marks)
