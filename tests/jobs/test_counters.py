"""Counters of job events: groups, buckets and histograms."""

import pytest

from cases import for_each
from headrace.jobs import counters
from headrace.jobs.counters import (
    BOUNDS_S,
    OTHER,
    CountedEvent,
    JobCount,
    JobCounters,
    JobGroup,
    JobGroups,
    bucket_of,
    histogram_of,
)
from headrace.jobs.job import NewJob
from headrace.jobs.state import ENDED

GROUP = JobGroup("q", "m", "t")


@for_each(
    ("duration_ms", "bucket"),
    [(0, 0), (25, 0), (26, 1), (500, 2), (501, 3), (86_400_000, 11), (86_400_001, 12), (10**12, 12)],
)
def test_bucket_includes_its_bound(duration_ms, bucket):
    assert bucket_of(duration_ms) == bucket


def test_bounds_are_those_of_stored_counters():
    """Ledgers keep the indexes of the buckets for ever."""
    assert BOUNDS_S == (0.025, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)


def test_ends_are_counted_by_state():
    assert {event.value for event in counters.ENDS} == {state.value for state in ENDED}


def test_events_of_one_kind_add_up():
    made = JobCounters()
    assert not made
    job = NewJob("m", queue="q", tenant="t")
    for duration_ms in (5_000, 4_000, -3):
        made.add(CountedEvent.STARTED, job, duration_ms=duration_ms)
    made.add(CountedEvent.FAILED, job, cause="oom")
    assert made
    assert made.counts() == [
        JobCount(CountedEvent.FAILED, "oom", GROUP, 0, 1, 0),
        JobCount(CountedEvent.STARTED, "", GROUP, 0, 1, 0),
        JobCount(CountedEvent.STARTED, "", GROUP, 4, 2, 9_000),
    ]


def test_histogram_adds_groups_and_ignores_unknown_buckets():
    counts = [JobCount(CountedEvent.STARTED, "", GROUP, bucket, 2, 1_500) for bucket in (0, 3, 99)]
    found = histogram_of(counts)
    assert (found.bounds, found.total) == (BOUNDS_S, 4.5)
    assert found.counts == (2, 0, 0, 2, *(0,) * 8, 2)


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(counters, "TENANT_GROUPS_MAX", 2)
    monkeypatch.setattr(counters, "GROUPS_MAX", 3)


def test_groups_beyond_the_limit_lose_their_tenant_and_then_their_model(small_limits):
    groups = JobGroups([GROUP])
    names = [groups.counted_as(JobGroup("q", model, tenant)) for model, tenant in NAMES]
    assert names == [
        ("q", "m", "u"),
        ("q", "m", OTHER),
        ("q", "m", "t"),
        ("q", "m", OTHER),
        (OTHER, OTHER, OTHER),
    ]


NAMES = (("m", "u"), ("m", "v"), ("m", "t"), ("m", "w"), ("n", "t"))


def test_counts_of_groups_beyond_the_limit_add_up(small_limits):
    made = JobCounters()
    for model in "abcdef":
        made.add(CountedEvent.SUBMITTED, NewJob(model))
    found = {tuple(count.group): count.jobs for count in made.counts(JobGroups())}
    assert found == {
        ("default", "a", ""): 1,
        ("default", "b", ""): 1,
        ("default", "c", OTHER): 1,
        (OTHER, OTHER, OTHER): 3,
    }
