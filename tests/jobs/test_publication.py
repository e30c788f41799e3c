"""Publication of results and failures at the output URI, on a disk and on a real S3 server."""

import itertools
import json
from dataclasses import replace

import pytest

from headrace.core.errors import AccessDeniedError, NotFoundError, StorageError
from headrace.jobs.cause import Cause
from headrace.jobs.job import Completed, Failed, JobFailure, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.paths import JobPaths
from headrace.jobs.publication import Publication, error_document
from headrace.jobs.state import JobState
from headrace.storage.resolve import Stores
from headrace.testing import ManualWallClock, MemoryJobLedger

_numbers = itertools.count()
OOPS = JobFailure(Cause.INPUT, "row 3 is no number", "DataError")


class Press:
    """A ledger, headrace's own store, and the submitter's output folder."""

    def __init__(self, stores: Stores, base: str) -> None:
        self.stores, self.out = stores, f"{base}out/"
        self.places = JobPaths(f"{base}store/")
        self.wall = ManualWallClock()
        self.ledger = MemoryJobLedger(self.wall)
        self.ledger.start()
        self.publication = Publication(self.ledger, stores)

    def job(self, **spec):
        given = {"model": "m", "output_uri": self.out, "key": "KEY", "input_uri": "s3://theirs/in", **spec}
        return self.ledger.submit([NewJob(**given)])[0].job

    def end(self, job, *, result=b"result", failed=None, failure=None):
        """Run the job to its end, and return the job as recorded in the ledger."""
        (running,) = self.ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, 60_000)).claimed
        assert running.id == job.id
        outcome = Failed(failure) if failure else self._completed(running, result, failed)
        assert self.ledger.settle_and_claim([Settlement(job.id, running.lease, outcome)]).accepted == (True,)
        return self.ledger.get(job.id)

    def _completed(self, job, result, failed):
        uri = self.places.attempt(job.id, job.lease) + "result.out"
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
    def stands(self) -> dict[str, bytes]:
        """Return names and contents of the objects in the output folder."""
        store = self.stores.for_uri(self.out)
        return {info.uri.removeprefix(self.out): store.get(info.uri) for info in store.list(self.out)}


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.s3)])
def press(request, tmp_path):
    if request.param == "disk":
        with Stores({}) as stores:
            yield Press(stores, f"{tmp_path}/")
        return
    server = request.getfixturevalue("s3_server")
    bucket = server.bucket()
    with Stores(server.environ) as stores:
        yield Press(stores, f"s3://{bucket}/{next(_numbers)}/")


def test_result_is_published_under_its_key_and_recorded(press):
    job = press.end(press.job(), result=b"a" * 3_000_000, failed=b"failed")
    uri = press.publication.publish(job)
    assert uri == f"{press.out}KEY.out"
    assert press.stands == {"KEY.out": b"a" * 3_000_000, "KEY.out.failed": b"failed"}
    assert press.ledger.get(job.id).result.published_uri == uri
    assert press.ledger.list_unpublished(ended_before_ms=press.wall.now_ms() + 1, limit=9) == []


@pytest.mark.parametrize("result", [b"", b"x"])
def test_repeated_publication_is_harmless(press, result):
    job = press.end(press.job(key=""), result=result)
    assert press.publication.publish(job) == press.publication.publish(job)
    assert press.stands == {f"{job.id}.out": result}


def test_failure_is_published(press):
    job = press.end(press.job(correlation_id="c"), failure=OOPS)
    uri = press.publication.publish(job)
    (name,) = press.stands
    told = json.loads(press.stands[name])
    assert (uri, name) == (f"{press.out}KEY.error", "KEY.error")
    assert told == error_document(job)
    assert (told["state"], told["cause"], told["message"]) == ("failed", "input", OOPS.message)
    assert press.ledger.get(job.id).failure.uri == uri


def test_cancelled_job_is_published(press):
    job = press.ledger.cancel(press.job(kind="transform").id)
    press.publication.publish(job)
    assert json.loads(press.stands["KEY.error"])["message"] == "the job was cancelled"


def test_requeued_job_removes_its_earlier_end(press):
    """Regression: KEY.out of an earlier end remained beside a later KEY.error, or vice versa."""
    first = press.end(press.job(), failed=b"failed")
    press.publication.publish(first)
    second = press.end(press.requeue(first), failure=OOPS)
    press.publication.publish(second)
    assert set(press.stands) == {"KEY.error"}
    third = press.end(press.requeue(second), result=b"third")
    press.publication.publish(third)
    assert press.stands == {"KEY.out": b"third"}


