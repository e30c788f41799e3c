"""The final report of a transform."""

import json

import pytest

from cases import for_each
from headrace.runs.report import TransformReport
from runs.observation_support import report as make_report
from runs.page_reader import read_page
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
    assert TransformReport.from_json(json.loads(text)) == report
    assert report.failures == {
        'decode: column 0: "…" is not a number': 2,
        "model: negative": 1,
        "format: has 1 column, 2 expected": 1,
    }
    assert report.objects_with_failures == 2
    assert report.failed_objects == [
        {
            "object": IN + "a.csv",
            "records_in": 8,
            "rows_failed": 3,
            "broken": False,
            "suppressed": False,
            "withheld": False,
        },
        {
            "object": IN + "c.csv",
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


@for_each(
    ("changed", "code"),
    [
        ({}, 0),
        ({"rows_failed": 1}, 3),
        ({"rows_failed": 1, "objects_broken": 1}, 1),
        ({"objects_broken": 1}, 1),
        ({"status": "failed"}, 1),
        ({"status": "drained"}, 1),
    ],
)
def test_exit_codes_follow_the_result(changed, code):
    report = make_report(**changed)
    assert report.exit_code == code
    assert report.to_json()["exit_code"] == code


def test_worst_objects_are_listed_first(shared, stores):
    put(stores, {f"{n:02d}.csv": b"1,1\n" + b"x,1\n" * n for n in range(30)})
    report = transform(stores, predictor=shared)
    assert report.objects_with_failures == 29
    assert [entry["rows_failed"] for entry in report.failed_objects] == list(range(29, 9, -1))


def test_broken_objects_are_listed_before_failed_records(shared, stores):
    put(stores, {"a.csv": b"x,1\n" * 9 + rows(1), "b.tar": bytes(1024)})
    report = transform(stores, predictor=shared)
    assert [entry["object"] for entry in report.failed_objects] == [IN + "b.tar", IN + "a.csv"]


def test_report_round_trips_through_json_and_the_ledger():
    report = make_report(
        objects_suppressed=2,
        rows_suppressed=5,
        failed_objects=[{"object": "a", "suppressed": True, "withheld": True}],
    )
    for data in (report.to_json(), report.to_record()):
        assert TransformReport.from_json(json.loads(json.dumps(data))) == report


def test_report_has_the_old_names_for_one_release():
    report = make_report(objects_suppressed=2, rows_suppressed=5)
    data = report.to_json()
    assert (data["objects_suppressed"], data["objects_withheld"]) == (2, 2)
    assert (data["rows_suppressed"], data["rows_withheld"]) == (5, 5)
    with pytest.warns(DeprecationWarning, match="objects_withheld is deprecated: use objects_suppressed"):
        assert report.objects_withheld == 2
    with pytest.warns(DeprecationWarning, match="rows_withheld is deprecated: use rows_suppressed"):
        assert report.rows_withheld == 5


def test_record_of_the_ledger_keeps_the_old_names():
    """Older versions read the record of a finished run."""
    entry = {"object": "a", "suppressed": True, "withheld": True}
    record = make_report(failed_objects=[entry]).to_record()
    assert not [name for name in record if "suppressed" in name]
    assert (record["objects_withheld"], record["rows_withheld"]) == (0, 0)
    assert record["failed_objects"] == [{"object": "a", "withheld": True}]


def test_table_for_notebooks_has_the_printed_figures_and_reasons():
    report = make_report(
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
