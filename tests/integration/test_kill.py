"""A stream that is killed at random and resumed writes the same bytes as an undisturbed one."""

import io
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import levels
from integration.command import contents
from integration.random_kills import kill, run_with_kills, wait_for_random_moment

MEMBERS = levels.by_level(6, 6, 12)
ROWS = 2_000
MODEL = str(Path(__file__).parent / "killed_model.py")


def make_archive(path: Path) -> None:
    """Write a tar.gz of CSV members with quoted text and some bad rows."""
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


SUBSETS = [(), ("--sample", "40%", "--limit", "4000")]


def command(source: Path, output: Path, subset: tuple[str, ...]) -> list[str]:
    return [
        sys.executable, "-m", "headrace", "stream", str(source), "--model", MODEL, "--output", str(output),
        "--join", "input", "--part-bytes-max", "40k", "--checkpoint-s", "0.05", "--quiet", "--resume",
        *subset,
    ]  # fmt: skip


def kill_at_random(process: subprocess.Popen[bytes], output: Path, rng: random.Random) -> bool:
    """Kill the run after a few changes of its ledger. Return False if it ended before."""
    if not wait_for_random_moment(process, output, rng, changes=range(1, 6)):
        return False
    kill(process)
    return True


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("subset", SUBSETS)
def test_killed_stream_writes_the_bytes_of_an_undisturbed_one(tmp_path, subset):
    source = tmp_path / "source.tar.gz"
    make_archive(source)
    undisturbed = tmp_path / "undisturbed"
    done = subprocess.run(command(source, undisturbed, subset), capture_output=True, check=False)
    assert done.returncode == 3, done.stderr.decode()
    expected = contents(undisturbed)
    assert len(expected) > (5 if subset else 10)
    run_with_kills(
        lambda output: command(source, output, subset),
        tmp_path,
        kill_at_random,
        read=contents,
        expected=expected,
        status=3,
    )
