"""The tutorial docs/first-change.md works as written: its files, its changes and its commands.

Python blocks create the file that the paragraph before them names. Diff blocks change the file named
last: their unchanged and removed lines occur there once.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first-change.md").read_text()
_STEP = re.compile(
    r"`(?P<file>(?:src|tests|docs)/[\w/]+\.\w+)`"
    r"|^```(?P<kind>py|python|diff|console)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def _apply_page(folder: Path) -> int:
    """Apply the page to a copy of the sources. Return the number of lines added, without blank ones."""
    added, file = 0, folder
    for step in _STEP.finditer(PAGE):
        text = step["text"]
        if step["file"]:
            file = folder / step["file"]
        elif step["kind"] in {"py", "python"}:
            assert not file.exists()
            file.write_text(text)
            added += sum(bool(line) for line in text.splitlines())
        elif step["kind"] == "diff":
            lines = text.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if not line.startswith("+"))
            assert file.read_text().count(old) == 1, old
            new = "".join(line[1:] for line in lines if not line.startswith("-"))
            file.write_text(file.read_text().replace(old, new))
            added += text.count("\n+") + text.startswith("+")
    return added


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sources as they are after the tutorial."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / "tests" / "formats").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (lines,) = re.findall(r"^# .* in (\d+) lines$", PAGE, re.MULTILINE)
    assert _apply_page(folder) == int(lines)
    return folder


def _run(folder: Path, *command: str) -> str:
    environ = {
        **os.environ,
        "PYTHONPATH": str(folder / "src"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode in (0, 3), done.stdout + done.stderr
    return done.stdout


def test_the_new_tests_pass(checkout):
    assert "2 passed" in _run(checkout, sys.executable, "-m", "pytest", "-q", "tests/formats/test_logfmt.py")


def test_the_changed_sources_keep_the_style(checkout):
    _run(checkout, "ruff", "format", "--check", ".")
    _run(checkout, "ruff", "check", "src", "tests")


def test_the_commands_predict_logfmt(checkout):
    ((commands, shown),) = re.findall(
        r"^## Use it\n\n```console\n(.*?)^```$.*?^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    )
    assert _run(checkout, "bash", "-c", commands).endswith(shown)
