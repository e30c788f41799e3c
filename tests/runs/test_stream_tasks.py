"""Streams with workers: each task writes the part with its own number."""

import gzip
import json
from random import Random

import pytest

from cases import for_each
from headrace.core.errors import ConfigError, ResumeRefusedError
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.output_settings import OutputSettings
from headrace.runs.run import Run
from headrace.runs.settings import FlowSettings, MappingOptions, StreamSettings, TaskSettings
from headrace.runs.tasks import InProcessRunner
from headrace.storage.resolve import Stores
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    InjectedError,
    allow_small_tasks,
    failed_lines,
    outputs,
    put,
    rows,
    shuffle,
)

OBJECTS = {
    "a.csv": rows(7) + b"x,1\n-3,1\n" + rows(6, 7),
    "b.csv.gz": gzip.compress(rows(9, 20) + b"7\n", mtime=0),
    "c.csv": b"",
    "d.csv.gz": gzip.compress(rows(8, 40), mtime=0)[:-3],
    "f.csv": rows(30, 60) + b"x,1\n" + b'"8\n",1\n' * 4 + rows(10, 90),
    "g.csv": b"x,1\n-2,1\n" + rows(2),
}


def settings(*, checkpoint_s: float = 1e9, task_bytes: int = 60, **output) -> StreamSettings:
    return StreamSettings(
        output=OutputSettings(checkpoint_s=checkpoint_s, **output),
        tasks=TaskSettings(task_objects_max=3, task_bytes=task_bytes),
    )


def stream(stores, predictor, *, used=None, destination=OUT, by_tasks=True, **more) -> Run:
    scorer = {"runner": InProcessRunner(predictor)} if by_tasks else {"predictor": predictor}
    return Run(
        IN, destination, stores=stores, settings=used or settings(), model_identity="m", **scorer, **more
    )


@pytest.fixture
def source(monkeypatch) -> Stores:
    allow_small_tasks(monkeypatch)
    stores = Stores()
    put(stores, OBJECTS)
    return stores


def predictions(found: dict[str, bytes]) -> list[bytes]:
    return sorted(line for name, data in found.items() if name.endswith(".csv") for line in data.splitlines())


def failures(found: dict[str, bytes]) -> list[tuple]:
    lines = [one for name, data in found.items() if "failed" in name for one in failed_lines(data)]
    return sorted((e["object"], e["record"], e["line"], e["byte"], e["reason"]) for e in lines)


def test_tasks_write_the_predictions_and_failures_of_an_ordered_stream(shared, source):
    report = stream(source, shared).execute()
    ordered = stream(source, shared, destination="memory://ordered/", by_tasks=False).execute()
    found, expected = outputs(source), outputs(source, "memory://ordered/")
    assert predictions(found) == predictions(expected)
    assert failures(found) == failures(expected)
    assert (report.records_in, report.rows_out, report.rows_failed, report.objects_broken) == (
        ordered.records_in,
        ordered.rows_out,
        ordered.rows_failed,
        ordered.objects_broken,
    )
    assert report.failures == ordered.failures
    assert report.parts == len({name.partition(".")[0] for name in found}) > 4
    assert (report.objects_done, ordered.objects_done) == (6, 6)


def test_failed_lines_name_the_place_in_their_part(shared, source):
    stream(source, shared).execute()
    found = outputs(source)
    for name in (n for n in found if n.endswith(".csv")):
        part = found[name]
        for failed in failed_lines(found.get(name.replace(".csv", ".failed.jsonl"), b"")):
            before = part[: failed["output_byte"]]
            assert before.count(b"\n") == failed["output_row"]


