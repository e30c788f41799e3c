"""transform/headrace_runs.py: reports, options and output files of headrace's command."""

import json
from pathlib import Path

import headrace_runs
import pytest
from process_tree import CommandUsage

WATCHED = CommandUsage("", "", 0, wall_s=2.0, cpu_s=1.0, peak_mb=50.0)


def test_rates_of_the_report_are_used():
    run = headrace_runs.run_of({"rows_out": 1000, "rows_per_s": 4000.0, "cpu_s": 0.25}, 1000, WATCHED)
    assert (run.rows_per_s, run.cpu_us_per_row) == (4000.0, 250.0)
    assert (run.whole_rows_per_s, run.whole_cpu_us_per_row) == (500.0, 1000.0)


def test_without_a_report_the_whole_process_counts():
    run = headrace_runs.run_of({}, 1000, WATCHED)
    assert (run.rows_per_s, run.cpu_us_per_row) == (500.0, 1000.0)


@pytest.mark.parametrize("word", ["rows_out", "records_out", "rows"])
def test_missing_rows_break_the_run(word):
    with pytest.raises(headrace_runs.BrokenRunError, match="999 rows out for 1000 rows in"):
        headrace_runs.run_of({word: 999}, 1000, WATCHED)


def test_report_is_the_last_line_or_the_file(tmp_path):
    assert headrace_runs.report_in('noise\n{"rows": 3}\n', tmp_path) == {"rows": 3}
    assert headrace_runs.report_in("noise\n", tmp_path) == {}
    (tmp_path / "_report.json").write_text(json.dumps({"rows_out": 4}))
    assert headrace_runs.report_in("noise\n", tmp_path) == {"rows_out": 4}


def test_outputs_are_ordered_and_exclude_headrace_files(tmp_path):
    for name in ("b.csv.out", "a/c.csv.out", "_headrace/x.out", "a/c.csv.out.failed", "part-00000.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(headrace_runs.outputs("transform", tmp_path)) == [
        tmp_path / "a/c.csv.out",
        tmp_path / "b.csv.out",
    ]
    assert list(headrace_runs.outputs("stream", tmp_path)) == [tmp_path / "part-00000.csv"]


def test_command_can_be_pinned_to_a_core():
    assert headrace_runs.pinned(["a", "b"], None) == ["a", "b"]
    assert headrace_runs.pinned(["a", "b"], 1) == ["taskset", "-c", "1", "a", "b"]


def test_options_of_the_command_exist():
    command = headrace_runs.command("stream", Path("rows.csv"), Path("out"), workers=2)
    assert command[3:6] == ["stream", "rows.csv", "--output"]
    assert {option for option in command if option.startswith("--")} <= headrace_runs.offered("stream")


def test_last_line_skips_empty_lines():
    assert headrace_runs.last_line("one\ntwo\n\n") == "two"
    assert headrace_runs.last_line("\n") == "it printed nothing"
