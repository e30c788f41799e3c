"""The result publisher: ends that no worker published, and stores that are away."""

import logging

import pytest

from headrace.core.errors import JobLedgerUnavailableError, UnavailableError
from headrace.jobs.maintenance import ResultPublisher
from headrace.jobs.payloads import Publication
from headrace.jobs.state import JobState
from headrace.storage.resolve import Stores
from jobs.maintenance.bench import Bench


class FlakyPublication(Publication):
    """A publication that raises the error of a job's output in `errors`."""

    def __init__(self, ledger, stores):
        super().__init__(ledger, stores)
        self.errors, self.attempted = {}, []

    def publish(self, job):
        self.attempted.append(job.spec.output_uri)
        if error := self.errors.get(job.spec.output_uri):
            raise error
        return super().publish(job)


@pytest.fixture
def bench(caplog):
    caplog.set_level(logging.CRITICAL)
    with Stores({}) as stores:
        yield Bench(stores, "memory://box/", 1_800_000_000_000)


def ended(bench, *output_uris, fail=False):
    jobs = []
    for uri in output_uris:
        jobs.append(bench.end(bench.submit(output_uri=uri), fail=fail))
        bench.later(0.001)
    return jobs


def new_publisher(bench, **settings):
    publication = FlakyPublication(bench.ledger, bench.stores)
    return publication, ResultPublisher(bench.ledger, publication, **settings)


@pytest.mark.parametrize("fail", [False, True])
def test_end_is_published_after_the_workers_time(bench, fail):
    jobs = ended(bench, "memory://a/1", "memory://a/2", fail=fail)
    publication, publisher = new_publisher(bench)
    assert publisher.tick() == 0
    bench.later(10.0)
    assert publisher.tick() == 2
    assert publisher.tick() == 0
    assert publication.attempted == ["memory://a/1", "memory://a/2"]
    states = {bench.ledger.get(job.id).state for job in jobs}
    assert states == {JobState.FAILED if fail else JobState.COMPLETED}


@pytest.mark.parametrize("error", [UnavailableError("memory://a", "away"), ZeroDivisionError()])
def test_unpublishable_end_does_not_block_others(bench, error):
    """Regression: each round began with the oldest ends.

    Enough unpublishable ends blocked all later ones.
    """
    ended(bench, "memory://a/1", "memory://b/1", "memory://c/1", "memory://d/1")
    bench.later(10.0)
    publication, publisher = new_publisher(bench, round_jobs=2)
    publication.errors = {"memory://a/1": error, "memory://b/1": error}
    assert [publisher.tick() for _ in range(3)] == [2, 2, 0]
    assert publication.attempted == ["memory://a/1", "memory://b/1", "memory://c/1", "memory://d/1"]
    bench.later(30.0)
    publication.errors = {}
    assert publisher.tick() == 2
    bench.later(86_400.0)
    assert publisher.tick() == 0


def test_unavailable_bucket_is_tried_once_per_round(bench):
    ended(bench, "memory://a/1", "memory://a/2", "memory://b/1")
    bench.later(10.0)
    publication, publisher = new_publisher(bench)
    publication.errors = dict.fromkeys(
        ("memory://a/1", "memory://a/2"), UnavailableError("memory://a", "away")
    )
    assert publisher.tick() == 3
    assert publication.attempted == ["memory://a/1", "memory://b/1"]


def test_unavailable_ledger_ends_the_round(bench):
    ended(bench, "memory://a/1", "memory://b/1")
    bench.later(10.0)
    publication, publisher = new_publisher(bench)
    publication.errors = {"memory://a/1": JobLedgerUnavailableError("away")}
    with pytest.raises(JobLedgerUnavailableError):
        publisher.tick()
    assert publication.attempted == ["memory://a/1"]


def test_publication_fails_after_a_day(bench):
    (job,) = ended(bench, "memory://a/1")
    publication, publisher = new_publisher(bench)
    publication.errors = {"memory://a/1": UnavailableError("memory://a", "away")}
    began_ms = bench.wall.now_ms()
    while bench.ledger.get(job.id).state is JobState.PUBLISHING:
        bench.later(10.0)
        publisher.tick()
    assert bench.ledger.get(job.id).state is JobState.PUBLISH_FAILED
    assert 82_000_000 < bench.wall.now_ms() - began_ms < 90_000_000
    tried = len(publication.attempted)
    bench.later(86_400.0)
    assert (publisher.tick(), len(publication.attempted)) == (0, tried)
