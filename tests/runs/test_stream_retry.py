"""``retry-failed`` of streams: the failed records of parts are predicted and merged into place."""

import logging

import orjson
import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.reports.report import Report
from headrace.runs.output_settings import OutputSettings
from headrace.runs.retry import FailedRecordsRetry
from headrace.runs.run import Run
from headrace.runs.settings import MappingOptions, StreamSettings, TaskSettings
from headrace.runs.tasks import InProcessRunner
from headrace.storage.resolve import Stores
from runs.support import IN, OUT, Doubler, allow_small_tasks, engine, outputs, put, rows


class Lenient(Doubler):
    """A model that accepts all rows."""

    def predict(self, x):
        return {"y": x[:, 0] * 2}


OBJECTS = {
    "a.csv": b"-1,1\n" + rows(9) + b"-5,1\n",
    "b.csv": b"-2,1\n-3,1\nx,1\n",
    "c.csv": rows(20, 50) + b"-4,1\n" + rows(3, 80),
}
SETTINGS = {
    "csv": {},
    "header": {"header": True},
    "jsonl": {"format": "jsonl", "join": "input"},
    "filter": {"format": "jsonl", "output_filter": "$.y"},
}


def run(stores, predictor, used, *, by_tasks, **more) -> Report:
    scorer = {"runner": InProcessRunner(predictor)} if by_tasks else {"predictor": predictor}
    return Run(IN, OUT, stores=stores, settings=used, model_identity="m", **scorer, **more).execute()


def settings(name: str) -> StreamSettings:
    return StreamSettings(
        output=OutputSettings(part_bytes_max=60, **SETTINGS[name]),
        tasks=TaskSettings(task_bytes=60, task_objects_max=2),
    )


def retried(stores, predictor) -> Report:
    retry = FailedRecordsRetry(OUT, stores=stores, predictor=predictor, model_identity="m", other_model=True)
    return retry.execute()


@for_each("by_tasks", [True, False])
@for_each("name", list(SETTINGS))
def test_retried_records_are_where_they_belong(shared, by_tasks, name):
    with pytest.MonkeyPatch.context() as patch, engine(Lenient()) as lenient:
        allow_small_tasks(patch)
        stores, expected = Stores(), Stores()
        put(stores, OBJECTS)
        put(expected, OBJECTS)
        used = settings(name)
        first = run(stores, shared, used, by_tasks=by_tasks)
        whole = run(expected, lenient, used, by_tasks=by_tasks)
        report = retried(stores, lenient)
    assert (first.rows_failed, report.rows_failed, whole.rows_failed) == (6, 1, 1)
    assert (report.rows_out, report.out_bytes) == (whole.rows_out, joined_bytes(stores))
    assert report.failures == whole.failures
    assert joined(stores) == joined(expected)


def joined(stores) -> bytes:
    """Return all predictions in the order of the parts, without headers."""
    parts = sorted(name for name in outputs(stores) if "failed" not in name)
    lines = [line for name in parts for line in outputs(stores)[name].splitlines()]
    return b"\n".join(line for line in lines if line != b"y")


def joined_bytes(stores) -> int:
    return sum(len(data) for name, data in outputs(stores).items() if "failed" not in name)


def test_counts_stay_after_another_append(shared):
    stores = Stores()
    put(stores, {"a.csv": b"-1,1\n" + rows(3)})
    with engine(Lenient()) as lenient:
        run(stores, shared, StreamSettings(), by_tasks=False)
        assert retried(stores, lenient).rows_out == 4
        more = Run(
            IN,
            OUT,
            stores=stores,
            settings=StreamSettings(),
            model_identity="m",
            predictor=shared,
            if_exists="resume",
        )
        put(stores, {"b.csv": rows(2)})
        report = more.append(more.select())
    assert report is not None
    assert (report.records_in, report.rows_out, report.rows_failed, report.failures) == (6, 6, 0, {})


def test_resumed_report_has_the_new_counts(shared):
    stores = Stores()
    put(stores, OBJECTS)
    run(stores, shared, StreamSettings(), by_tasks=False)
    with engine(Lenient()) as lenient:
        report = retried(stores, lenient)
    assert run(stores, shared, StreamSettings(), by_tasks=False, if_exists="resume") == report


@for_each("by_tasks", [True, False])
def test_broken_objects_stay_broken(shared, by_tasks):
    stores = Stores()
    put(stores, {"a.csv": b"-1,1\n" + rows(3), "b.csv.gz": b"\x1f\x8b"})
    run(stores, shared, StreamSettings(), by_tasks=by_tasks)
    with engine(Lenient()) as lenient:
        report = retried(stores, lenient)
    assert (report.rows_failed, report.objects_broken, report.exit_code) == (0, 1, 1)


@for_each(
    ("used", "why"),
    [
        (StreamSettings(output=OutputSettings(format="parquet")), "parts in the format parquet cannot be"),
        (StreamSettings(mapping=MappingOptions(sequence="@object")), "records of a sequence depend on"),
    ],
)
def test_retry_that_cannot_be_right_is_refused(shared, used, why):
    stores = Stores()
    put(stores, {"a.csv": b"-1,1\n" + rows(3)})
    run(stores, shared, StreamSettings(), by_tasks=False)
    ledger = stores.for_uri(OUT)
    identity = orjson.loads(ledger.get(OUT + "_headrace/run.json"))
    ledger.put(OUT + "_headrace/run.json", orjson.dumps(identity | {"settings": used.identity()}))
    with pytest.raises(ConfigError, match=why):
        retried(stores, shared)


def test_lost_object_is_left_alone(shared, caplog):
    stores = Stores()
    long = b"-1,1" + b"0" * 70_000 + b"\n"
    put(stores, {"a.csv": long + b"-2,1\n"})
    run(stores, shared, StreamSettings(), by_tasks=False)
    put(stores, {"a.csv": rows(3)})
    with engine(Lenient()) as lenient, caplog.at_level(logging.WARNING, "headrace.runs"):
        report = retried(stores, lenient)
    assert "a.csv is missing or has changed: its failed records are not retried" in caplog.text
    assert report.rows_failed == 2
