"""Worker settings: invalid values are refused."""

import math

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.worker import CONCURRENCY_MAX, WorkerSettings, new_worker_name


@for_each(
    ("given", "why"),
    [
        ({"queues": ()}, "at least one"),
        ({"queues": ("a", "")}, "at least one queue name"),
        ({"queues": "default"}, "queues must be a tuple"),
        ({"name": ""}, "name must not be empty"),
        ({"region": "eu west"}, "'eu west' is not a valid region"),
        ({"region": "eu", "other_regions": "sometimes"}, "other_regions must be one of idle, never"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": CONCURRENCY_MAX + 1}, "concurrency"),
        *(
            ({name: value}, name)
            for name in ("lease_s", "heartbeat_s", "poll_s", "stop_s", "maintain_s")
            for value in (0.0, -1.0, 86_401.0, math.inf, math.nan)
        ),
        *(({"drain_grace_s": value}, "drain_grace_s") for value in (-0.1, 86_401.0, math.inf, math.nan)),
        ({"lease_s": 10.0, "heartbeat_s": 5.1}, "at most half"),
    ],
)
def test_invalid_settings_are_refused(given, why):
    with pytest.raises(ConfigError, match=why):
        WorkerSettings(**given)


def test_extreme_settings_are_accepted():
    settings = WorkerSettings(
        concurrency=CONCURRENCY_MAX, lease_s=10.0, heartbeat_s=5.0, drain_grace_s=0.0, queues=("a", "b")
    )
    assert settings.lease_ms == 10_000


def test_worker_names_are_unique():
    assert new_worker_name() != new_worker_name()
    assert WorkerSettings().name != WorkerSettings().name


def test_only_a_worker_with_a_region_waits_for_idleness():
    assert WorkerSettings(region="eu").waits_for_idleness
    assert not WorkerSettings(region="eu", other_regions="never").waits_for_idleness
    assert not WorkerSettings().waits_for_idleness
