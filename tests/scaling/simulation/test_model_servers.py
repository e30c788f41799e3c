"""The HPA of the chart over pods of a model server that batches, in virtual time."""

from dataclasses import replace
from itertools import pairwise
from math import ceil

import pytest

from deploy.manifests import charted, one
from scaling.simulation.autoscalers import DOWN, HorizontalPodAutoscaler
from scaling.simulation.model_servers import SCRAPE_S, ModelPod, ModelServers, SimulatedModel

pytest.importorskip("helm_python")
pytestmark = pytest.mark.slow

BATCHES = SimulatedModel(32, lambda _: 0.85)
"""A call takes as long with 32 rows as with one, as on a GPU."""
FULL_PER_S = 21 / 0.85
"""Requests each second with which 32 are in flight: 21 run, and half as many wait for the next call."""
ROW_BY_ROW = SimulatedModel(32, lambda rows: 0.05 * rows)
BUSY_PER_S = 1 / ROW_BY_ROW.call_s(1)
"""Requests each second that keep one instance busy."""
ONE_ROW = SimulatedModel(1, lambda _: 2.0)
HOUR_S = 3600.0
SETTLED_S = 2400.0


METRICS = {
    "cpu": ModelPod.cpu_share,
    "requests": ModelPod.in_flight_requests,
    "busy": ModelPod.busy_share,
}
"""The metrics by the values of `server.autoscaling.by`."""


def hpa_by(metric, **values):
    manifests = charted({"server": {"autoscaling": {"by": metric, **values}}})
    return HorizontalPodAutoscaler.from_manifest(one(manifests, "HorizontalPodAutoscaler", "headrace-server"))


@pytest.fixture
def hpa():
    return hpa_by("requests")


def servers_by_busy_share(model, requests_per_s, *, replicas):
    return ModelServers(hpa_by("busy"), model, requests_per_s, metric=METRICS["busy"], replicas=replicas)


@pytest.mark.parametrize("pods", [1.5, 3.3, 4.6, 5.2])
@pytest.mark.parametrize("replicas", [2, 8])
def test_constant_load_settles(hpa, pods, replicas):
    servers = ModelServers(hpa, BATCHES, lambda _: pods * FULL_PER_S, replicas=replicas)
    servers.run_until(SETTLED_S)
    assert pods - 0.5 < servers.replicas < pods + 2
    servers.run_until(3 * HOUR_S)
    assert servers.changes(SETTLED_S) == 0


def test_replicas_follow_the_load_up_at_once_and_down_one_by_one(hpa):
    servers = ModelServers(hpa, BATCHES, lambda s: (5 if s < HOUR_S else 0.5) * FULL_PER_S, replicas=2)
    servers.run_until(120.0)
    assert servers.replicas >= 5
    servers.run_until(HOUR_S)
    before = servers.replicas
    servers.run_until(2 * HOUR_S)
    removals = [(at_s, pods) for at_s, pods in servers.sizes if at_s > HOUR_S]
    assert [pods for _, pods in removals] == list(range(before - 1, 1, -1))
    times_s = [at_s for at_s, _ in removals]
    assert all(pods >= 5 for at_s, pods in removals if at_s < HOUR_S + 600)
    assert all(later - earlier >= 120 for earlier, later in pairwise(times_s))


def test_burst_of_seconds_adds_no_pod(hpa):
    def requests_per_s(now_s):
        # Just before a scrape.
        burst = now_s % 300 > 300 - 5
        return (2.8 if burst else 0.7) * FULL_PER_S

    assert not 300 % SCRAPE_S
    servers = ModelServers(hpa, BATCHES, requests_per_s, replicas=2)
    servers.run_until(HOUR_S)
    assert servers.changes(0.0) == 0


@pytest.mark.parametrize(("window_s", "settles"), [(600.0, True), (DOWN.window_s, False)])
def test_pods_outlast_a_pause_of_eight_minutes(hpa, window_s, settles):
    hpa.down = replace(hpa.down, window_s=window_s)
    servers = ModelServers(hpa, BATCHES, lambda s: (3.5 if s % 1200 < 720 else 1) * FULL_PER_S, replicas=4)
    servers.run_until(3 * HOUR_S)
    assert (servers.changes(SETTLED_S) == 0) is settles


def test_model_whose_time_grows_with_its_rows_needs_another_metric(hpa):
    """Few requests are in flight until the pods are almost busy; then many are."""
    servers = ModelServers(hpa, ROW_BY_ROW, lambda _: 3.3 * 17, replicas=8)
    servers.run_until(3 * HOUR_S)
    assert servers.changes(SETTLED_S) > 10


