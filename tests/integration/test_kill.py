"""Killed at random, resumed, killed again: the output must be an undisturbed run's, byte for byte."""

import io
import random
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from integration.killing import KILLS, wait_for_some_point

MEMBERS = 12
ROWS = 2_500
MODEL = str(Path(__file__).parent / "killed_model.py")


def make_archive(path: Path) -> None:
    """A tar.gz of CSV members with quoted text, a bad row here and there."""
    rng = random.Random(7)
    with tarfile.open(path, "w:gz") as archive:
        for member in range(MEMBERS):
            lines = []
            for row in range(ROWS):
                cells = [f"{rng.random():.4f}" for _ in range(4)]
                if row % 97 == 5:
                    cells[2] = "oops"
                if row % 61 == 3:
                    cells[1] = f'"{cells[1]}"'
                lines.append(",".join(cells))
            data = ("\n".join(lines) + "\n").encode()
            info = tarfile.TarInfo(f"day/{member:03d}.csv")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def command(source: Path, output: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "headrace", "stream", str(source), "--model", MODEL, "--output", str(output),
        "--join", "input", "--part-bytes", "100k", "--checkpoint-s", "0.05", "--quiet", *more,
    ]  # fmt: skip


def contents(output: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(output.glob("part-*"))}


def kill_at_some_point(process: subprocess.Popen[bytes], output: Path, rng: random.Random) -> bool:
    """Kill the process when its ledger has changed a few times; whether it was still running."""
    if not wait_for_some_point(process, output, rng, changes_max=5):
        return False
    process.send_signal(signal.SIGKILL)
    process.wait()
    return True


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_output_after_many_kills_is_an_undisturbed_runs(tmp_path):
    source = tmp_path / "source.tar.gz"
    make_archive(source)
    undisturbed = tmp_path / "undisturbed"
    done = subprocess.run(command(source, undisturbed), capture_output=True, check=False)
    assert done.returncode == 3, done.stderr.decode()
    expected = contents(undisturbed)
    assert len(expected) > 10

    rng = random.Random(20261121)
    kills = 0
    output = tmp_path / "killed"
    while kills < KILLS:
        with subprocess.Popen(
            command(source, output, "--resume"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
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
    done = subprocess.run(command(source, output, "--resume"), capture_output=True, check=False)
    assert done.returncode == 3, done.stderr.decode()
    assert contents(output) == expected
    assert not list((output / "_headrace").glob("*checkpoint*"))