@for_each("checkpoint_s", [0.0, 1e9])
def test_interrupted_tasks_resume_to_the_same_parts(shared, checkpoint_s):
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        whole = Stores()
        put(whole, OBJECTS)
        used = settings(checkpoint_s=checkpoint_s)
        stream(whole, shared, used=used).execute()
        for at in range(0, 20, 2):
            stores = Stores()
            put(stores, OBJECTS)
            with pytest.raises(InjectedError):
                stream(stores, FailingPredictor(shared, at=at), used=used).execute()
            stream(stores, shared, used=used, if_exists="resume").execute()
            assert outputs(stores) == outputs(whole), at


def test_tasks_in_any_order_write_the_same_parts(shared, source):
    stream(source, shared).execute()
    run = stream(source, shared, destination="memory://other/")
    shuffle(run, Random(5))
    run.execute()
    assert outputs(source, "memory://other/") == outputs(source)


@for_each("form", ["parquet", "arrow"])
def test_tables_are_parts_of_whole_tasks(shared, form):
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        stores = Stores()
        put(stores, OBJECTS)
        used = settings(checkpoint_s=0.0, format=form)
        stream(stores, shared, used=used).execute()
        again = Stores()
        put(again, OBJECTS)
        with pytest.raises(InjectedError):
            stream(again, FailingPredictor(shared, at=9), used=used).execute()
        stream(again, shared, used=used, if_exists="resume").execute()
        assert outputs(again) == outputs(stores)
        assert {n.partition(".")[2] for n in outputs(stores)} == {form, "failed.jsonl"}


def test_header_begins_each_part(shared, monkeypatch):
    allow_small_tasks(monkeypatch)
    stores = Stores()
    put(stores, {name: rows(20) for name in ("a.csv", "b.csv")})
    stream(stores, shared, used=settings(header=True, task_bytes=30)).execute()
    parts = [data for name, data in outputs(stores).items() if name.endswith(".csv")]
    assert len(parts) > 2
    assert all(part.startswith(b"y\n") and part.count(b"y\n") == 1 for part in parts)


def test_other_mode_is_refused(shared, source):
    stream(source, shared).execute()
    with pytest.raises(ResumeRefusedError, match="mode was 'tasks', is 'sequence'"):
        stream(source, shared, by_tasks=False, if_exists="resume").execute()


@for_each(
    ("unsupported", "why"),
    [
        ({"flow": FlowSettings(batch_delay_ms=5)}, "batch_delay_ms needs the records in the order"),
        ({"mapping": MappingOptions(sequence="@object")}, "sequence needs the records in the order"),
    ],
)
def test_settings_that_need_the_order_are_refused(shared, unsupported, why):
    stores = Stores()
    put(stores, {"a.csv": rows(2)})
    with pytest.raises(ConfigError, match=why):
        stream(stores, shared, used=StreamSettings(**unsupported)).execute()
    assert list(stores.for_uri(OUT).list(OUT)) == []


@for_each("by_tasks", [True, False])
def test_failure_policy_stops_a_stream(shared, by_tasks):
    stores = Stores()
    put(stores, {"a.csv": rows(8), "b.csv": b"x,1\n" + rows(8) + b"x,1\n"})
    limited = StreamSettings(failures=FailurePolicy(failed_rows_max=1))
    job = StreamSettings(failures=FailurePolicy("job"))
    with pytest.raises(Exception, match="2 records failed, and failed_rows_max is 1"):
        stream(stores, shared, used=limited, by_tasks=by_tasks).execute()
    with pytest.raises(Exception, match=r"b\.csv, record 0.*on_error is job"):
        stream(stores, shared, used=job, by_tasks=by_tasks, if_exists="overwrite").execute()


@for_each("by_tasks", [True, False])
def test_report_is_beside_the_parts(shared, by_tasks):
    stores = Stores()
    put(stores, {"a.csv": rows(8)})
    report = stream(stores, shared, by_tasks=by_tasks).execute()
    written = json.loads(stores.for_uri(OUT).get(OUT + "_report.json"))
    assert (written["kind"], written["records_in"], written["objects_read"]) == ("stream", 8, 1)
    assert written == json.loads(json.dumps(report.to_json()))
