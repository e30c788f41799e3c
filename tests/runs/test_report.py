"""The final report of a stream or a transform."""

import json
from dataclasses import replace

import pytest

from cases import for_each
from headrace.batching.dynamic import CloseReason
from headrace.cli.run_display import print_report
from headrace.core.predictor import PredictorStatistics
from headrace.reports.report import Report
from headrace.runs.records import Counts
from headrace.runs.run import Run
from headrace.runs.settings import StreamSettings, SubsetSettings
from headrace.runs.totals import ObjectResult, RegionTransfer, RunTotals
from headrace.runs.work import RunProgress, make_report
from reports.observation_support import failure
from reports.observation_support import report as example_report
from reports.page_reader import read_page
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    InjectedError,
    make_settings,
    make_transform,
    outputs,
    put,
    rows,
    transform,
)


def test_report_is_written_next_to_the_output(shared, stores):
    put(stores, {"a.csv": rows(5) + b"x,1\n-1,1\ny,1\n", "b.csv": rows(4), "c.csv": b"1\n"})
    report = transform(stores, predictor=shared)
    text = stores.for_uri(OUT).get(OUT + "_report.json")
    assert json.loads(text)["exit_code"] == 3
    assert Report.from_json(json.loads(text)) == report
    assert report.failures == {
        'decode: column 0: "…" is not a number': 2,
        "model: negative": 1,
        "decode: has 1 column, 2 expected": 1,
    }
    assert report.objects_with_failures == 2
    assert report.failed_objects == [
        {
            "object": IN + "a.csv",
            "output": "a.csv.out",
            "records_in": 8,
            "rows_failed": 3,
            "broken": False,
            "suppressed": False,
            "withheld": False,
        },
        {
            "object": IN + "c.csv",
            "output": "c.csv.out",
            "records_in": 1,
            "rows_failed": 1,
            "broken": False,
            "suppressed": False,
            "withheld": False,
        },
    ]
    assert report.out_bytes == sum(len(d) for n, d in outputs(stores).items() if n.endswith(".out"))
    assert report.bytes_read == 5 * 4 + 4 + 5 + 4 + 4 * 4 + 2
    assert (report.source, report.output, report.model, report.resumed) == (IN, OUT, "double", False)


def test_report_of_a_stream_is_written_next_to_the_parts(shared, stores):
    put(stores, {"a.csv": rows(5) + b"x,1\n-1,1\ny,1\n", "b.csv": rows(4)})
    settings = make_settings(preset=StreamSettings)
    report = Run(IN, OUT, stores=stores, predictor=shared, settings=settings, model_identity="m").execute()
    assert Report.from_json(json.loads(stores.for_uri(OUT).get(OUT + "_report.json"))) == report
    assert (report.kind, report.status, report.exit_code) == ("stream", "complete", 3)
    assert (report.records_in, report.rows_out, report.rows_failed) == (12, 9, 3)
    assert (report.objects, report.objects_done, report.parts, report.tasks) == (2, 2, 1, 0)
    assert report.failures == {'decode: column 0: "…" is not a number': 2, "model: negative": 1}
    assert report.out_bytes == len(outputs(stores)["part-00000.csv"])
    assert (report.failed_objects, report.objects_with_failures, report.objects_suppressed) == ([], 0, 0)


def test_report_names_a_list_of_sources(shared, stores):
    put(stores, {"a.csv": rows(1), "b.csv": rows(1)})
    assert (
        transform(stores, predictor=shared, source=[IN + "a.csv", IN + "b.csv"]).source
        == f"{IN}a.csv, {IN}b.csv"
    )


def test_progress_includes_earlier_processes(shared, stores):
    put(stores, {"a.csv": rows(20), "b.csv": rows(20)})
    run_settings = make_settings(tasks={"task_objects_max": 1}, checkpoint_s=0.0)
    with pytest.raises(InjectedError):
        transform(stores, predictor=FailingPredictor(shared, at=8), settings=run_settings)
    run = make_transform(stores, predictor=shared, settings=run_settings, if_exists="resume")
    report = run.execute()
    assert (run.progress.records, run.progress.rows_out) == (40, 40)
    assert run.progress.objects_total == 2
    assert 0 < run.progress.records_before < 40
    assert report.resumed


TEN = Counts(10, 10)


def report_of(
    counts=TEN, *, kind="stream", status="complete", elapsed_s=2.0, progress=None, subset=None, **totals
) -> Report:
    return make_report(
        kind=kind,
        stopped=status,
        source="s",
        output="o/",
        model="m",
        objects=3,
        totals=RunTotals(counts, **({"parts": 1} | totals)),
        progress=progress or RunProgress(records=10),
        statistics=PredictorStatistics(calls=3, busy_s=1.0, starved_s=3.0),
        elapsed_s=elapsed_s,
        cpu_s=0.5,
        peak_memory_mb=7.04,
        resumed=False,
        subset=subset or SubsetSettings(),
    )


