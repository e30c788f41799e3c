"""What a transform says of itself."""

import json
from dataclasses import replace

import pytest

from headrace.transforms.report import TransformReport
from transforms.support import (
    IN,
    OUT,
    Breaking,
    BrokenError,
    made,
    outputs,
    put,
    rows,
    settings_of,
    transform,
)


def test_the_report_is_beside_the_output_and_says_what_was_done(shared, stores):
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
        {"object": IN + "a.csv", "records_in": 8, "rows_failed": 3, "broken": False, "withheld": False},
        {"object": IN + "c.csv", "records_in": 1, "rows_failed": 1, "broken": False, "withheld": False},
    ]
    assert report.out_bytes == sum(len(d) for n, d in outputs(stores).items() if n.endswith(".out"))
    assert report.bytes_read == 5 * 4 + 4 + 5 + 4 + 4 * 4 + 2
    assert (report.source, report.output, report.model, report.resumed) == (IN, OUT, "double", False)


def test_a_run_over_a_list_names_it(shared, stores):
    put(stores, {"a.csv": rows(1), "b.csv": rows(1)})
    assert (
        transform(stores, predictor=shared, source=[IN + "a.csv", IN + "b.csv"]).source
        == f"{IN}a.csv, {IN}b.csv"
    )


def test_progress_counts_what_earlier_processes_did(shared, stores):
    put(stores, {"a.csv": rows(20), "b.csv": rows(20)})
    used = settings_of(tasks={"task_objects_max": 1, "checkpoint_s": 0.0})
    with pytest.raises(BrokenError):
        transform(stores, predictor=Breaking(shared, at=8), settings=used)
    run = made(stores, predictor=shared, settings=used, if_exists="resume")
    report = run.execute()
    assert (run.progress.records, run.progress.rows_out) == (40, 40)
    assert run.progress.objects_total == 2
    assert 0 < run.progress.records_before < 40
    assert report.resumed


@pytest.mark.parametrize(
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
def test_exit_codes(shared, stores, changed, code):
    put(stores, {"a.csv": rows(1)})
    report = replace(transform(stores, predictor=shared), **changed)
    assert report.exit_code == code
    assert report.to_json()["exit_code"] == code


def test_at_most_so_many_objects_are_named_the_worst_first(shared, stores):
    put(stores, {f"{n:02d}.csv": b"1,1\n" + b"x,1\n" * n for n in range(30)})
    report = transform(stores, predictor=shared)
    assert report.objects_with_failures == 29
    assert [entry["rows_failed"] for entry in report.failed_objects] == list(range(29, 9, -1))


def test_broken_objects_come_before_failed_records(shared, stores):
    put(stores, {"a.csv": b"x,1\n" * 9 + rows(1), "b.tar": bytes(1024)})
    report = transform(stores, predictor=shared)
    assert [entry["object"] for entry in report.failed_objects] == [IN + "b.tar", IN + "a.csv"]
