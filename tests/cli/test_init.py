"""``headrace init``: the project passes its test, and the printed commands work."""

import shlex
import subprocess
import sys

import pytest

from cases import for_each
from integration.command import headrace
from servers.served import WAIT_S, serving


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "output"),
    [((), ["row", "score", "0", "1.7"]), (("--stream",), ["not", "or", "be", "to"])],
)
def test_project_passes_its_test_and_its_commands_work(arguments, output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = headrace("init", "my-churn", *arguments)
    assert done.code == 0, done.err
    test, serve, infer = map(shlex.split, done.out.splitlines())
    tested = subprocess.run(
        [sys.executable, "-m", *test, "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout
    assert (serve[:2], infer[:2]) == (["headrace", "serve"], ["headrace", "infer"])
    with serving(*serve[2:]) as served:
        result = headrace(*infer[1:], "--url", served.rest)
    assert (result.code, result.out.split()) == (0, output), result.err


@pytest.mark.slow
def test_project_test_can_fail(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    headrace("init", "churn")
    path = tmp_path / "churn" / "churn.py"
    path.write_text(path.read_text().replace("0.5, 0.3, 0.2", "0.5, 0.3, 0.3"))
    command = [sys.executable, "-m", "pytest", "churn", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert "1 failed, 1 passed" in done.stdout


def run_project_tests(folder, cls):
    """Run the tests of a project in this process; return their number."""
    namespace = {}
    model = folder / f"{folder.name}.py"
    tests = folder / f"test_{folder.name}.py"
    exec(compile(model.read_text(), model, "exec"), namespace)
    source = tests.read_text().replace(f"from {model.stem} import {cls}\n", "")
    exec(compile(source, tests, "exec"), namespace)
    functions = [value for name, value in namespace.items() if name.startswith("test_")]
    for function in functions:
        made = namespace[cls]()
        made.load()
        function(made)
    return len(functions)


@for_each(("arguments", "name", "cls"), [((), "churn", "Churn"), (("--stream",), "writer", "Writer")])
def test_project_tests_pass_in_process(arguments, name, cls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert headrace("init", name, *arguments).code == 0
    assert run_project_tests(tmp_path / name, cls) == 2


def test_project_tests_fail_for_a_wrong_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    headrace("init", "churn")
    path = tmp_path / "churn" / "churn.py"
    path.write_text(path.read_text().replace("0.5, 0.3, 0.2", "0.5, 0.3, 0.3"))
    with pytest.raises(AssertionError, match="Not equal"):
        run_project_tests(tmp_path / "churn", "Churn")


def test_existing_files_are_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "churn").mkdir()
    (tmp_path / "churn" / "model.toml").write_text("mine")
    done = headrace("init", "churn")
    assert done.code == 1
    assert "churn already contains model.toml" in done.error
    assert [p.name for p in (tmp_path / "churn").iterdir()] == ["model.toml"]
    assert (tmp_path / "churn" / "model.toml").read_text() == "mine"


def test_invalid_name_is_one_line():
    done = headrace("init", "1st")
    assert done.code == 1
    assert "is not a valid model name" in done.error
