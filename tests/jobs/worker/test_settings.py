"""How a worker works: what cannot be is refused before anything runs."""

import math

import pytest

from headrace.core.errors import ConfigError
from headrace.jobs.worker.settings import CONCURRENCY_MAX, WorkerSettings, new_worker_name


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"queues": ()}, "at least one"),
        ({"queues": ("a", "")}, "each with a name"),
        ({"queues": "default"}, "a tuple of queues"),
        ({"name": ""}, "needs a name"),
        ({"region": "eu west"}, "'eu west' cannot be a region"),
        ({"region": "eu", "other_regions": "sometimes"}, "other_regions must be one of idle, never"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": CONCURRENCY_MAX + 1}, "concurrency"),
        *(
            ({name: value}, name)
            for name in ("lease_s", "beat_s", "poll_s", "stop_s", "maintain_s")
            for value in (0.0, -1.0, 86_400.0, math.inf, math.nan)
        ),
        *(({"drain_grace_s": value}, "drain_grace_s") for value in (-0.1, 86_400.0, math.inf, math.nan)),
        ({"lease_s": 10.0, "beat_s": 5.1}, "at most half"),
    ],
)
def test_what_cannot_be_is_refused(given, why):
    with pytest.raises(ConfigError, match=why):
        WorkerSettings(**given)


def test_what_is_just_possible_is_taken():
    settings = WorkerSettings(
        concurrency=CONCURRENCY_MAX, lease_s=10.0, beat_s=5.0, drain_grace_s=0.0, queues=("a", "b")
    )
    assert settings.lease_ms == 10_000


def test_no_two_workers_have_one_name():
    assert new_worker_name() != new_worker_name()
    assert WorkerSettings().name != WorkerSettings().name


def test_only_a_worker_that_has_a_region_waits_for_idleness():
    assert WorkerSettings(region="eu").waits_for_idleness
    assert not WorkerSettings(region="eu", other_regions="never").waits_for_idleness
    assert not WorkerSettings().waits_for_idleness
