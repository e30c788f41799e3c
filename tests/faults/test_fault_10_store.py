"""Fault 10: a store that fails, lies, is slow, goes away, and whose objects change while they are read."""

import json
import threading
from pathlib import Path

import pytest

from faults.bench import MODEL, Bench, until
from headrace.jobs.cause import Cause
from headrace.jobs.job import NewJob
from headrace.jobs.state import JobState
from servers.faulty_proxy import FaultyProxy

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(240)]

ROWS = 400


@pytest.fixture
def s3_bench(tmp_path: Path, s3_server, record):
    """Jobs in a file, their objects in a bucket."""
    uri = f"s3://{s3_server.bucket()}/jobs/"
    environ = s3_server.environ
    with Bench(
        tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}", uri, record=record, stores_environ=environ
    ) as made:
        yield made


def _records(bench: Bench, first: int, rows: int = ROWS, *, work_ms: int = 0) -> bytes:
    return "".join(f"{n},{work_ms},0\n" for n in range(first, first + rows)).encode()


def _predictions(first: int, rows: int = ROWS) -> list[float]:
    return [2.0 * n + 1 for n in range(first, first + rows)]


def _submit_records(bench: Bench, name: str, data: bytes, **spec) -> int:
    """A job of records that are not the numbers of jobs."""
    uri = f"{bench.store_uri}inputs/{name}.csv"
    bench.stores.for_uri(uri).put(uri, data)
    told = bench.ledger.submit(
        [NewJob(MODEL, input_uri=uri, content_type="text/csv", attempts_max=20, **spec)]
    )
    number = len(bench.ids)
    bench.ids[number] = told[0].job.id
    bench.without_result.add(number)
    return number


def _result(bench: Bench, number: int) -> list[float]:
    uri = bench.job(number).result.uri
    return [float(line) for line in bench.stores.for_uri(uri).get(uri).splitlines()]


def test_fault_10_store_that_spoils_every_fifth_request(s3_bench, s3_server):
    """Fault 10: 500, 503, resets, lost answers and half bodies: every result is whole and right, at its place too."""
    with FaultyProxy(s3_server.endpoint, share=0.2, seed=10) as proxy:
        s3_bench.worker(environ=proxy.environ(s3_server.environ)).wait_ready()
        wanted = f"{s3_bench.store_uri}wanted/"
        s3_bench.submit(30, output_uri=wanted)
        records = _submit_records(s3_bench, "records", _records(s3_bench, 100_000))
        s3_bench.wait_ended()
        until(lambda: all(job.result.published_uri for n, job in s3_bench.jobs().items() if n != records))
    assert {fault for (_, fault), count in proxy.spoilt.items() if count} >= {"500", "503", "reset", "lost"}
    assert _result(s3_bench, records) == _predictions(100_000)
    for number, job in s3_bench.jobs().items():
        if number != records:
            uri = job.result.published_uri
            assert json.loads(s3_bench.stores.for_uri(uri).get(uri))["outputs"][0]["data"] == [2 * number + 1]
    s3_bench.tally()


def test_fault_10_store_goes_away_and_comes_back(s3_bench, s3_server):
    """Fault 10: killed under load, and started again with its data."""
    worker = s3_bench.worker(environ=s3_server.environ).wait_ready()
    numbers = s3_bench.submit(40, work_ms=50)
    until(lambda: sum(job.state.ended for job in s3_bench.jobs(numbers).values()) > 5)
    s3_server.stop()
    threading.Event().wait(3)
    assert worker.running
    s3_server.start()
    s3_bench.wreck()
    s3_bench.wait_ended()
    s3_bench.tally()


def test_fault_10_store_has_another_object_under_the_name_while_it_is_read(s3_bench, s3_server):
    """Fault 10: never rows of both, and never too few: it is read again from the start, or the job says that it changed."""
    rows = 60_000  # more than a stream's first range
    s3_bench.worker(environ=s3_server.environ, serving={"max_batch_rows": 2000}).wait_ready()
    number = _submit_records(s3_bench, "changing", _records(s3_bench, 100_000, rows, work_ms=100))
    until(lambda: s3_bench.executions()[100_000])
    uri = s3_bench.job(number).spec.input_uri
    s3_bench.stores.for_uri(uri).put(uri, _records(s3_bench, 500_000, rows // 2))
    s3_bench.wait_ended()
    job = s3_bench.job(number)
    if job.state is JobState.FAILED:
        assert job.failure.cause is Cause.STORAGE
        assert "changed" in job.failure.message
        s3_bench.tally({number: JobState.FAILED})
        return
    assert _result(s3_bench, number) in (_predictions(100_000, rows), _predictions(500_000, rows // 2))
    s3_bench.tally()
