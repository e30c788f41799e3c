"""The computation of a fault's costs, and the report."""

import json

from faults import report
from faults.costs import FaultMoment, duplicate_executions, duplicate_results, recovery_s
from faults.state_changes import StateChange


def _change(job: str, before: str, after: str, at_ms: int, worker: str = "a") -> StateChange:
    return StateChange(job, before, after, 1, worker, at_ms)


def test_second_end_of_a_job_is_a_duplicate_result_in_any_state():
    changes = [
        _change("x", "running", "completed", 1),
        _change("x", "completed", "running", 2),
        _change("y", "running", "failed", 2),
    ]
    assert duplicate_results(changes) == 0
    again = [_change("x", "running", "cancelled", 3), _change("x", "a", "completed", 4)]
    assert duplicate_results([*changes, *again]) == 2


def test_executions_beyond_the_first_are_duplicates():
    assert duplicate_executions({1: 1, 2: 3, 3: 2}) == 3


def test_recovery_ends_when_the_last_job_of_the_dead_worker_is_claimed():
    changes = [
        _change("x", "pending", "running", 0),
        _change("y", "pending", "running", 1),
        _change("x", "running", "pending", 3000),
        _change("y", "running", "pending", 3000),
        _change("z", "pending", "running", 1500, worker="b"),
        _change("x", "pending", "running", 4000, worker="b"),
        _change("y", "pending", "running", 5500, worker="b"),
    ]
    assert recovery_s(changes, [FaultMoment(1000, "a")]) == 4.5
    assert recovery_s(changes, [FaultMoment(1000)]) == 0.5
    assert recovery_s(changes, [FaultMoment(1000, "another")]) is None
    assert recovery_s(changes, []) is None


def _line(fault: int, **values) -> report.Line:
    zeros = dict.fromkeys(report.COLUMNS, 0)
    return {"fault": fault, "run": f"run{fault}", **zeros, "recovery_seconds": None, **values}


def test_report_sums_counts_and_takes_the_worst_measurements(tmp_path):
    path = tmp_path / "lines"
    report.add_line(path, _line(2, jobs=3, recovery_seconds=1.5, completion_rate_vs_baseline=0.9))
    report.add_line(path, _line(1, jobs=4, recovery_seconds=2.5, completion_rate_vs_baseline=None))
    lines = report.read_lines(path)
    assert [line["fault"] for line in lines] == [1, 2]
    document = json.loads(report.as_json(lines))
    assert document["holds"]
    assert (document["total"]["jobs"], document["total"]["recovery_seconds"]) == (7, 2.5)
    assert document["total"]["completion_rate_vs_baseline"] == 0.9
    assert report.as_table(lines).splitlines()[-1].split() == ["total", "7", "0", "0", "0", "2.50", "0.90"]


def test_report_does_not_hold_with_lost_jobs_duplicate_results_or_no_run():
    assert report.holds([_line(1), _line(2)])
    assert not report.holds([_line(1), _line(2, jobs_lost=1)])
    assert not report.holds([_line(1, duplicate_results=1)])
    assert not report.holds([])