@pytest.mark.parametrize("failure", [None, OOPS])
def test_last_end_stays_after_a_concurrent_requeue(press, failure):
    """Regression: if an earlier end was published last, its objects stayed."""
    first = press.end(press.job(), result=b"first")
    second = press.end(press.requeue(first), result=b"second", failure=failure)
    press.publication.publish(second)
    press.publication.publish(first)  # began before the second publication, and ends after it
    assert press.stands == ({"KEY.out": b"second"} if failure is None else press.stands)
    assert set(press.stands) == {"KEY.out" if failure is None else "KEY.error"}
    assert press.ledger.list_unpublished(ended_before_ms=press.wall.now_ms() + 1, limit=9) == []


def test_requeued_job_is_published_at_its_next_end(press):
    first = press.end(press.job(), result=b"first")
    back = press.requeue(first)
    press.publication.publish(first)
    assert press.ledger.get(back.id).state is JobState.PENDING
    press.publication.publish(press.end(back, result=b"second"))
    assert press.stands == {"KEY.out": b"second"}


def test_concurrent_deletion_is_no_error(press):
    job = press.end(press.job())
    press.ledger.delete(job.id)
    assert press.publication.publish(job) == f"{press.out}KEY.out"


def test_missing_result_is_given_up(press):
    job = press.end(press.job())
    press.stores.for_uri(job.result.uri).delete(job.result.uri)
    assert press.publication.publish(job) == ""
    assert press.stands == {}


@pytest.mark.parametrize(
    "spec",
    [{"output_uri": ""}, {"kind": "transform"}, {"kind": "stream"}],
    ids=["nowhere", "transform", "stream"],
)
def test_job_without_output_uri_is_not_published(press, spec):
    job = press.end(press.job(**spec))
    assert press.publication.publish(job) == ""
    assert press.stands == {}


def test_running_job_is_not_published(press):
    press.job()
    (running,) = press.ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, 60_000)).claimed
    assert press.publication.publish(running) == ""


@pytest.mark.s3
def test_missing_bucket_is_an_error_and_no_lost_result(s3_server, tmp_path):
    """Regression: a missing bucket was logged as a missing result, and was not retried."""
    with Stores(s3_server.environ) as stores:
        press = Press(stores, f"{tmp_path}/")
        job = press.end(press.job(output_uri="s3://no-such-bucket-of-ours/out/"))
        with pytest.raises(StorageError):
            press.publication.publish(job)


def test_write_only_output_is_published(tmp_path, monkeypatch):
    with Stores({}) as stores:
        press = Press(stores, f"{tmp_path}/")
        store = stores.for_uri(press.out)

        def refuse(uri):
            raise AccessDeniedError(uri, "no right to delete")

        monkeypatch.setattr(store, "delete", refuse)
        first = press.end(press.job(), failure=OOPS)
        press.publication.publish(first)
        press.publication.publish(press.end(press.requeue(first), result=b"x"))
        assert press.stands["KEY.out"] == b"x"


def test_result_appears_last(tmp_path, monkeypatch):
    with Stores({}) as stores:
        press = Press(stores, f"{tmp_path}/")
        job = press.end(press.job(), failed=b"failed")
        order: list[str] = []
        store = stores.for_uri(press.out)
        writer = store.writer
        monkeypatch.setattr(
            store, "writer", lambda uri: (order.append(uri.rpartition("/")[2]), writer(uri))[1]
        )
        press.publication.publish(job)
        assert order == ["KEY.out.failed", "KEY.out"]


def test_internal_payload_is_not_named():
    with Stores({}) as stores:
        press = Press(stores, "memory://box/")
        job = press.end(press.job(), failure=OOPS)
        owned = replace(job, spec=replace(job.spec, owned_input=True, input_uri="s3://ours/inputs/x"))
        assert error_document(job)["input_uri"] == "s3://theirs/in"
        assert error_document(owned)["input_uri"] == ""


def test_store_errors_are_raised(tmp_path, monkeypatch):
    with Stores({}) as stores:
        press = Press(stores, f"{tmp_path}/")
        job = press.end(press.job())
        monkeypatch.setattr(
            stores.for_uri(press.out), "stream", lambda uri: (_ for _ in ()).throw(NotFoundError(uri, "gone"))
        )
        with pytest.raises(NotFoundError):
            press.publication.publish(job)
        assert press.stands == {}