@for_each(
    ("subset", "text"),
    [
        ({}, None),
        ({"limit": 1}, "the first 1 record"),
        ({"limit": 20_000}, "the first 20,000 records"),
        ({"sample": 0.001, "sample_seed": 7}, "a sample of 0.1% (seed 7)"),
        ({"limit": 5, "sample": 1.0}, "the first 5 records of a sample of 100% (seed 0)"),
    ],
)
def test_report_names_the_subset_of_the_source(subset, text):
    report = report_of(subset=SubsetSettings(**subset))
    assert report.figures().get("subset") == text
    assert Report.from_json(report.to_json()) == report
    assert {name: report.to_json()[name] for name in subset} == subset


@for_each(
    ("counts", "status", "code"),
    [
        (TEN, "complete", 0),
        (Counts(10, 9, 1), "complete", 3),
        (Counts(10, 10, 0, 1), "complete", 1),
        (Counts(10, 9, 1, 1), "complete", 1),
        (TEN, "failed", 1),
        (TEN, "drained", 1),
        (TEN, "partial", 1),
    ],
)
@for_each("kind", ["stream", "transform"])
def test_exit_code_reports_the_outcome(counts, status, code, kind):
    report = report_of(counts, status=status, kind=kind)
    assert report.exit_code == code
    assert report.to_json()["exit_code"] == code


def test_rates_are_of_this_process_and_counts_of_the_run():
    progress = RunProgress(records=10, records_before=6, bytes_read=40, records_replayed=5)
    progress.closed_by[CloseReason.ROWS] += 1
    report = report_of(progress=progress, objects_done=2, out_bytes=99, tasks=4)
    assert (report.rows_per_s, report.bytes_read, report.records_replayed) == (2.0, 40, 5)
    assert (report.records_in, report.objects, report.objects_done) == (10, 3, 2)
    assert (report.out_bytes, report.parts, report.tasks) == (99, 1, 4)
    assert (report.instance_busy_share, report.batches_closed_by) == (0.25, {"rows": 1})
    assert (report.cpu_s, report.peak_memory_mb) == (0.5, 7.0)


def test_run_without_elapsed_time_has_no_rate():
    assert report_of(elapsed_s=0.0).rows_per_s == 0.0


def test_predictions_of_suppressed_objects_are_not_rows_out():
    suppressed = ObjectResult("b", "b.out", Counts(4, 3, 1), 0, {"model: no": 1}, suppressed=True)
    sums = {"objects_with_failures": 1, "objects_suppressed": 1, "rows_suppressed": 3}
    report = report_of(Counts(10, 9, 1), kind="transform", status="failed", worst=(suppressed,), **sums)
    assert (report.rows_out, report.rows_failed, report.rows_suppressed) == (6, 1, 3)
    assert (report.objects_suppressed, report.objects_with_failures) == (1, 1)
    assert [(o["object"], o["suppressed"]) for o in report.failed_objects] == [("b", True)]
    figures = report.figures()
    assert figures["records in"] == "10 = 6 out + 1 failed + 3 suppressed"
    assert "one of their records failed" in figures["no output"]


def test_report_round_trips_through_json():
    report = example_report(
        objects_suppressed=2,
        rows_suppressed=5,
        failed_objects=[{"object": "a", "suppressed": True, "withheld": True}],
    )
    for one in (report, replace(report, kind="stream", parts=7)):
        assert Report.from_json(json.loads(json.dumps(one.to_json()))) == one


@for_each(
    ("old", "new"),
    [
        ("objects_withheld", "objects_suppressed"),
        ("rows_withheld", "rows_suppressed"),
        ("objects_read", "objects_done"),
    ],
)
def test_report_has_the_old_names_for_one_release(old, new):
    report = example_report(**{new: 2})
    data = report.to_json()
    assert (data[new], data[old]) == (2, 2)
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: use {new}"):
        assert getattr(report, old) == 2


def test_worst_objects_are_listed_first(shared, stores):
    put(stores, {f"{n:02d}.csv": b"1,1\n" + b"x,1\n" * n for n in range(30)})
    report = transform(stores, predictor=shared)
    assert report.objects_with_failures == 29
    assert [entry["rows_failed"] for entry in report.failed_objects] == list(range(29, 9, -1))


