"""A worker with assignments from an engine: new ones, repeated ones, and ones of a finished run."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.core.errors import LedgerError
from headrace.runners.messages import Assignment, StatusStore, error_from_json
from headrace.runners.worker import STATUS_INTERVAL_S, EmbeddedWorker, TaskWorker
from headrace.runs.ledger import Ledger
from headrace.testing import ManualClock
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    make_settings,
    make_transform,
    outputs,
    put,
    rows,
    transform,
)

SETTINGS = make_settings(tasks={"task_objects_max": 1})


class Opener:
    """An opener of workers with these stores and a started predictor."""

    def __init__(self, stores, predictor) -> None:
        self.stores, self.predictor, self.opened, self.closed = stores, predictor, 0, 0

    @contextmanager
    def __call__(self, send, region=None) -> Iterator[TaskWorker]:
        self.opened += 1
        yield TaskWorker(
            self.predictor, send, stores=self.stores, destination=OUT, settings=SETTINGS, region=region
        )
        self.closed += 1


@pytest.fixture
def ledger(stores, shared) -> Ledger:
    return begin_run(stores, shared, rows_each=9)


def begin_run(stores, shared, *, rows_each: int) -> Ledger:
    """Return the ledger of a run over three objects that was drained before its first task."""
    put(stores, {f"{n}.csv": rows(rows_each, n) for n in range(3)})
    run = make_transform(stores, predictor=shared, settings=SETTINGS)
    run.drain()
    assert run.execute().status == "drained"
    return Ledger(stores.for_uri(OUT), OUT)


def make_worker(stores, predictor, **more) -> tuple[EmbeddedWorker, Opener]:
    opener = Opener(stores, predictor)
    return EmbeddedWorker(opener, "pipeline", **more), opener


def test_repeated_assignments_run_once(stores, shared, ledger):
    worker, opener = make_worker(stores, shared, region="eu")
    assert worker.do(Assignment((0, 1), run_id=ledger.run_id())).done == (0, 1)
    before = {n: r.attempt for n, r in ledger.tasks().items()}
    assert worker.do(Assignment((0, 1, 2), run_id=ledger.run_id())).done == (0, 1, 2)
    again, _ = make_worker(stores, shared)
    assert again.do(Assignment((1, 2), run_id=ledger.run_id())).done == ()
    after = ledger.tasks()
    assert {n: after[n].attempt for n in before} == before
    assert {record.region for record in after.values()} == {"eu"}
    assert opener.opened == 1
    worker.close()
    worker.close()
    assert opener.closed == 1
    report = make_transform(stores, predictor=shared, settings=SETTINGS, if_exists="resume").execute()
    assert (report.status, report.records_in) == ("complete", 27)
    published = outputs(stores)
    transform(stores, predictor=shared, settings=SETTINGS, destination="memory://out/plain/")
    assert published == outputs(stores, "memory://out/plain/")


def test_status_has_current_and_finished_tasks(stores, shared, ledger):
    clock, status_store, seen = ManualClock(), StatusStore(ledger), []

    def read_statuses() -> None:
        clock.advance(STATUS_INTERVAL_S)
        seen.extend(status_store.read())

    worker, _ = make_worker(stores, FailingPredictor(shared, at=1, action=read_statuses), clock=clock)
    worker.do(Assignment((0, 1), run_id=ledger.run_id()))
    assert [(status.doing, status.done) for status in seen] == [((0, 1), ())]
    (last,) = status_store.read()
    assert (last.pipeline, last.doing, last.done, last.counters.records) == ("pipeline", (), (0, 1), 18)


def test_draining_run_starts_no_tasks(stores, shared, ledger):
    worker, _ = make_worker(stores, shared)
    StatusStore(ledger).request_drain()
    assert worker.do(Assignment((0,), run_id=ledger.run_id())).done == ()
    assert ledger.tasks() == {}


def test_busy_worker_notices_the_drain(stores, shared):
    # More rows than are read ahead.
    ledger = begin_run(stores, shared, rows_each=5_000)
    clock, status_store = ManualClock(), StatusStore(ledger)

    def drain() -> None:
        status_store.request_drain()
        clock.advance(10 * STATUS_INTERVAL_S)

    worker, _ = make_worker(stores, FailingPredictor(shared, at=0, action=drain), clock=clock)
    status = worker.do(Assignment((0, 1, 2), run_id=ledger.run_id()))
    assert status.doing == ()
    assert len(status.done) < 3
    assert len(ledger.tasks()) < 3


def test_task_error_is_in_the_status(stores, shared, ledger):
    worker, _ = make_worker(stores, FailingPredictor(shared, at=0))
    assert "InjectedError" in str(error_from_json(worker.do(Assignment((0,), run_id=ledger.run_id())).error))


def test_finished_run_forbids_writes(stores, shared, ledger):
    run = ledger.run_id()
    transform(stores, predictor=shared, settings=SETTINGS, if_exists="overwrite")
    before = {i.uri: i.etag for i in stores.for_uri(OUT).list(OUT)}
    worker, _ = make_worker(stores, shared)
    status = worker.do(Assignment((0, 1), run_id=run, replaces=True))
    assert isinstance(error_from_json(status.error), LedgerError)
    after = {i.uri: i.etag for i in stores.for_uri(OUT).list(OUT) if "/workers/" not in i.uri}
    assert after == before
    assert [i for i in after if not i.startswith(OUT)] == []
    assert stores.for_uri(IN)
