"""Publication of results and failures at the output URI, on a disk and on a real S3 server."""

import hashlib
import itertools
import json
import logging
from dataclasses import replace

import pytest

from headrace.core.errors import (
    AccessDeniedError,
    NotFoundError,
    OutputTakenError,
    ResultGoneError,
    StorageError,
    UnavailableError,
)
from headrace.jobs.job import Completed, Failed, JobFailure, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.paths import JobPaths
from headrace.jobs.payloads import PUBLISH_TRIES_MAX, Publication, error_document
from headrace.jobs.state import Cause, JobState
from headrace.storage.resolve import Stores
from headrace.testing import ManualWallClock, MemoryJobLedger

_numbers = itertools.count()
OOPS = JobFailure(Cause.INPUT, "row 3 is no number", "DataError")


class PublicationBench:
    """A ledger, headrace's own store, and the submitter's output folder."""

    def __init__(self, stores: Stores, base: str) -> None:
        self.stores, self.out = stores, f"{base}out/"
        self.paths = JobPaths(f"{base}store/")
        self.wall = ManualWallClock()
        self.ledger = MemoryJobLedger(self.wall)
        self.ledger.start()
        self.publication = Publication(self.ledger, stores)

    def job(self, **spec):
        fields = {"model": "m", "output_uri": self.out, "key": "KEY", "input_uri": "s3://theirs/in", **spec}
        return self.ledger.submit([NewJob(**fields)])[0].job

    def end(self, job, *, result=b"result", failed=None, failure=None):
        """Run the job to its end, and return the job as recorded in the ledger."""
        (running,) = self.ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, 60_000)).claimed
        assert running.id == job.id
        outcome = Failed(failure) if failure else self._completed(running, result, failed)
        assert self.ledger.settle_and_claim([Settlement(job.id, running.lease, outcome)]).accepted == (True,)
        return self.ledger.get(job.id)

    def _completed(self, job, result, failed):
        uri = self.paths.attempt(job.id, job.lease) + "result.out"
        self.put(uri, result)
        if failed is not None:
            self.put(uri + ".failed", failed)
        return Completed(ResultRef(uri, len(result)))

    def put(self, uri, data):
        self.stores.for_uri(uri).put(uri, data)

    def requeue(self, job):
        self.wall.advance(5)
        return self.ledger.requeue(job.id)

    @property
    def objects(self) -> dict[str, bytes]:
        """Return names and contents of the objects in the output folder."""
        store = self.stores.for_uri(self.out)
        return {info.uri.removeprefix(self.out): store.get(info.uri) for info in store.list(self.out)}


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.s3)])
def bench(request, tmp_path):
    if request.param == "disk":
        with Stores({}) as stores:
            yield PublicationBench(stores, f"{tmp_path}/")
        return
    server = request.getfixturevalue("s3_server")
    bucket = server.bucket()
    with Stores(server.environ) as stores:
        yield PublicationBench(stores, f"s3://{bucket}/{next(_numbers)}/")


def test_result_is_published_under_its_key_and_recorded(bench):
    job = bench.end(bench.job(), result=b"a" * 3_000_000, failed=b"failed")
    uri = bench.publication.publish(job)
    assert uri == f"{bench.out}KEY.out"
    assert bench.objects == {"KEY.out": b"a" * 3_000_000, "KEY.out.failed": b"failed"}
    ended = bench.ledger.get(job.id)
    assert (ended.state, ended.result.published_uri) == (JobState.COMPLETED, uri)
    assert ended.result.digest == f"sha256:{hashlib.sha256(b'a' * 3_000_000).hexdigest()}"
    metadata = bench.stores.for_uri(uri).metadata(uri)
    assert metadata == {"headracejob": job.id, "headracedigest": ended.result.digest}
    bench.wall.advance(60_000)
    assert bench.ledger.claim_publications(9) == []


def test_large_result_is_published_in_parts(bench):
    data = bytes(range(256)) * 80_000
    job = bench.end(bench.job(), result=data)
    uri = bench.publication.publish(job)
    assert bench.objects == {"KEY.out": data}
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert bench.stores.for_uri(uri).metadata(uri)["headracedigest"] == digest


@pytest.mark.parametrize("result", [b"", b"x"])
def test_repeated_publication_is_harmless(bench, result):
    job = bench.end(bench.job(key=""), result=result)
    assert bench.publication.publish(job) == bench.publication.publish(job) != ""
    assert bench.objects == {f"{job.id}.out": result}


def test_failure_is_published(bench):
    job = bench.end(bench.job(correlation_id="c"), failure=OOPS)
    uri = bench.publication.publish(job)
    (name,) = bench.objects
    document = json.loads(bench.objects[name])
    assert (uri, name) == (f"{bench.out}KEY.error", "KEY.error")
    assert document == error_document(job)
    assert (document["state"], document["cause"], document["message"]) == ("failed", "input", OOPS.message)
    assert bench.ledger.get(job.id).failure.uri == uri


