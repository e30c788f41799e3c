"""What counts the faults' costs can tell when there are any."""

import json

from faults import report
from faults.steps import Step
from faults.tally import Wreck, duplicate_executions, duplicate_results, recovery_s


def _step(job: str, was: str, then: str, at_ms: int, worker: str = "a") -> Step:
    return Step(job, was, then, 1, worker, at_ms)


def test_a_job_that_ends_twice_is_a_duplicate_result_whichever_way_it_ended():
    steps = [
        _step("x", "running", "completed", 1),
        _step("x", "completed", "running", 2),
        _step("y", "running", "failed", 2),
    ]
    assert duplicate_results(steps) == 0
    assert (
        duplicate_results([*steps, _step("x", "running", "cancelled", 3), _step("x", "a", "completed", 4)])
        == 2
    )


def test_executions_beyond_the_first_are_duplicates():
    assert duplicate_executions({1: 1, 2: 3, 3: 2}) == 3


def test_recovery_is_until_the_last_job_of_the_dead_was_claimed_by_another():
    steps = [
        _step("x", "pending", "running", 0),
        _step("y", "pending", "running", 1),
        _step("x", "running", "pending", 3000),
        _step("y", "running", "pending", 3000),
        _step("z", "pending", "running", 1500, worker="b"),
        _step("x", "pending", "running", 4000, worker="b"),
        _step("y", "pending", "running", 5500, worker="b"),
    ]
    assert recovery_s(steps, [Wreck(1000, "a")]) == 4.5
    assert recovery_s(steps, [Wreck(1000)]) == 0.5
    assert recovery_s(steps, [Wreck(1000, "nobody")]) is None
    assert recovery_s(steps, []) is None


def _line(fault: int, **values) -> report.Line:
    whole = dict.fromkeys(report.COLUMNS, 0)
    return {"fault": fault, "run": f"run{fault}", **whole, "recovery_seconds": None, **values}


def test_the_report_sums_what_is_counted_and_takes_the_worst_of_what_is_measured(tmp_path):
    path = tmp_path / "lines"
    report.add_line(path, _line(2, jobs=3, recovery_seconds=1.5, completion_rate_vs_baseline=0.9))
    report.add_line(path, _line(1, jobs=4, recovery_seconds=2.5, completion_rate_vs_baseline=None))
    lines = report.read_lines(path)
    assert [line["fault"] for line in lines] == [1, 2]
    told = json.loads(report.as_json(lines))
    assert told["holds"]
    assert (told["total"]["jobs"], told["total"]["recovery_seconds"]) == (7, 2.5)
    assert told["total"]["completion_rate_vs_baseline"] == 0.9
    assert report.as_table(lines).splitlines()[-1].split() == ["total", "7", "0", "0", "0", "2.50", "0.90"]


def test_the_report_does_not_hold_where_a_job_is_lost_or_has_two_results_or_nothing_ran():
    assert report.holds([_line(1), _line(2)])
    assert not report.holds([_line(1), _line(2, jobs_lost=1)])
    assert not report.holds([_line(1, duplicate_results=1)])
    assert not report.holds([])
