"""The result publisher: ends that no worker published, retries, and their limits."""

import itertools
import logging

import pytest

from headrace.core.errors import ConfigError, JobLedgerUnavailableError, UnavailableError
from headrace.jobs.maintenance import ResultPublisher
from headrace.storage.resolve import Stores
from headrace.testing import ManualClock
from jobs.maintenance.bench import Bench


class FakePublication:
    """A fake `Publication`. `errors` maps an output URI to an error or a published URI."""

    def __init__(self, ledger):
        self.ledger, self.errors, self.attempted = ledger, {}, []

    def publish(self, job):
        self.attempted.append(job.spec.output_uri)
        answer = self.errors.get(job.spec.output_uri, "there")
        if isinstance(answer, BaseException):
            raise answer
        if answer:
            self.ledger.mark_published(job.id, job.lease, answer)
        return answer


@pytest.fixture
def bench():
    with Stores({}) as stores:
        yield Bench(stores, "memory://box/", 1_800_000_000_000)


def ended(bench, *output_uris):
    for uri in output_uris:
        bench.end(bench.submit(output_uri=uri), fail=True)
        bench.later(0.001)


def new_publisher(bench, **settings):
    publication = FakePublication(bench.ledger)
    return publication, ResultPublisher(bench.ledger, publication, **settings)


def test_unpublished_end_is_published_after_the_workers_time(bench):
    ended(bench, "s3://a/1", "s3://a/2")
    publication, publisher = new_publisher(bench)
    assert publisher.tick() == 0
    bench.later(11.0)
    assert publisher.tick() == 2
    assert publisher.tick() == 0
    assert publication.attempted == ["s3://a/1", "s3://a/2"]


@pytest.mark.parametrize(
    "error", [UnavailableError("s3://a", "away"), ConfigError("too long"), ZeroDivisionError(), ""]
)
def test_unpublishable_end_does_not_block_others(bench, error, caplog):
    """Regression: each round began with the oldest ends.

    Enough unpublishable ends blocked all later ones.
    """
    caplog.set_level(logging.CRITICAL)
    ended(bench, "s3://a/1", "s3://b/1", "s3://c/1", "s3://d/1")
    bench.later(11.0)
    clock = ManualClock()
    publication, publisher = new_publisher(bench, round_jobs=2, clock=clock)
    publication.errors = {"s3://a/1": error, "s3://b/1": error}
    assert [publisher.tick() for _ in range(3)] == [0, 2, 0]
    assert publication.attempted.count("s3://a/1") == 1, "an unpublishable end was tried in every round"
    clock.advance(30.0)
    publication.errors = {}
    assert publisher.tick() == 2


def test_delay_doubles_up_to_an_hour(bench, caplog):
    caplog.set_level(logging.CRITICAL)
    ended(bench, "s3://a/1")
    bench.later(11.0)
    clock = ManualClock()
    publication, publisher = new_publisher(bench, clock=clock)
    publication.errors = {"s3://a/1": UnavailableError("s3://a", "away")}
    times = []
    for _ in range(20_000):
        before = len(publication.attempted)
        publisher.tick()
        if len(publication.attempted) > before:
            times.append(clock.now())
        clock.advance(10.0)
        if len(times) == 10:
            break
    waits = [b - a for a, b in itertools.pairwise(times)]
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_unavailable_bucket_is_tried_once_per_round(bench, caplog):
    caplog.set_level(logging.CRITICAL)
    ended(bench, "s3://a/1", "s3://a/2", "s3://b/1")
    bench.later(11.0)
    publication, publisher = new_publisher(bench)
    publication.errors = dict.fromkeys(("s3://a/1", "s3://a/2"), UnavailableError("s3://a", "away"))
    assert publisher.tick() == 1
    assert publication.attempted == ["s3://a/1", "s3://b/1"]


def test_unavailable_ledger_ends_the_round(bench):
    ended(bench, "s3://a/1", "s3://b/1")
    bench.later(11.0)
    publication, publisher = new_publisher(bench)
    publication.errors = {"s3://a/1": JobLedgerUnavailableError("away")}
    with pytest.raises(JobLedgerUnavailableError):
        publisher.tick()
    assert publication.attempted == ["s3://a/1"]


def test_publication_is_given_up_after_a_day_and_notified(bench, caplog):
    caplog.set_level(logging.CRITICAL)
    ended(bench, "s3://a/1")
    clock = ManualClock()
    publication, publisher = new_publisher(bench, clock=clock)
    publication.errors = {"s3://a/1": UnavailableError("s3://a", "away")}
    given_up = []

    def give_up(job):
        given_up.append(job.id)
        bench.ledger.mark_published(job.id, job.lease, "")

    publication.give_up = give_up
    bench.later(11.0)
    publisher.tick()
    assert given_up == []
    bench.later(86_400.0)
    clock.advance(86_400.0)
    publisher.tick()
    assert len(given_up) == 1
    clock.advance(86_400.0)
    publisher.tick()
    assert len(publication.attempted) == 2