def test_cancelled_job_is_published(bench):
    job = bench.ledger.cancel(bench.job(kind="transform").id)
    bench.publication.publish(job)
    assert json.loads(bench.objects["KEY.error"])["message"] == "the job was cancelled"


def test_requeued_job_removes_its_earlier_end(bench):
    """Regression: KEY.out of an earlier end remained beside a later KEY.error, or vice versa."""
    first = bench.end(bench.job(), failed=b"failed")
    bench.publication.publish(first)
    second = bench.end(bench.requeue(first), failure=OOPS)
    bench.publication.publish(second)
    assert set(bench.objects) == {"KEY.error"}
    third = bench.end(bench.requeue(second), result=b"third")
    bench.publication.publish(third)
    assert bench.objects == {"KEY.out": b"third"}


def while_writing(bench, monkeypatch, do):
    """Arrange that `do` runs when a publication is about to write its next object."""
    store = bench.stores.for_uri(bench.out)
    writer = store.writer

    def interrupted(uri, metadata):
        monkeypatch.setattr(store, "writer", writer)
        do()
        return writer(uri, metadata)

    monkeypatch.setattr(store, "writer", interrupted)


@pytest.mark.parametrize("failure", [None, OOPS])
def test_last_end_stays_after_a_concurrent_requeue(bench, failure, monkeypatch):
    """Regression: if an earlier end was published last, its objects stayed."""
    first = bench.end(bench.job(), result=b"first")
    bench.publication.publish(first)

    def end_again():
        second = bench.end(bench.requeue(first), result=b"second", failure=failure)
        bench.publication.publish(second)

    while_writing(bench, monkeypatch, end_again)
    bench.publication.publish(bench.ledger.get(first.id))
    assert set(bench.objects) == {"KEY.out" if failure is None else "KEY.error"}
    assert bench.objects.get("KEY.out", b"second") == b"second"
    bench.wall.advance(60_000)
    assert bench.ledger.claim_publications(9) == []


@pytest.mark.parametrize("failure", [None, OOPS])
def test_end_of_a_new_owner_stays_after_a_late_publication(bench, failure, monkeypatch):
    first = bench.end(bench.job(), result=b"first", failed=b"failed")

    def replace_owner():
        second = bench.end(bench.job(if_exists="replace"), result=b"second", failure=failure)
        bench.publication.publish(second)

    while_writing(bench, monkeypatch, replace_owner)
    with pytest.raises(OutputTakenError):
        bench.publication.publish(first)
    assert set(bench.objects) == {"KEY.out" if failure is None else "KEY.error"}
    assert bench.objects.get("KEY.out", b"second") == b"second"
    assert bench.publication.publish_or_record(first), "a retry is pointless"
    replaced = bench.ledger.get(first.id)
    assert (replaced.state, replaced.failure.error) == (JobState.PUBLISH_FAILED, "OutputTakenError")


def test_object_of_a_killed_publisher_is_repaired(bench):
    first = bench.end(bench.job(), result=b"first")
    bench.publication.publish(bench.end(bench.job(if_exists="replace"), result=b"second"))
    bench.put(f"{bench.out}KEY.out", b"first")  # written late; then the publisher was killed
    bench.wall.advance(60_000)
    (due,) = bench.ledger.claim_publications(9)
    bench.publication.publish_or_record(due)
    assert bench.objects == {"KEY.out": b"second"}
    assert (due.id, bench.ledger.get(first.id).state) == (first.id, JobState.PUBLISH_FAILED)


def test_failure_of_a_job_does_not_stay_beside_the_result_of_the_next(bench):
    """Regression: `KEY.error` of a failed job remained beside `KEY.out` of another."""
    bench.publication.publish(bench.end(bench.job(), failure=OOPS))
    bench.publication.publish(bench.end(bench.job(), result=b"second"))
    assert bench.objects == {"KEY.out": b"second"}
    bench.publication.publish(bench.end(bench.job(if_exists="replace"), failure=OOPS))
    assert set(bench.objects) == {"KEY.error"}


def test_versions_are_published_side_by_side(bench):
    bench.publication.publish(bench.end(bench.job(), result=b"first"))
    second = bench.end(bench.job(if_exists="version"), result=b"second")
    bench.publication.publish(second)
    assert bench.objects == {"KEY.out": b"first", f"KEY~{second.id}.out": b"second"}


def test_requeued_job_is_published_at_its_next_end(bench):
    first = bench.end(bench.job(), result=b"first")
    bench.publication.publish(first)
    back = bench.requeue(first)
    assert bench.publication.publish(first) == "", "a stale publication wrote an earlier end"
    assert bench.ledger.get(back.id).state is JobState.PENDING
    bench.publication.publish(bench.end(back, result=b"second"))
    assert bench.objects == {"KEY.out": b"second"}


def test_deleted_job_is_not_published(bench):
    job = bench.end(bench.job(), failure=OOPS)
    bench.ledger.delete(job.id)
    assert bench.publication.publish(job) == ""
    assert bench.objects == {}