@pytest.mark.parametrize("model", [ROW_BY_ROW, ONE_ROW], ids=["time grows with rows", "one row a call"])
@pytest.mark.parametrize("busy", [1.1, 2.3, 3.3, 4.6])
@pytest.mark.parametrize("replicas", [2, 8])
def test_busy_share_settles_without_batches(model, busy, replicas):
    servers = servers_by_busy_share(model, lambda _: busy / model.call_s(1), replicas=replicas)
    servers.run_until(SETTLED_S)
    assert servers.replicas == ceil(busy / 0.7)
    servers.run_until(3 * HOUR_S)
    assert servers.changes(SETTLED_S) == 0


@pytest.mark.parametrize(("call_s", "spare"), [(5.0, 1), (20.0, 2), (90.0, 3)])
@pytest.mark.parametrize("busy", [1.1, 2.3, 3.3])
def test_busy_share_of_long_calls_changes_by_few_pods(call_s, spare, busy):
    """Few calls run between two samples, so the load of a pod changes by chance."""
    servers = servers_by_busy_share(SimulatedModel(1, lambda _: call_s), lambda _: busy / call_s, replicas=4)
    servers.run_until(SETTLED_S)
    settled = [servers.replicas]
    servers.run_until(3 * HOUR_S)
    settled += [pods for at_s, pods in servers.sizes if at_s >= SETTLED_S]
    needed = ceil(busy / 0.7)
    assert needed <= min(settled) <= max(settled) <= needed + spare
    assert servers.changes(SETTLED_S) <= 6 * (3 - SETTLED_S / HOUR_S)


def test_busy_share_adds_less_than_half_of_the_pods_at_once():
    """The share of a pod is never above 1, however many requests wait."""

    def requests_per_s(now_s):
        return (0.7 if now_s < HOUR_S else 4.6) * BUSY_PER_S

    servers = servers_by_busy_share(ROW_BY_ROW, requests_per_s, replicas=2)
    servers.run_until(HOUR_S + 300)
    sizes = [pods for _, pods in servers.sizes]
    assert sizes[:3] == [2, 3, 5]
    assert sizes[-1] >= 7
    assert all(more <= ceil(pods / 0.7) for pods, more in pairwise(sizes))


def test_busy_share_adds_pods_to_a_model_that_batches_at_a_low_load(hpa):
    """Calls of a few rows keep the instances as busy as full ones."""
    load = 0.5 * FULL_PER_S
    by_busy_share = servers_by_busy_share(BATCHES, lambda _: load, replicas=2)
    by_requests = ModelServers(hpa, BATCHES, lambda _: load, replicas=2)
    for servers in (by_busy_share, by_requests):
        servers.run_until(HOUR_S)
    assert (by_busy_share.replicas, by_requests.replicas) == (hpa.most, hpa.least)


# Ranges of instances


def servers_with_ranges(by, model, requests_per_s):
    """Return servers whose pods have one to four instances, and the CPUs of four."""
    return ModelServers(
        hpa_by(by, inFlightRequests=4 * 32),
        model,
        lambda _: requests_per_s,
        metric=METRICS[by],
        replicas=2,
        instances_max=4,
    )


@pytest.mark.parametrize(
    ("by", "model", "requests_per_s", "replicas"),
    [
        ("cpu", ROW_BY_ROW, 7 * BUSY_PER_S, 3),
        ("cpu", ROW_BY_ROW, 12 * BUSY_PER_S, 5),
        ("requests", BATCHES, 7 * FULL_PER_S, 2),
        ("requests", BATCHES, 12 * FULL_PER_S, 3),
    ],
)
def test_pods_with_ranges_of_instances_settle(by, model, requests_per_s, replicas):
    servers = servers_with_ranges(by, model, requests_per_s)
    servers.run_until(SETTLED_S)
    assert servers.replicas == replicas
    servers.run_until(2 * HOUR_S)
    assert servers.changes(SETTLED_S) == 0


@pytest.mark.parametrize(("by", "size"), [("cpu", (2, 8)), ("busy", (6, 6))])
def test_busy_share_adds_pods_in_place_of_instances(by, size):
    servers = servers_with_ranges(by, ROW_BY_ROW, 4 * BUSY_PER_S)
    servers.run_until(2 * HOUR_S)
    assert (servers.replicas, servers.instances) == size


def test_busy_share_of_ranges_of_instances_never_settles():
    servers = servers_with_ranges("busy", ROW_BY_ROW, 12 * BUSY_PER_S)
    servers.run_until(3 * HOUR_S)
    assert servers.changes(SETTLED_S) > 5
