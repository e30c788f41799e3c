from dataclasses import replace

from cases import for_each
from headrace.batching.dynamic import CloseReason
from headrace.cli.reports import print_report
from headrace.core.predictor import PredictorStatistics
from headrace.runs.part_ledger import Counts
from headrace.runs.progress import RunProgress
from headrace.runs.stream_report import make_report
from runs.page_reader import read_page

TEN = Counts(10, 10)


def report_of(total=TEN, *, status="complete", elapsed_s=2.0, progress=None):
    return make_report(
        status=status,
        source="s",
        output="o/",
        model="m",
        total=total,
        parts=1,
        progress=progress or RunProgress(records=10),
        statistics=PredictorStatistics(calls=3, busy_s=1.0, starved_s=3.0),
        elapsed_s=elapsed_s,
        cpu_s=0.5,
        resumed=False,
    )


@for_each(
    ("total", "status", "code"),
    [
        (Counts(10, 10), "complete", 0),
        (Counts(10, 9, 1), "complete", 3),
        (Counts(10, 10, 0, 1), "complete", 1),
        (Counts(10, 9, 1, 1), "complete", 1),
        (Counts(10, 10), "drained", 1),
    ],
)
def test_exit_code_reports_the_outcome(total, status, code):
    report = report_of(total, status=status)
    assert report.exit_code == code
    assert report.to_json()["exit_code"] == code


def test_rates_are_of_this_process_and_counts_of_the_run():
    progress = RunProgress(records=10, records_before=6, objects_read=1, objects_before=2)
    progress.batch_submitted(CloseReason.ROWS)
    report = report_of(progress=progress)
    assert (report.rows_per_s, report.records_in, report.objects_read) == (2.0, 10, 3)
    assert (report.instance_busy_share, report.batches_closed_by) == (0.25, {"rows": 1})


def test_run_without_elapsed_time_has_no_rate():
    assert report_of(elapsed_s=0.0).rows_per_s == 0.0


# In notebooks


def table_of(report) -> dict[str, str]:
    """Return the figures of a report's table by name."""
    (table,) = read_page(report._repr_html_()).children
    assert table.name == "table"
    return {row.all("th")[0].text: row.all("td")[0].text for row in table.all("tr")}


def test_table_has_the_figures_that_the_command_prints(capsys):
    progress = RunProgress(records=1_200)
    report = report_of(Counts(1_200, 1_199, 1), progress=progress)
    print_report(report, progress, json_lines=False)
    printed = [line.split("  ", 1)[0] for line in capsys.readouterr().out.splitlines()]
    shown = table_of(report)
    assert list(shown) == printed
    assert shown["records in"] == "1,200 = 1,199 out + 1 failed"
    assert shown["predictions"] == "o/ (1 part)"
    assert shown["failures"] == "o/part-*.failed.jsonl"


def test_table_escapes_its_values():
    bad = "<script>alert(1)</script>&'\""
    report = replace(report_of(), output=bad)
    assert "<script" not in report._repr_html_()
    assert table_of(report)["predictions"] == f"{bad} (1 part)"
