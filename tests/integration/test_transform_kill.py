"""Transforms killed at random, resumed, killed again: every output must be an undisturbed run's, byte for byte."""

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.killing import KILLS, wait_for_some_point

MODEL = str(Path(__file__).parent / "killed_model.py")


def rows(count: int, rng: random.Random) -> bytes:
    """CSV of an ID that may be quoted, with newlines in it, and four numbers; some rows are bad."""
    lines = []
    for row in range(count):
        cells = [f"{rng.random():.4f}" for _ in range(4)]
        name = f'"row, ""{row}""\nof many"' if row % 7 == 3 else f"row {row}"
        if row % 97 == 5:
            cells[2] = "oops"
        lines.append(",".join([name, *cells]))
    return "\n".join(lines).encode() + b"\n"


def make_source(folder: Path) -> None:
    rng = random.Random(11)
    (folder / "day").mkdir(parents=True)
    (folder / "large.csv").write_bytes(rows(16_000, rng))
    (folder / "day" / "packed.csv.gz").write_bytes(gzip.compress(rows(4_000, rng)))
    (folder / "day" / "empty.csv").write_bytes(b"")
    for number in range(120):
        (folder / "day" / f"{number:03d}.csv").write_bytes(rows(rng.randrange(30), rng))


def command(source: Path, output: Path, isolation: str, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "headrace", "transform", str(source), str(output), "--model", MODEL,
        "--input-filter", "$[1:]", "--join", "input", "--task-bytes", "60k", "--batch-rows", "64",
        "--checkpoint-s", "0.05", "--workers", "2" if isolation == "process" else "1",
        "--isolation", isolation, "--quiet", *more,
    ]  # fmt: skip


def contents(output: Path) -> dict[str, bytes]:
    files = [p for p in sorted(output.rglob("*")) if p.is_file() and "_headrace" not in p.parts]
    return {str(p.relative_to(output)): p.read_bytes() for p in files if p.name != "_report.json"}


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


def kill_at_some_point(process: subprocess.Popen[bytes], output: Path, rng: random.Random) -> bool:
    """Kill the run when its ledger has changed a few times; whether it was still running."""
    if not wait_for_some_point(process, output, rng, changes_max=11):
        return False
    workers = children(process.pid)
    if workers and rng.random() < 0.4:
        # A worker alone: the run goes on, with another in its place.
        os.kill(rng.choice(workers), signal.SIGKILL)
        time.sleep(rng.uniform(0.0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.wait()
    return True


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_outputs_after_many_kills_are_an_undisturbed_runs(tmp_path, isolation):
    source = tmp_path / "in"
    make_source(source)
    undisturbed = tmp_path / "undisturbed"
    done = subprocess.run(command(source, undisturbed, "thread"), capture_output=True, check=False)
    assert done.returncode == 3, done.stderr.decode()
    expected = contents(undisturbed)
    assert len([name for name in expected if name.endswith(".out")]) == 123
    assert expected["large.csv.out"].count(b"\n") > 16_000

    rng = random.Random(20261121)
    kills = 0
    output = tmp_path / "killed"
    while kills < KILLS:
        with subprocess.Popen(
            command(source, output, isolation, "--resume"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            killed = kill_at_some_point(process, output, rng)
            error = process.stderr.read().decode() if process.stderr else ""
        if killed:
            kills += 1
            continue
        assert process.returncode == 3, error
        assert contents(output) == expected
        # Finished before its last kill: begin again, somewhere else.
        output = tmp_path / f"killed-{kills}"
    done = subprocess.run(command(source, output, isolation, "--resume"), capture_output=True, check=False)
    assert done.returncode == 3, done.stderr.decode()
    assert contents(output) == expected
    assert not list((output / "_headrace").glob("*checkpoint*"))
    assert not list((output / "_headrace" / "drafts").glob("*"))
    assert not list(output.rglob(".headrace-*"))
