"""``headrace init`` writes something that works: its test passes, it can be served, and asked with what is printed."""

import shlex
import subprocess
import sys

import pytest

from integration.command import headrace
from servers.served import WAIT_S, serving


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [((), ["row", "score", "0", "1.7"]), (("--stream",), ["not", "or", "be", "to"])],
)
def test_what_is_written_passes_its_test_and_does_what_is_printed(arguments, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = headrace("init", "my-churn", *arguments)
    assert done.code == 0, done.err
    test, serve, ask = map(shlex.split, done.out.splitlines())
    tested = subprocess.run(
        [sys.executable, "-m", *test, "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout
    assert (serve[:2], ask[:2]) == (["headrace", "serve"], ["headrace", "infer"])
    with serving(*serve[2:]) as served:
        asked = headrace(*ask[1:], "--url", served.rest)
    assert (asked.code, asked.out.split()) == (0, answer), asked.err


def test_its_test_can_fail(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    headrace("init", "churn")
    path = tmp_path / "churn" / "churn.py"
    path.write_text(path.read_text().replace("0.5, 0.3, 0.2", "0.5, 0.3, 0.3"))
    command = [sys.executable, "-m", "pytest", "churn", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert "1 failed, 1 passed" in done.stdout


def test_nothing_is_written_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "churn").mkdir()
    (tmp_path / "churn" / "model.toml").write_text("mine")
    done = headrace("init", "churn")
    assert done.code == 1
    assert "churn already has model.toml" in done.error
    assert [p.name for p in (tmp_path / "churn").iterdir()] == ["model.toml"]
    assert (tmp_path / "churn" / "model.toml").read_text() == "mine"


def test_a_wrong_name_is_one_line():
    done = headrace("init", "1st")
    assert done.code == 1
    assert "cannot be a model's name" in done.error
