"""A run by tasks that is killed at random and resumed writes the same bytes as an undisturbed one."""

import gzip
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import levels
from integration.random_kills import kill, run_with_kills, wait_for_random_moment
from integration.transform_process import outputs

MODEL = str(Path(__file__).parent / "killed_model.py")
LARGE_ROWS = levels.by_level(6_000, 6_000, 16_000)
PACKED_ROWS = levels.by_level(2_000, 2_000, 4_000)
SMALL_FILES = levels.by_level(40, 40, 120)


def rows(count: int, rng: random.Random) -> bytes:
    """Return CSV of an ID, now and then quoted with newlines, four numbers, and a day; some rows are bad."""
    lines = []
    for row in range(count):
        cells = [f"{rng.random():.4f}" for _ in range(4)]
        name = f'"row, ""{row}""\nof many"' if row % 7 == 3 else f"row {row}"
        if row % 97 == 5:
            cells[2] = "oops"
        lines.append(",".join([name, *cells, f"2026-11-{row % 5 + 1:02d}"]))
    return "\n".join(lines).encode() + b"\n"


def make_source(folder: Path) -> None:
    rng = random.Random(11)
    (folder / "day").mkdir(parents=True)
    (folder / "large.csv").write_bytes(rows(LARGE_ROWS, rng))
    (folder / "day" / "packed.csv.gz").write_bytes(gzip.compress(rows(PACKED_ROWS, rng)))
    (folder / "day" / "empty.csv").write_bytes(b"")
    for number in range(SMALL_FILES):
        (folder / "day" / f"{number:03d}.csv").write_bytes(rows(rng.randrange(30), rng))


BY_DAY = ("--partition-by", "5")


def command(source: Path, output: Path, isolation: str, options: tuple[str, ...]) -> list[str]:
    return [
        sys.executable, "-m", "headrace", "transform", str(source), str(output), "--model", MODEL,
        "--input-filter", "$[1:5]", "--join", "input", "--task-bytes", "60k", "--batch-rows-max", "64",
        "--checkpoint-s", "0.05", "--workers", "2" if isolation == "process" else "1",
        "--isolation", isolation, "--quiet", "--resume", *options,
    ]  # fmt: skip


def stream_command(source: Path, output: Path, isolation: str, options: tuple[str, ...]) -> list[str]:
    return [
        sys.executable, "-m", "headrace", "stream", f"{source}/", "--output", f"{output}/", "--model", MODEL,
        "--input-filter", "$[1:5]", "--task-bytes", "60k", "--batch-rows-max", "64", "--checkpoint-s", "0.05",
        "--workers", "2" if isolation == "process" else "1", "--isolation", isolation, "--quiet", "--resume",
        *options,
    ]  # fmt: skip


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


RUN_FAILED = 1
"""The exit status of a run that can be resumed after an error."""


def kill_at_random(process: subprocess.Popen[bytes], output: Path, rng: random.Random) -> bool:
    """Kill the run after a few changes of its ledger. Return False if it ended by itself before.

    A run that ends because a worker was killed while it loaded the model counts as killed.
    """
    if not wait_for_random_moment(process, output, rng, changes=range(1, 12)):
        return False
    workers = children(process.pid)
    if workers and rng.random() < 0.4:
        # A worker alone dies first: the run replaces it, or ends if the worker was still loading.
        os.kill(rng.choice(workers), signal.SIGKILL)
        if not wait_for_random_moment(process, output, rng, changes=range(1, 3)):
            if process.returncode == RUN_FAILED:
                assert process.stderr is not None
                assert b"while it loaded" in process.stderr.read()
            return process.returncode == RUN_FAILED
    kill(process)
    return True


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("isolation", "options"), [("thread", ()), ("process", ()), ("thread", BY_DAY)])
def test_killed_transform_writes_the_bytes_of_an_undisturbed_one(tmp_path, isolation, options):
    source = tmp_path / "in"
    make_source(source)
    undisturbed = tmp_path / "undisturbed"
    done = subprocess.run(command(source, undisturbed, "thread", options), capture_output=True, check=False)
    assert done.returncode == 3, done.stderr.decode()
    expected = outputs(undisturbed)
    assert len([name for name in expected if name.endswith(".out")]) >= SMALL_FILES + 3
    large = [data for name, data in expected.items() if name.endswith("large.csv.out")]
    assert len(large) == (5 if options else 1)
    assert sum(data.count(b"\n") for data in large) > LARGE_ROWS
    output = run_with_kills(
        lambda output: command(source, output, isolation, options),
        tmp_path,
        kill_at_random,
        read=outputs,
        expected=expected,
        status=3,
    )
    assert not list((output / "_headrace" / "drafts").glob("*"))
    assert not list(output.rglob(".headrace-*"))


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("options", [(), ("--sample", "60%", *BY_DAY)])
def test_killed_stream_with_workers_writes_the_parts_of_an_undisturbed_one(tmp_path, options):
    source = tmp_path / "in"
    make_source(source)
    undisturbed = tmp_path / "undisturbed"
    undisturbed_command = stream_command(source, undisturbed, "thread", options)
    done = subprocess.run(undisturbed_command, capture_output=True, check=False)
    assert done.returncode == 3, done.stderr.decode()
    expected = outputs(undisturbed)
    assert len([name for name in expected if name.endswith(".csv")]) > 3
    output = run_with_kills(
        lambda output: stream_command(source, output, "process", options),
        tmp_path,
        kill_at_random,
        read=outputs,
        expected=expected,
        status=3,
    )
    assert not list((output / "_headrace" / "drafts").glob("*"))
    assert not list(output.rglob(".headrace-*"))