def test_missing_result_ends_the_publication(bench):
    job = bench.end(bench.job())
    bench.stores.for_uri(job.result.uri).delete(job.result.uri)
    with pytest.raises(ResultGoneError):
        bench.publication.publish(job)
    assert bench.publication.publish_or_record(job), "a retry is pointless"
    assert bench.ledger.get(job.id).state is JobState.PUBLISH_FAILED
    assert bench.objects == {}


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (UnavailableError("s3://b", "away"), JobState.PUBLISHING),
        (ZeroDivisionError(), JobState.PUBLISHING),
        (AccessDeniedError("s3://b", "no"), JobState.PUBLISH_FAILED),
    ],
)
def test_failure_is_recorded_and_retried_if_it_may_pass(bench, error, state, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL)
    job = bench.end(bench.job())

    def fail():
        raise error

    while_writing(bench, monkeypatch, fail)
    assert bench.publication.publish_or_record(job) == state.ended
    after = bench.ledger.get(job.id)
    assert (after.state, after.failure.error) == (state, type(error).__name__)
    assert after.failure.message.startswith("the result could not be published: ")
    if state is JobState.PUBLISH_FAILED:
        after = bench.ledger.republish(job.id)
    assert bench.publication.publish_or_record(after)
    assert (bench.ledger.get(job.id).state, bench.objects) == (JobState.COMPLETED, {"KEY.out": b"result"})


def test_publication_fails_after_its_last_try(bench, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL)
    job = bench.end(bench.job())

    def fail(uri, metadata):
        raise UnavailableError(uri, f"away from {bench.paths.store_uri}")

    monkeypatch.setattr(bench.stores.for_uri(bench.out), "writer", fail)
    publication = Publication(bench.ledger, bench.stores, hide=bench.paths.store_uri)
    for tries in (PUBLISH_TRIES_MAX - 1, PUBLISH_TRIES_MAX):
        assert bench.ledger.get(job.id).state is JobState.PUBLISHING
        publication.publish_or_record(replace(job, publish_tries=tries))
    ended = bench.ledger.get(job.id)
    assert ended.state is JobState.PUBLISH_FAILED
    assert "away from store:" in ended.failure.message


@pytest.mark.parametrize(
    "spec",
    [{"output_uri": ""}, {"kind": "transform"}, {"kind": "stream"}],
    ids=["nowhere", "transform", "stream"],
)
def test_job_without_output_uri_is_not_published(bench, spec):
    job = bench.end(bench.job(**spec))
    assert bench.publication.publish(job) == ""
    assert bench.objects == {}


def test_running_job_is_not_published(bench):
    bench.job()
    (running,) = bench.ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, 60_000)).claimed
    assert bench.publication.publish(running) == ""


@pytest.mark.s3
def test_missing_bucket_is_an_error_and_no_lost_result(s3_server, tmp_path):
    """Regression: a missing bucket was logged as a missing result, and was not retried."""
    with Stores(s3_server.environ) as stores:
        bench = PublicationBench(stores, f"{tmp_path}/")
        job = bench.end(bench.job(output_uri="s3://no-such-bucket-of-ours/out/"))
        with pytest.raises(StorageError):
            bench.publication.publish(job)


def test_write_only_output_is_published(tmp_path, monkeypatch):
    with Stores({}) as stores:
        bench = PublicationBench(stores, f"{tmp_path}/")
        store = stores.for_uri(bench.out)

        def refuse(uri):
            raise AccessDeniedError(uri, "no right to delete")

        monkeypatch.setattr(store, "delete", refuse)
        first = bench.end(bench.job(), failure=OOPS)
        bench.publication.publish(first)
        bench.publication.publish(bench.end(bench.requeue(first), result=b"x"))
        assert bench.objects["KEY.out"] == b"x"


def test_result_appears_last(tmp_path, monkeypatch):
    with Stores({}) as stores:
        bench = PublicationBench(stores, f"{tmp_path}/")
        job = bench.end(bench.job(), failed=b"failed")
        order: list[str] = []
        store = stores.for_uri(bench.out)
        writer = store.writer
        monkeypatch.setattr(
            store,
            "writer",
            lambda uri, metadata: (order.append(uri.rpartition("/")[2]), writer(uri, metadata))[1],
        )
        bench.publication.publish(job)
        assert order == ["KEY.out.failed", "KEY.out"]


def test_internal_payload_is_not_named():
    with Stores({}) as stores:
        bench = PublicationBench(stores, "memory://box/")
        job = bench.end(bench.job(), failure=OOPS)
        owned = replace(job, spec=replace(job.spec, owned_input=True, input_uri="s3://ours/inputs/x"))
        assert error_document(job)["input_uri"] == "s3://theirs/in"
        assert error_document(owned)["input_uri"] == ""


def test_store_errors_are_raised(tmp_path, monkeypatch):
    with Stores({}) as stores:
        bench = PublicationBench(stores, f"{tmp_path}/")
        job = bench.end(bench.job())
        monkeypatch.setattr(
            stores.for_uri(bench.out), "stream", lambda uri: (_ for _ in ()).throw(NotFoundError(uri, "gone"))
        )
        with pytest.raises(NotFoundError):
            bench.publication.publish(job)
        assert bench.objects == {}
