"""transform/ours.py: what the benchmark makes of reports, old and new, and which files it takes for output."""

import json
from pathlib import Path

import ours
import pytest
from process_tree import Watched

WATCHED = Watched("", "", 0, wall_s=2.0, cpu_s=1.0, peak_mb=50.0)


def test_a_report_of_the_job_alone_is_believed():
    run = ours.run_of({"rows_out": 1000, "rows_per_s": 4000.0, "cpu_s": 0.25}, 1000, WATCHED)
    assert (run.rows_per_s, run.cpu_us_per_row) == (4000.0, 250.0)
    assert (run.whole_rows_per_s, run.whole_cpu_us_per_row) == (500.0, 1000.0)


def test_without_a_report_the_whole_process_counts():
    run = ours.run_of({}, 1000, WATCHED)
    assert (run.rows_per_s, run.cpu_us_per_row) == (500.0, 1000.0)


@pytest.mark.parametrize("word", ["rows_out", "records_out", "rows"])
def test_rows_that_are_missing_break_the_run(word):
    with pytest.raises(ours.BrokenRunError, match="999 rows came out of 1000"):
        ours.run_of({word: 999}, 1000, WATCHED)


def test_the_report_is_the_last_line_or_the_file(tmp_path):
    assert ours.report_in('noise\n{"rows": 3}\n', tmp_path) == {"rows": 3}
    assert ours.report_in("noise\n", tmp_path) == {}
    (tmp_path / "_report.json").write_text(json.dumps({"rows_out": 4}))
    assert ours.report_in("noise\n", tmp_path) == {"rows_out": 4}


def test_outputs_are_those_of_the_verb_in_order_and_nothing_of_headraces_own(tmp_path):
    for name in ("b.csv.out", "a/c.csv.out", "_headrace/x.out", "a/c.csv.out.failed", "part-00000.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(ours.outputs("transform", tmp_path)) == [tmp_path / "a/c.csv.out", tmp_path / "b.csv.out"]
    assert list(ours.outputs("stream", tmp_path)) == [tmp_path / "part-00000.csv"]


def test_a_command_can_be_pinned_to_a_core():
    assert ours.pinned(["a", "b"], None) == ["a", "b"]
    assert ours.pinned(["a", "b"], 1) == ["taskset", "-c", "1", "a", "b"]


def test_stream_has_the_options_that_are_given():
    command = ours.command("stream", Path("rows.csv"), Path("out"), workers=2)
    assert command[3:6] == ["stream", "rows.csv", "--output"]
    assert {option for option in command if option.startswith("--")} <= ours.offered("stream")


def test_what_was_said_last_is_told():
    assert ours.last_line("one\ntwo\n\n") == "two"
    assert ours.last_line("\n") == "and said nothing"
