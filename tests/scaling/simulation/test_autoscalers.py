"""The algorithms of the HPA and of KEDA, as their sources have them."""

from dataclasses import replace

import pytest

from scaling.simulation.autoscalers import (
    DOWN,
    SYNC_S,
    UP,
    DirectionRules,
    HorizontalPodAutoscaler,
    KedaScaler,
    RatePolicy,
    sum_of_pods,
)


def sync_all(hpa, metrics, *, replicas, from_s=0.0):
    """Return the replicas after each sync, with one value of the metric each."""
    found = []
    for number, metric in enumerate(metrics):
        replicas = hpa.sync(from_s + number * SYNC_S, replicas, metric)
        found.append(replicas)
    return found


@pytest.mark.parametrize(
    ("replicas", "metric", "wanted"),
    [(4, 40, 8), (4, 41, 9), (4, 0, 0), (8, 43, 8), (10, 45, 10), (10, 44, 9), (10, 54, 10), (10, 56, 12)],
)
def test_average_value_divides_the_sum_by_the_target(replicas, metric, wanted):
    hpa = HorizontalPodAutoscaler(1, 100, 5)
    assert hpa.recommendation(replicas, metric, replicas) == wanted


@pytest.mark.parametrize(
    ("replicas", "ready", "metric", "wanted"), [(4, 4, 100, 8), (4, 2, 100, 4), (4, 4, 54, 4), (4, 4, 20, 2)]
)
def test_value_multiplies_the_ready_pods_by_the_ratio(replicas, ready, metric, wanted):
    hpa = HorizontalPodAutoscaler(1, 100, 50, kind="Value")
    assert hpa.recommendation(replicas, metric, ready) == wanted


@pytest.mark.parametrize(
    ("values", "metric"),
    [
        ((30, 2), 32),
        ((None, None), None),
        ((10, None), 20),  # down: as one at the target
        ((11, None), 20),  # up, but for the idle pod: no change
        ((30, None), 30),  # up: the other pod will take some
        ((30, None, None, None), 40),
    ],
)
def test_pods_without_a_value_never_change_the_direction(values, metric):
    assert sum_of_pods(values, 10) == metric


def test_hpa_is_disabled_at_zero_replicas():
    assert HorizontalPodAutoscaler(1, 20, 1).sync(0.0, 0, 40.0) == 0


def test_error_of_the_metric_changes_no_replicas():
    assert HorizontalPodAutoscaler(1, 20, 1).sync(0.0, 7, None) == 7


def test_hpa_restores_its_limits_without_a_metric():
    hpa = HorizontalPodAutoscaler(2, 20, 1)
    assert hpa.sync(0.0, 1, None) == 2
    assert hpa.sync(15.0, 30, None) == 20


def test_additions_double_or_add_four_pods_each_15_s():
    assert sync_all(HorizontalPodAutoscaler(1, 50, 1), [100] * 5, replicas=1) == [5, 10, 20, 40, 50]


def test_additions_of_a_period_count_together():
    """Two syncs within a period may add together what one may: the period begins before its events."""
    hpa = HorizontalPodAutoscaler(1, 50, 1)
    assert hpa.sync(0.0, 4, 100.0) == 8
    assert hpa.sync(5.0, 8, 100.0) == 8
    assert hpa.sync(16.0, 8, 100.0) == 16


def test_removals_wait_for_the_greatest_recommendation_of_five_minutes():
    found = sync_all(HorizontalPodAutoscaler(1, 50, 1), [8] + [2] * 25, replicas=8)
    assert found == [8] * 20 + [2] * 6


def test_additions_wait_for_the_least_recommendation_of_their_window():
    hpa = HorizontalPodAutoscaler(1, 50, 1, up=replace(UP, window_s=60.0))
    assert sync_all(hpa, [2, 6, 6, 6, 6, 6], replicas=2) == [2, 2, 2, 2, 6, 6]


@pytest.mark.parametrize(("select", "wanted"), [("Max", 8), ("Min", 5), ("Disabled", 4)])
def test_select_policy_chooses_among_the_limits_of_additions(select, wanted):
    policies = (RatePolicy("Pods", 1), RatePolicy("Percent", 100))
    hpa = HorizontalPodAutoscaler(1, 50, 1, up=DirectionRules(0.0, policies, select))
    assert hpa.sync(0.0, 4, 40.0) == wanted


@pytest.mark.parametrize(("select", "wanted"), [("Max", 10), ("Min", 19), ("Disabled", 20)])
def test_select_policy_chooses_among_the_limits_of_removals(select, wanted):
    policies = (RatePolicy("Pods", 1), RatePolicy("Percent", 50))
    hpa = HorizontalPodAutoscaler(1, 50, 1, down=DirectionRules(0.0, policies, select))
    hpa.sync(0.0, 20, 20.0)
    assert hpa.sync(SYNC_S, 20, 1.0) == wanted


def test_removals_may_end_all_pods_at_once_by_default():
    hpa = HorizontalPodAutoscaler(1, 50, 1, down=replace(DOWN, window_s=0.0))
    hpa.sync(0.0, 20, 20.0)
    assert hpa.sync(SYNC_S, 20, 0.0) == 1


def test_keda_activates_above_its_activation_target():
    keda = KedaScaler(0, 20, 1, activation_target=3)
    assert keda.poll(0.0, 0, 3.0) == 0
    assert keda.poll(30.0, 0, 4.0) == 1


def test_keda_activates_to_its_minimum():
    assert KedaScaler(0, 20, 1).poll(0.0, 0, 40.0) == 1
    assert KedaScaler(3, 20, 1).poll(0.0, 0, 40.0) == 3
    assert KedaScaler(3, 20, 1).poll(0.0, 0, 0.0) == 3


def test_keda_sets_zero_replicas_after_the_cooldown():
    keda = KedaScaler(0, 20, 1)
    assert keda.poll(0.0, 0, 1.0) == 1
    assert keda.poll(300.0, 1, 0.0) == 1
    assert keda.poll(301.0, 1, 0.0) == 0


def test_keda_sets_zero_replicas_at_once_if_it_was_never_active():
    assert KedaScaler(0, 20, 1).poll(0.0, 1, 0.0) == 0


def test_error_of_the_trigger_changes_no_replicas():
    keda = KedaScaler(0, 20, 1)
    keda.poll(0.0, 0, 1.0)
    assert keda.poll(1000.0, 7, None) == 7
    assert keda.poll(1030.0, 0, None) == 0


def test_hpa_of_keda_keeps_one_pod():
    keda = KedaScaler(0, 20, 1)
    assert sync_all(keda.hpa, [3] + [0] * 21, replicas=3)[-1] == 1
