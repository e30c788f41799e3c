"""The statuses of workers are written, merged and read."""

import numpy as np
import pytest

from headrace.reports.observation import RunObservation
from headrace.runners.messages import StatusStore, WorkerCounters, WorkerStatus
from headrace.runs.ledger import Ledger
from headrace.runs.records import TaskRecord
from headrace.storage.resolve import Stores
from reports.observation_support import failure, scored

DEST = "memory://out/run/"


@pytest.fixture
def ledger(stores: Stores) -> Ledger:
    return Ledger(stores.for_uri(DEST), DEST)


def observed(step: int) -> dict:
    seen = RunObservation(0.0)
    seen.add_batch(scored({"y": np.full(3, step, np.float32)}, [failure(step)]), 1.0)
    return {"observed": seen.to_json()}


def test_status_round_trips():
    status = WorkerStatus(
        "w", "p", "host", 7, (1, 2), (0,), WorkerCounters(records=3), error={"type": "E", "message": "m"}
    )
    assert WorkerStatus.from_json(status.to_json()) == status


def test_status_follows_messages():
    status = WorkerStatus("w", "p", "host", 7, doing=(4, 5))
    status = status.updated({"ready": {}}).updated({"tally": WorkerCounters(records=9).to_json()})
    status = status.updated({"task": TaskRecord(4, "a", ()).to_json().decode()})
    assert (status.doing, status.done, status.counters.records) == ((4, 5), (4,), 9)
    assert status.updated({"idle": True}).doing == ()
    broken = status.updated({"error": {"type": "ConfigError", "message": "no"}})
    assert (broken.doing, broken.error) == ((), {"type": "ConfigError", "message": "no"})


def test_status_adds_observations():
    status = WorkerStatus("w", "p", "host", 7).updated(observed(1)).updated(observed(2))
    seen = RunObservation.from_json(status.observed)
    assert (seen.records, [f.record for f in seen.failures]) == (8, [1, 2])


def test_new_statuses_are_read_once(ledger):
    run_store, worker_store = StatusStore(ledger), StatusStore(ledger)
    assert run_store.read() == []
    worker_store.write(WorkerStatus("a", "p", "host", 1))
    worker_store.write(WorkerStatus("b", "p", "host", 2))
    assert {status.worker for status in run_store.read()} == {"a", "b"}
    assert run_store.read() == []
    worker_store.write(WorkerStatus("b", "p", "host", 2, doing=(3,)))
    assert [(status.worker, status.doing) for status in run_store.read()] == [("b", (3,))]


def test_drain_request_lasts_until_clear(ledger):
    run_store, worker_store = StatusStore(ledger), StatusStore(ledger)
    worker_store.write(WorkerStatus("a", "p", "host", 1))
    assert not worker_store.draining()
    run_store.request_drain()
    assert worker_store.draining()
    assert [status.worker for status in run_store.read()] == ["a"]
    run_store.clear()
    assert not worker_store.draining()
    assert run_store.read() == []


def test_finished_run_removes_statuses(ledger):
    StatusStore(ledger).write(WorkerStatus("a", "p", "host", 1))
    ledger.finish({})
    assert StatusStore(ledger).read() == []
