"""Beam's workers as processes, with a model each or one model for all. No element is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.mark.timeout(300)  # Every process imports Beam first.
def test_every_element_has_one_result(tmp_path):
    completed = subprocess.run(
        [sys.executable, SCRIPT, tmp_path],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        # Beam's lock files of the shared model stay in a private folder.
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert completed.returncode == 0, completed.stderr
    own, shared = _lines(tmp_path, "own"), _lines(tmp_path, "shared")
    for lines in (own, shared):
        assert sorted(int(element) for element, _, _ in lines) == list(range(40))
        assert [inference for element, inference, _ in lines if element == "13"] == ["unlucky"]
    assert all(
        predicted_in == pipeline_process for element, predicted_in, pipeline_process in own if element != "13"
    )
    assert len({predicted_in for element, predicted_in, _ in shared if element != "13"}) == 1
    assert str(os.getpid()) not in {pipeline_process for _, _, pipeline_process in own}


def _lines(folder: Path, kind: str) -> list[list[str]]:
    """Return for each result: the element, the process of the prediction, and the process of the
    pipeline.
    """
    return [line.split() for path in folder.glob(f"{kind}-*") for line in path.read_text().splitlines()]