def test_broken_objects_are_listed_before_failed_records(shared, stores):
    put(stores, {"a.csv": b"x,1\n" * 9 + rows(1), "b.tar": bytes(1024)})
    report = transform(stores, predictor=shared)
    assert [entry["object"] for entry in report.failed_objects] == [IN + "b.tar", IN + "a.csv"]


# The figures for people


@for_each("kind", ["stream", "transform"])
def test_table_has_the_figures_that_the_command_prints(capsys, kind):
    progress = RunProgress(records=1_200, first_failure=failure(7), records_replayed=3)
    report = report_of(
        Counts(1_200, 1_199, 1, 1), kind=kind, progress=progress, failures={"model: no": 1, "object: gone": 1}
    )
    assert print_report(report, progress, json_lines=False) == 1
    lines = capsys.readouterr().out.splitlines()
    printed = [line.split("  ", 1)[0] for line in lines if not line.startswith(" ")]
    assert printed == list(report.figures(progress))
    assert list(table_of(report)) == list(report.figures())
    assert [name for name in printed if name not in report.figures()] == ["first failure"]


def test_figures_of_a_stream_name_its_parts():
    shown = table_of(report_of(Counts(1_200, 1_199, 1), failures={"model: no": 1}))
    assert shown["records in"] == "1,200 = 1,199 out + 1 failed"
    assert shown["predictions"] == "o/ (1 part)"
    assert " ".join(shown["failures"].split()) == "o/part-*.failed.jsonl; by reason: 1 model: no"
    assert table_of(report_of(parts=1_234))["predictions"] == "o/ (1,234 parts)"


def test_first_failures_are_shown_on_one_line():
    progress = RunProgress(first_failure=failure(7, "a\n  b"), first_broken=failure(0, "s3://b/a.csv: gone"))
    figures = report_of(progress=progress).figures(progress)
    assert figures["first failure"].endswith(": a b")
    assert "record 7" in figures["first failure"]
    assert figures["first broken"] == "s3://b/a.csv: gone"


def test_most_frequent_reasons_are_shown():
    failures = {f"model: {n}": 20 - n for n in range(8)}
    first, *reasons, more = report_of(failures=failures).figures()["failures"].splitlines()
    assert first == "o/part-*.failed.jsonl; by reason:"
    assert [line.split() for line in reasons] == [[str(20 - n), "model:", str(n)] for n in range(5)]
    assert more.strip() == "… and 3 more reasons, in _report.json"


def test_figures_tell_where_a_stopped_run_continues():
    assert "status" in report_of(status="drained").figures()
    report = report_of(
        status="partial",
        transfers=(RegionTransfer("us", "eu", 1_000),),
        tasks_left={"eu": 3},
    )
    figures = report.figures()
    assert figures["across regions"] == "1,000 bytes from us to eu\n3 task(s) left in eu"
    assert "other regions" in figures["status"]
    assert report.bytes_across_regions == [{"from": "us", "to": "eu", "bytes": 1_000}]
    assert "across regions" not in report_of().figures()


# In notebooks


def table_of(report) -> dict[str, str]:
    """Return the figures of a report's table by name."""
    (table,) = read_page(report._repr_html_()).children
    assert table.name == "table"
    return {row.all("th")[0].text: row.all("td")[0].text for row in table.all("tr")}


def test_table_escapes_its_values():
    bad = "<script>alert(1)</script>&'\""
    report = replace(report_of(), output=bad)
    assert "<script" not in report._repr_html_()
    assert table_of(report)["predictions"] == f"{bad} (1 part)"


def test_table_is_named_after_the_kind_of_run():
    assert "Stream run" in report_of()._repr_html_()
    assert "Batch transform" in report_of(kind="transform")._repr_html_()


def test_table_for_notebooks_has_the_printed_figures_and_reasons():
    report = example_report(
        rows_out=1_234_560,
        rows_failed=7,
        objects_with_failures=1,
        failures={'decode: "<b>" is not a number': 6, "model: a & b": 1},
        status="drained",
        objects_done=2,
    )
    markup = report._repr_html_()
    assert "<b>" not in markup
    (table,) = read_page(markup).children
    shown = {row.all("th")[0].text: row.all("td")[0] for row in table.all("tr")}
    assert list(shown) == list(report.figures())
    assert shown["predictions"].text == "s3://b/out/ (2 of 3 objects)"
    assert shown["records in"].text == "1,234,567 = 1,234,560 out + 7 failed"
    assert shown["status"].text == "stopped: continue with --resume"
    first, second, third = (line.strip() for line in shown["failures"].texts)
    assert first == "s3://b/out/**.failed, 1 object(s); by reason:"
    assert second.split("  ") == ["6", 'decode: "<b>" is not a number']
    assert third.split("  ") == ["1", "model: a & b"]
