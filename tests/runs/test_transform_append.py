"""Transforms that are appended to: a watched source, and event notifications."""

import logging

import pytest

from headrace.core.errors import ResumeRefusedError
from headrace.runs.run import Run, SourceWatcher
from headrace.storage.resolve import Stores
from headrace.testing import ManualClock
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    InjectedError,
    allow_small_tasks,
    make_settings,
    outputs,
    put,
    rows,
)


def transform(stores, predictor, *, used=None, **more) -> Run:
    return Run(
        IN,
        OUT,
        stores=stores,
        settings=used or make_settings(),
        model_identity="m",
        predictor=predictor,
        **more,
    )


def test_new_objects_get_outputs_of_their_own(shared):
    stores = Stores()
    run = transform(stores, shared)
    watcher = SourceWatcher(run, poll_s=1, clock=ManualClock())
    assert watcher.tick() is None
    put(stores, {"a.csv": rows(5)})
    first = watcher.tick()
    put(stores, {"day/b.csv": rows(3), "c.csv": rows(2)})
    second = watcher.tick()
    assert watcher.tick() is None
    assert first is not None
    assert second is not None
    assert (first.objects, first.rows_out, second.objects, second.rows_out) == (1, 5, 3, 10)
    assert set(outputs(stores)) == {"a.csv.out", "day/b.csv.out", "c.csv.out"}


def test_appended_outputs_are_those_of_one_transform(shared, monkeypatch):
    allow_small_tasks(monkeypatch)
    objects = {"a.csv": rows(30), "b.csv": b"x,1\n" + rows(40, 7), "c.csv": rows(3)}
    used = make_settings(tasks={"task_bytes": 60})
    whole, stores = Stores(), Stores()
    put(whole, objects)
    expected = transform(whole, shared, used=used).execute()
    run = transform(stores, shared, used=used)
    for name, data in objects.items():
        put(stores, {name: data})
        report = run.append(run.select())
    assert outputs(stores) == outputs(whole)
    assert (report.records_in, report.failures) == (expected.records_in, expected.failures)


def test_append_goes_on_after_an_error_and_in_another_process(shared):
    stores = Stores()
    put(stores, {"a.csv": rows(9)})
    broken = transform(stores, FailingPredictor(shared, at=1))
    with pytest.raises(InjectedError):
        broken.append(broken.select())
    report = broken.append([])
    assert report is not None
    put(stores, {"b.csv": rows(4)})
    other = transform(stores, shared, if_exists="resume")
    report = other.append(other.select())
    assert report is not None
    assert (report.objects_done, report.rows_out, report.resumed) == (2, 13, True)
    assert other.append(other.select()) is None
    assert transform(stores, shared, if_exists="resume").append([]) is None


def test_changed_object_keeps_its_output(shared, caplog):
    stores = Stores()
    put(stores, {"a.csv": rows(2)})
    run = transform(stores, shared)
    run.append(run.select())
    before = outputs(stores)
    put(stores, {"a.csv": rows(5)})
    with caplog.at_level(logging.WARNING, "headrace.runs"):
        assert run.append(run.select()) is None
        assert run.append(run.select()) is None
    assert outputs(stores) == before
    assert [r.message for r in caplog.records] == [
        "memory://in/a.csv has changed since it was scored: its output is unchanged"
    ]


def test_unfinished_append_refuses_an_execution_with_more_objects(shared):
    stores = Stores()
    put(stores, {"a.csv": rows(9)})
    broken = transform(stores, FailingPredictor(shared, at=1))
    with pytest.raises(InjectedError):
        broken.append(broken.select())
    put(stores, {"b.csv": rows(4)})
    with pytest.raises(ResumeRefusedError, match=r"b\.csv is new"):
        transform(stores, shared, if_exists="resume").execute()
