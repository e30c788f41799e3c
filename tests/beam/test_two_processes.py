"""Beam's workers as processes: each has a model of its own, or all ask one, and no element is lost either way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.mark.timeout(300)  # every one of its processes imports Beam first
def test_every_element_is_answered_once(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        # Lock files of the model that all share are kept out of others' way.
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    own, shared = _lines(tmp_path, "own"), _lines(tmp_path, "shared")
    for lines in (own, shared):
        assert sorted(int(element) for element, _, _ in lines) == list(range(40))
        assert [said for element, said, _ in lines if element == "13"] == ["unlucky"]
    assert all(worked == asked for element, worked, asked in own if element != "13")
    assert len({worked for element, worked, _ in shared if element != "13"}) == 1
    assert str(os.getpid()) not in {asked for _, _, asked in own}


def _lines(folder: Path, kind: str) -> list[list[str]]:
    """Each one's element, the process that worked its answer out, and the one that asked."""
    return [line.split() for path in folder.glob(f"{kind}-*") for line in path.read_text().splitlines()]
