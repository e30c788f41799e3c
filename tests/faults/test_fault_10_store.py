"""Fault 10: a store fails, cuts responses, goes away, or replaces objects while they are read."""

import json
from pathlib import Path

import pytest

import levels
from faults.bench import MODEL, Bench
from headrace.jobs.job import NewJob
from headrace.jobs.state import Cause, JobState
from servers.faulty_proxy import FaultyProxy
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(240)]

ROWS = 400
JOBS = levels.by_level(20, 20, 300)


@pytest.fixture
def s3_bench(tmp_path: Path, s3_server, record):
    """A bench whose ledger is a file and whose store is a bucket."""
    uri = f"s3://{s3_server.bucket()}/jobs/"
    ledger_url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Bench(tmp_path, ledger_url, uri, record=record, stores_environ=s3_server.environ) as opened:
        yield opened


def _records(first: int, rows: int = ROWS, *, work_ms: int = 0) -> bytes:
    return "".join(f"{n},{work_ms},0\n" for n in range(first, first + rows)).encode()


def _predictions(first: int, rows: int = ROWS) -> list[float]:
    return [2.0 * n + 1 for n in range(first, first + rows)]


def _submit_records(bench: Bench, name: str, data: bytes, **spec) -> int:
    """Submit a job whose records do not have the job's number."""
    uri = f"{bench.store_uri}inputs/{name}.csv"
    bench.stores.for_uri(uri).put(uri, data)
    (submitted,) = bench.ledger.submit(
        [NewJob(MODEL, input_uri=uri, content_type="text/csv", attempts_max=20, **spec)]
    )
    number = bench.add_job(submitted.job.id)
    bench.unchecked_results.add(number)
    return number


def _result(bench: Bench, number: int) -> list[float]:
    uri = bench.job(number).result.uri
    return [float(line) for line in bench.stores.for_uri(uri).get(uri).splitlines()]


def test_fault_10_store_that_fails_every_fifth_request(s3_bench, s3_server):
    """Fault 10: after errors, resets, lost responses and half bodies, all results are complete."""
    with FaultyProxy(s3_server.endpoint, share=0.2, seed=10) as proxy:
        s3_bench.worker(environ=proxy.environ(s3_server.environ)).wait_ready()
        s3_bench.submit(JOBS, output_uri=f"{s3_bench.store_uri}wanted/")
        records = _submit_records(s3_bench, "records", _records(100_000))
        s3_bench.wait_ended()
        wait_until(
            lambda: all(job.result.published_uri for n, job in s3_bench.jobs().items() if n != records),
            "the publication of all results",
        )
    assert {fault for (_, fault), count in proxy.injected.items() if count} >= {"500", "503", "reset", "lost"}
    assert _result(s3_bench, records) == _predictions(100_000)
    for number, job in s3_bench.jobs().items():
        if number != records:
            uri = job.result.published_uri
            assert json.loads(s3_bench.stores.for_uri(uri).get(uri))["outputs"][0]["data"] == [2 * number + 1]
    s3_bench.costs()


def test_fault_10_store_goes_away_and_comes_back(s3_bench, s3_server):
    """Fault 10: the store is killed under load and started again with its data; all jobs complete."""
    worker = s3_bench.worker(environ=s3_server.environ).wait_ready()
    numbers = s3_bench.submit(40, work_ms=50)
    wait_until(lambda: s3_bench.ended(numbers) > 5, "the end of five jobs")
    reports = worker.log_lines()
    s3_server.stop()
    wait_until(lambda: worker.log_lines() != reports, "a worker that has met the outage")
    assert worker.running
    s3_server.start()
    s3_bench.fault_happens()
    s3_bench.wait_ended()
    s3_bench.costs()


def test_fault_10_object_is_replaced_while_it_is_read(s3_bench, s3_server):
    """Fault 10: the result has the rows of one version, all of them, or the job fails: the object changed."""
    rows = 60_000  # more than the first range that a stream reads
    s3_bench.worker(environ=s3_server.environ, serving={"max_batch_rows": 2000}).wait_ready()
    number = _submit_records(s3_bench, "changing", _records(100_000, rows, work_ms=100))
    s3_bench.wait_any_executing([100_000])
    uri = s3_bench.job(number).spec.input_uri
    s3_bench.stores.for_uri(uri).put(uri, _records(500_000, rows // 2))
    s3_bench.wait_ended()
    job = s3_bench.job(number)
    if job.state is JobState.FAILED:
        assert job.failure.cause is Cause.STORAGE
        assert "changed" in job.failure.message
        s3_bench.costs({number: JobState.FAILED})
        return
    assert _result(s3_bench, number) in (_predictions(100_000, rows), _predictions(500_000, rows // 2))
    s3_bench.costs()
