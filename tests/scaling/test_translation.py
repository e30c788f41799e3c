"""Settings of other autoscalers, as the settings of a pool."""

from copy import deepcopy

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.core.settings_reader import read_settings
from headrace.scaling.settings import PoolSettings, WorkerRange
from headrace.scaling.translation import pool_table

METRIC = {
    "type": "External",
    "external": {
        "metric": {"name": "headrace_backlog"},
        "target": {"type": "AverageValue", "averageValue": "1500m"},
    },
}
HPA = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "spec": {"scaleTargetRef": {"name": "worker"}, "maxReplicas": 20, "metrics": [METRIC]},
}
TARGET = {"ServiceNamespace": "sagemaker", "MinCapacity": 0, "MaxCapacity": 5}
TRACKING = {
    "PolicyType": "TargetTrackingScaling",
    "TargetTrackingScalingPolicyConfiguration": {
        "TargetValue": 5.0,
        "CustomizedMetricSpecification": {"MetricName": "ApproximateBacklogSizePerInstance"},
        "ScaleInCooldown": 600,
    },
}
WAKE = {
    "PolicyType": "StepScaling",
    "StepScalingPolicyConfiguration": {
        "AdjustmentType": "ChangeInCapacity",
        "StepAdjustments": [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}],
    },
}
ACTION = {
    "Schedule": "cron(30 8 ? * 2-6 *)",
    "Timezone": "Europe/Berlin",
    "ScalableTargetAction": {"MinCapacity": 2, "MaxCapacity": 9},
}


def pool(*documents):
    return read_settings(PoolSettings, pool_table(documents), "pools.gpu")


def changed(document, *path, to):
    """Return a copy of a document with another value at a path."""
    copy = deepcopy(document)
    at = copy
    for part in path[:-1]:
        at = at.setdefault(part, {}) if isinstance(at, dict) else at[part]
    at[path[-1]] = to
    return copy


def test_hpa_without_behavior_has_the_defaults_of_kubernetes():
    settings = pool(HPA)
    assert settings.workers == WorkerRange(1, 20)
    assert settings.backlog_per_worker == 1.5
    assert settings.tolerance == 0.1
    assert (settings.scale_out_window_s, settings.scale_in_window_s) == (0, 300)
    assert (settings.scale_out_step, settings.scale_out_percent, settings.scale_out_cooldown_s) == (
        4,
        100,
        15,
    )
    assert (settings.scale_in_step, settings.scale_in_percent, settings.scale_in_cooldown_s) == (
        None,
        100,
        15,
    )


def test_behavior_of_an_hpa_replaces_the_defaults():
    behavior = {
        "scaleUp": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}], "selectPolicy": "Min"},
        "scaleDown": {"stabilizationWindowSeconds": 60, "selectPolicy": "Disabled"},
    }
    settings = pool(changed(HPA, "spec", "behavior", to=behavior))
    assert (settings.scale_out_step, settings.scale_out_percent, settings.scale_out_cooldown_s) == (
        2,
        None,
        60,
    )
    assert (settings.scale_in_window_s, settings.scale_in_step) == (60, 0)


def test_null_stands_for_the_default():
    rules = {"stabilizationWindowSeconds": None, "policies": None, "tolerance": None, "selectPolicy": None}
    assert pool(changed(HPA, "spec", "behavior", to={"scaleUp": rules, "scaleDown": None})) == pool(HPA)


def test_scalable_target_with_policies_and_actions_becomes_one_pool():
    settings = pool(TARGET, TRACKING, WAKE, {"ScheduledActions": [ACTION]})
    assert settings.workers == WorkerRange(0, 5)
    assert settings.backlog_per_worker == 5
    assert settings.steps == ((1, 1),)
    assert (settings.scale_out_cooldown_s, settings.scale_in_cooldown_s) == (300, 600)
    assert [(each.cron, each.time_zone, str(each.workers)) for each in settings.schedules] == [
        ("30 8 * * 1-5", "Europe/Berlin", "2..9")
    ]


def test_answers_of_describe_requests_are_read_like_requests():
    described = pool({"ScalableTargets": [TARGET]}, {"ScalingPolicies": [TRACKING, WAKE]})
    assert described == pool(TARGET, TRACKING, WAKE)


def test_disabled_scale_in_removes_no_worker():
    path = ("TargetTrackingScalingPolicyConfiguration", "DisableScaleIn")
    assert pool(TARGET, changed(TRACKING, *path, to=True)).scale_in_step == 0


@for_each(
    ("document", "named"),
    [
        (changed(HPA, "spec", "minimum", to=1), r"spec\.minimum has no equal"),
        (changed(HPA, "spec", "metrics", to=[{"type": "Resource"}]), "External metric.*not Resource"),
        (changed(HPA, "spec", "metrics", 0, "external", "target", "type", to="Value"), "averageValue"),
        (changed(HPA, "spec", "metrics", 0, "external", "target", "averageValue", to="5x"), "'5x' is not"),
        (changed(HPA, "spec", "behavior", "scaleUp", "tolerance", to=0.2), "one tolerance"),
        (changed(HPA, "spec", "behavior", "scaleUp", "selectPolicy", to="Min"), "selectPolicy"),
        (changed(HPA, "spec", "behavior", to=[1]), "behavior must be an object"),
        (
            changed(HPA, "spec", "behavior", "scaleUp", "policies", to=[{"type": "Pods"}]),
            "periodSeconds is missing",
        ),
        (
            changed(HPA, "spec", "behavior", "scaleUp", "policies", to=[{"type": "x", "periodSeconds": 1}]),
            "one of Pods and one of Percent",
        ),
        (
            changed(
                HPA, "spec", "behavior", "scaleUp", "policies", to=[{"type": "Pods", "periodSeconds": 1}]
            ),
            "value is missing",
        ),
        (
            changed(WAKE, "StepScalingPolicyConfiguration", "StepAdjustments", to=[{}]),
            "Adjustment is missing",
        ),
        (changed(TRACKING, "PolicyType", to="PredictiveScaling"), "PredictiveScaling has no equal"),
        (
            changed(
                TRACKING,
                "TargetTrackingScalingPolicyConfiguration",
                "CustomizedMetricSpecification",
                "MetricName",
                to="Invocations",
            ),
            "MetricName: must be ApproximateBacklogSizePerInstance, not Invocations",
        ),
        (changed(WAKE, "StepScalingPolicyConfiguration", "AdjustmentType", to="ExactCapacity"), "one step"),
        (changed(ACTION, "Schedule", to="rate(1 hour)"), r"rate\(1 hour\)"),
        (changed(ACTION, "ScalableTargetAction", to={"MinCapacity": 1}), "MinCapacity and MaxCapacity"),
        ({"Name": "x"}, "it has the fields Name"),
    ],
)
def test_field_without_an_equal_is_refused_by_name(document, named):
    with pytest.raises(ConfigError, match=named):
        pool(document)
