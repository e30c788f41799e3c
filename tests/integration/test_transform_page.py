"""The HTML report of whole runs: by the command, within a process and over several."""

import json
from pathlib import Path

import pytest

from headrace.app.runners import Workers
from headrace.app.runs import open_run, transform_sync
from headrace.core.errors import TooManyFailuresError
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.settings import TaskSettings, TransformSettings
from integration.command import headrace
from reports.page_reader import Element, read_page

_MODEL = "integration.hooked_model:Hooked"
_ROWS = 300
_FILES = 6
_BAD = "<script>alert(1)</script>"


def _source(folder: Path) -> str:
    source = folder / "in"
    source.mkdir()
    for name in range(_FILES):
        lines = [f"{i},{name}" for i in range(_ROWS - 1)]
        (source / f"{name}.csv").write_text("\n".join([*lines, f"{_BAD},1", ""]))
    return f"{source}/"


def _page(folder: Path) -> Element:
    return read_page((folder / "out" / "_report.html").read_bytes())


def _check(page: Element) -> None:
    assert page.all("h1")[0].text == "Batch transform: complete, with failed records"
    assert page.section("Records").all("b")[0].text == f"{_ROWS * _FILES:,}"
    failures = page.section("Failures")
    assert len(failures.all("li")) == _FILES
    assert all(_BAD in e.text for e in failures.all("pre"))
    (panel,) = [e for e in page.section("Predictions").all("div") if e.attributes.get("class") == "panel"]
    assert f"{(_ROWS - 1) * _FILES:,}" in panel.text
    assert page.all("script") == []


def _small_tasks(**more) -> TransformSettings:
    return TransformSettings(tasks=TaskSettings(task_objects_max=1), **more)


@pytest.mark.slow
def test_observations_of_worker_processes_are_on_one_page(tmp_path):
    opened = open_run(
        _source(tmp_path),
        output=f"{tmp_path}/out/",
        model=_MODEL,
        settings=_small_tasks(),
        workers=Workers(2, "process"),
        report="html",
    )
    with opened as run:
        run.execute()
    _check(_page(tmp_path))


@pytest.mark.slow
def test_observations_of_a_worker_survive_an_error_of_the_run(tmp_path):
    with pytest.raises(TooManyFailuresError):
        transform_sync(
            _source(tmp_path),
            f"{tmp_path}/out/",
            model=_MODEL,
            settings=_small_tasks(failures=FailurePolicy(on_error="job")),
            workers=Workers(2, "process"),
            report="html",
        )
    page = _page(tmp_path)
    assert page.all("h1")[0].text == "Batch transform: stopped by an error"
    assert _BAD in page.section("Failures").all("pre")[0].text


def test_command_writes_a_page_on_request(tmp_path):
    source = _source(tmp_path)
    done = headrace("transform", source, f"{tmp_path}/out/", "--model", _MODEL, "--report", "html", "--json")
    assert done.code == 3
    _check(_page(tmp_path))
    assert json.loads((tmp_path / "out" / "_report.json").read_bytes())["rows_failed"] == _FILES


def test_command_prints_the_path_of_the_page(tmp_path):
    done = headrace("transform", _source(tmp_path), f"{tmp_path}/out/", "--model", _MODEL, "--report", "html")
    (line,) = [line for line in done.out.splitlines() if line.startswith("page ")]
    assert line.split() == ["page", f"{tmp_path}/out/_report.html"]


def test_command_writes_no_page_by_default(tmp_path):
    done = headrace("transform", _source(tmp_path), f"{tmp_path}/out/", "--model", _MODEL)
    assert not any(line.startswith("page ") for line in done.out.splitlines())
    assert not (tmp_path / "out" / "_report.html").exists()
    assert (tmp_path / "out" / "_report.json").exists()


def test_retry_command_writes_the_page_again(tmp_path):
    headrace("transform", _source(tmp_path), f"{tmp_path}/out/", "--model", _MODEL, "--report", "html")
    before = (tmp_path / "out" / "_report.html").read_bytes()
    kept = headrace("transform", "retry-failed", f"{tmp_path}/out/")
    assert (kept.code, "_report.html" in kept.out) == (3, False), "the counts are the same"
    assert (tmp_path / "out" / "_report.html").read_bytes() == before
    again = headrace("transform", "retry-failed", f"{tmp_path}/out/", "--report", "html")
    (line,) = [line for line in again.out.splitlines() if line.startswith("page ")]
    assert line.split() == ["page", f"{tmp_path}/out/_report.html"]
