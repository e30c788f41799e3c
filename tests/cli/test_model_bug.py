"""Whole commands with a model that raises: the traceback, the exit code and the number of calls."""

import json
from pathlib import Path

import pytest

from integration.command import CommandResult, failures, headrace

BUG = """
import headrace


class Churn(headrace.Model):
    def predict(self, x):
        doubled = x * 2
        return self.nope(doubled)
"""
PLACE = "churn.py:8 in predict"
MESSAGE = "AttributeError: 'Churn' object has no attribute 'nope'"
TRACEBACK = f"""\
the model raised AttributeError ({PLACE})
Traceback (most recent call last):
  File "churn.py", line 8, in predict
    return self.nope(doubled)
           ^^^^^^^^^
{MESSAGE}

"""
BUG_OF_SOME_ROWS = BUG.replace(
    "return self.nope(doubled)", "return self.nope() if (x < 0).any() else x[:, 0]"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("churn.py").write_text(BUG)
    Path("rows.csv").write_text("".join(f"{i},1\n" for i in range(200_000)))


def run(command: str, *args: str, output: str = "out/") -> CommandResult:
    common = ("--model", "churn.py", "--quiet", *args)
    if command == "stream":
        return headrace("stream", "rows.csv", "--output", output, *common)
    return headrace("transform", "rows.csv", output, *common)


@pytest.mark.parametrize("command", ["stream", "transform"])
def test_bug_stops_the_command_with_its_traceback(command):
    """Before: 399,804 calls, the status "complete", exit code 3, and no file or line."""
    done = run(command)
    assert done.code == 1
    assert done.out == ""
    traceback, _, error = done.err.rpartition("error: ")
    assert traceback == TRACEBACK
    assert error.startswith(
        "model churn: it raised the same exception for every tried row of its first 3 batches"
    )
    assert f"{MESSAGE} ({PLACE})" in error
    assert "--on-error record" in error
    assert not [path for path in Path("out").glob("*") if path.is_file()]


def test_error_line_of_json_has_the_traceback():
    done = run("stream", "--json")
    assert done.code == 1
    line = done.lines[-1]
    assert (line["event"], line["type"], line["exit_code"]) == ("error", "BrokenModelError", 1)
    assert (line["traceback"]["file"], line["traceback"]["line"]) == ("churn.py", 8)


def test_page_of_a_stopped_run_has_the_traceback():
    run("transform", "--report", "html")
    assert "return self.nope(doubled)" in Path("out/_report.html").read_text()


def test_explicit_record_stops_at_the_default_limit():
    done = run("stream", "--on-error", "record")
    assert done.code == 1
    assert done.err.startswith(TRACEBACK)
    assert "records failed, and a run stops above 10,000 failed records" in done.err


def test_every_row_is_recorded_on_request():
    Path("rows.csv").write_text("1,1\n" * 3_000)
    done = run("stream", "--on-error", "record", "--max-failed", "none", "--json", "--report", "html")
    assert done.code == 3
    assert done.err == TRACEBACK
    report = json.loads(Path("out/_report.json").read_text())
    assert (report["rows_failed"], report["failure_limit"]) == (3_000, "no limit")
    assert {failure["reason"] for failure in failures(Path("out"))} == {f"{MESSAGE} ({PLACE})"}
    (traceback,) = report["tracebacks"]
    assert (traceback["file"], traceback["line"], traceback["function"]) == ("churn.py", 8, "predict")
    assert traceback["source"] == "return self.nope(doubled)"
    assert list(report["failures"]) == [f'model: AttributeError: "…" object has no attribute "…" ({PLACE})']
    assert "return self.nope(doubled)" in Path("out/_report.html").read_text()


def test_bug_of_some_rows_is_in_the_report_and_on_the_terminal():
    Path("churn.py").write_text(BUG_OF_SOME_ROWS)
    Path("rows.csv").write_text("1,1\n" * 50 + "-1,1\n" * 3)
    done = run("stream")
    assert done.code == 3
    assert "raised at       churn.py:8 in predict, AttributeError: return self.nope() if" in done.out
    assert done.err.startswith(f"the model raised AttributeError ({PLACE})\nTraceback")
    assert done.err.count("Traceback") == 1


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_bug_in_workers_stops_the_command(isolation):
    done = run("stream", "--workers", "2", "--isolation", isolation, "--task-bytes", "100KiB")
    assert done.code == 1
    assert "return self.nope(doubled)" in done.err
    assert f"{MESSAGE} ({PLACE})" in done.err
    assert not list(Path("out").glob("part-*"))


def test_record_in_workers_reports_the_traceback():
    Path("rows.csv").write_text("1,1\n" * 2_000)
    done = run("transform", "--workers", "2", "--on-error", "record", "--json")
    assert done.code == 3
    assert done.lines[-1]["tracebacks"][0]["line"] == 8
    assert "return self.nope(doubled)" in done.err


def test_corrected_model_runs_again_and_record_resumes():
    """Another model is not a resumption; the same model with --on-error record is."""
    Path("rows.csv").write_text("1,1\n" * 4_000)
    assert run("transform").code == 1
    resumed = run("transform", "--resume", "--on-error", "record", "--max-failed", "none", "--json")
    assert resumed.code == 3
    assert run("transform", output="other/").code == 1
    Path("churn.py").write_text(BUG.replace("self.nope(doubled)", "doubled[:, 0]"))
    refused = run("transform", "--resume", output="other/")
    assert refused.code == 1
    assert "model was" in refused.err
    assert run("transform", "--overwrite", output="other/").code == 0


def test_dry_run_shows_the_failure_limit():
    done = run("stream", "--dry-run", "--max-failed", "7")
    assert "failures        the run stops above 7 failed records (--max-failed)" in done.out
    line = run("stream", "--dry-run", "--json").lines[0]
    assert line["failure_limit"].startswith("the run stops above 10,000 failed records")
