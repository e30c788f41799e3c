"""The source distribution has all files of a checkout, and no generated ones."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
GENERATED = (
    ".venv/bin/python",
    ".venv-clients/kserve/setup.stamp",
    ".git/config",
    ".ruff_cache/0",
    "build/lib/a.py",
    "demo/model.onnx",
    "bench-results/a.json",
    "docs/.hypothesis/a",
    "examples/__pycache__/a.cpython-311.pyc",
    "examples/sequences/characters/weights.npz",
    "examples/serving/breast-cancer/model.onnx",
    "tests/.pytest_cache/a",
    "tests/__pycache__/a.cpython-311.pyc",
    "tests/data/a.pyc",
)
MADE_BY_SETUPTOOLS = {"PKG-INFO", "setup.cfg"}


def tracked_files() -> set[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return {name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()}


@pytest.mark.slow
def test_sdist_has_the_files_of_the_repository_and_no_others(tmp_path):
    tracked = tracked_files()
    for name in [*tracked, *GENERATED]:
        copy = tmp_path / "checkout" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if name in tracked:
            shutil.copyfile(ROOT / name, copy)
        else:
            copy.write_text("generated\n")
    command = [sys.executable, "-c", BUILD, str(tmp_path / "dist")]
    done = subprocess.run(command, cwd=tmp_path / "checkout", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "dist").iterdir()
    with tarfile.open(path) as archive:
        found = {m.name.partition("/")[2] for m in archive if m.isfile()}
    found = {name for name in found if ".egg-info/" not in name} - MADE_BY_SETUPTOOLS
    assert found - tracked == set(), "generated files"
    assert tracked - found == set(), "name these in MANIFEST.in"
    assert {"Makefile", "conftest.py", "constraints.txt", "docs/streaming.md", "tests/conftest.py"} <= found
