"""Settings of other autoscalers as those of a pool: the HPA of Kubernetes, and Application Auto Scaling.

The names and defaults are those of `autoscaling/v2` (HorizontalPodAutoscaler) and of the requests
RegisterScalableTarget, PutScalingPolicy and PutScheduledAction of AWS Application Auto Scaling, with the
defaults of SageMaker's endpoint variants. A field without an equal here is refused with its name, so that
no setting is lost silently.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from headrace.core.errors import ConfigError

Table = dict[str, Any]
"""The settings of a pool as they are written in ``[pools.NAME]``."""

_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|)")
_SCALES: Final = {"m": 0.001, "": 1.0, "k": 1e3, "M": 1e6}
_AWS_CRON: Final = re.compile(r"cron\((\S+) (\S+) (\S+) (\S+) (\S+) \*\)")
_POLICY_KINDS: Final = {"Pods": "step", "Percent": "percent"}
_COOLDOWN_S: Final = 300
_BACKLOG_METRIC: Final = "ApproximateBacklogSizePerInstance"
_LISTS: Final = ("ScalableTargets", "ScalingPolicies", "ScheduledActions")
_SCALE_OUT_RULES: Final[Table] = {
    "tolerance": 0.1,
    "stabilizationWindowSeconds": 0,
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_IN_RULES: Final[Table] = {
    "tolerance": 0.1,
    "stabilizationWindowSeconds": 300,
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}


def pool_table(documents: Sequence[Mapping[str, Any]]) -> Table:
    """Return the settings of a pool that scales as an HPA, or as a target with its policies, does.

    Args:
        documents: A HorizontalPodAutoscaler; or requests or descriptions of Application Auto Scaling, of
            one scalable target.

    Raises:
        ConfigError: A document is of another kind, or a field has no equal here.
    """
    if any(document.get("kind") == "HorizontalPodAutoscaler" for document in documents):
        if len(documents) > 1:
            raise ConfigError("a HorizontalPodAutoscaler stands alone: give one document")
        return _from_hpa(_object(documents[0], "spec"))
    return _from_application_auto_scaling(documents)


# HorizontalPodAutoscaler


def _from_hpa(spec: Mapping[str, Any]) -> Table:
    _require_known("spec", spec, ("scaleTargetRef", "minReplicas", "maxReplicas", "metrics", "behavior"))
    least = 1 if spec.get("minReplicas") is None else spec["minReplicas"]
    behavior = _object(spec, "behavior")
    _require_known("spec.behavior", behavior, ("scaleUp", "scaleDown"))
    out = _SCALE_OUT_RULES | _given(_object(behavior, "scaleUp"))
    in_ = _SCALE_IN_RULES | _given(_object(behavior, "scaleDown"))
    if out["tolerance"] != in_["tolerance"]:
        raise ConfigError("spec.behavior: a pool has one tolerance for both directions")
    return {
        "workers": f"{least}..{_member(spec, 'maxReplicas', 'spec')}",
        "backlog_per_worker": _hpa_target(_objects(spec, "metrics")),
        "tolerance": out["tolerance"],
        **_hpa_rules("scale_out", "spec.behavior.scaleUp", out),
        **_hpa_rules("scale_in", "spec.behavior.scaleDown", in_),
    }


def _hpa_target(metrics: Sequence[Table]) -> float:
    """Return the target for each pod of the one external metric, which is the backlog of the queues."""
    if len(metrics) != 1 or metrics[0].get("type") != "External":
        kinds = ", ".join(str(metric.get("type")) for metric in metrics) or "none"
        raise ConfigError(f"spec.metrics: must be one External metric, the backlog of a queue, not {kinds}")
    target = _object(_object(metrics[0], "external"), "target")
    if target.get("type") != "AverageValue":
        raise ConfigError("spec.metrics: the target must be an averageValue: jobs for each pod")
    return _quantity(str(target.get("averageValue")))


def _quantity(text: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ConfigError(f"averageValue: {text!r} is not a quantity such as 5 or 500m")
    return float(match[1]) * _SCALES[match[2]]


def _hpa_rules(prefix: str, where: str, rules: Mapping[str, Any]) -> Table:
    known = ("stabilizationWindowSeconds", "policies", "selectPolicy", "tolerance")
    _require_known(where, rules, known)
    table: Table = {f"{prefix}_window_s": rules["stabilizationWindowSeconds"]}
    select = rules.get("selectPolicy") or "Max"
    if select == "Disabled":
        return {**table, f"{prefix}_step": 0}
    policies = _objects(rules, "policies")
    if select != "Max" and len(policies) > 1:
        raise ConfigError(f"{where}.selectPolicy: of several policies the one with the largest change counts")
    where = f"{where}.policies"
    periods = {_member(policy, "periodSeconds", where) for policy in policies}
    kinds = [str(policy.get("type")) for policy in policies]
    if len(periods) > 1 or len(set(kinds)) < len(kinds) or not set(kinds) <= _POLICY_KINDS.keys():
        raise ConfigError(f"{where}: must be one of Pods and one of Percent with the same period")
    for kind, policy in zip(kinds, policies, strict=True):
        table[f"{prefix}_{_POLICY_KINDS[kind]}"] = _member(policy, "value", where)
    return {**table, f"{prefix}_cooldown_s": max(periods, default=0)}


# Application Auto Scaling


def _from_application_auto_scaling(documents: Iterable[Mapping[str, Any]]) -> Table:
    table: Table = {}
    schedules: list[Table] = []
    for document in _listed(documents):
        if "Schedule" in document:
            schedules.append(_scheduled_action(document))
        elif "PolicyType" in document:
            table |= _policy(document)
        elif "MaxCapacity" in document:
            table["workers"] = f"{document.get('MinCapacity', 0)}..{document['MaxCapacity']}"
        else:
            raise ConfigError(
                "a document is neither a HorizontalPodAutoscaler nor a scalable target, a scaling policy or "
                f"a scheduled action: it has the fields {', '.join(sorted(document)) or 'of none'}"
            )
    return {**table, **({"schedules": schedules} if schedules else {})}


def _listed(documents: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Yield each document; of the answers of describe requests, each entry."""
    for document in documents:
        found = [name for name in _LISTS if name in document]
        if not found:
            yield document
        for name in found:
            yield from _objects(document, name)


def _policy(document: Mapping[str, Any]) -> Table:
    if document["PolicyType"] == "StepScaling":
        return _step_policy(_object(document, "StepScalingPolicyConfiguration"))
    if document["PolicyType"] != "TargetTrackingScaling":
        raise ConfigError(f"PolicyType: {document['PolicyType']} has no equal here")
    rules = _object(document, "TargetTrackingScalingPolicyConfiguration")
    known = ("TargetValue", "ScaleInCooldown", "ScaleOutCooldown", "DisableScaleIn")
    _require_known(
        "TargetTrackingScalingPolicyConfiguration", rules, (*known, "CustomizedMetricSpecification")
    )
    metric = _object(rules, "CustomizedMetricSpecification").get("MetricName", _BACKLOG_METRIC)
    if metric != _BACKLOG_METRIC:
        raise ConfigError(f"MetricName: must be {_BACKLOG_METRIC}, not {metric}")
    return {
        "backlog_per_worker": _member(rules, "TargetValue", "TargetTrackingScalingPolicyConfiguration"),
        "scale_out_cooldown_s": rules.get("ScaleOutCooldown", _COOLDOWN_S),
        "scale_in_cooldown_s": rules.get("ScaleInCooldown", _COOLDOWN_S),
        **({"scale_in_step": 0} if rules.get("DisableScaleIn") else {}),
    }


def _step_policy(rules: Mapping[str, Any]) -> Table:
    """Return the step that wakes a pool from zero: the only use of steps in SageMaker's documentation."""
    steps = _objects(rules, "StepAdjustments")
    if rules.get("AdjustmentType") != "ChangeInCapacity" or len(steps) != 1:
        raise ConfigError(
            "StepScalingPolicyConfiguration: must be one step of ChangeInCapacity, which wakes from zero"
        )
    return {"steps": {"1": _member(steps[0], "ScalingAdjustment", "StepAdjustments")}}


def _scheduled_action(document: Mapping[str, Any]) -> Table:
    match = _AWS_CRON.fullmatch(str(document["Schedule"]))
    if match is None:
        raise ConfigError(f"Schedule: {document['Schedule']!r} must be cron(MINUTE HOUR DAY MONTH WEEKDAY *)")
    action = _object(document, "ScalableTargetAction")
    _require_known("ScalableTargetAction", action, ("MinCapacity", "MaxCapacity"))
    if len(action) < 2:
        raise ConfigError("ScalableTargetAction: give MinCapacity and MaxCapacity")
    minute, hour, day, month, weekday = match.groups()
    # AWS counts Sunday as 1, and cron as 0.
    weekday = re.sub(r"(?<![#\d])\d", lambda number: str(int(number[0]) - 1), weekday)
    return {
        "cron": " ".join("*" if part == "?" else part for part in (minute, hour, day, month, weekday)),
        "time_zone": document.get("Timezone", "UTC"),
        "workers": f"{action['MinCapacity']}..{action['MaxCapacity']}",
    }


def _given(rules: Table) -> Table:
    """Return the rules that are set: the API answers null for others."""
    return {name: value for name, value in rules.items() if value is not None}


def _object(document: Mapping[str, Any], name: str) -> Table:
    """Return a member that is an object, empty if it is missing."""
    found: Any = document.get(name) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{name} must be an object")
    return cast("Table", found)


def _objects(document: Mapping[str, Any], name: str) -> list[Table]:
    """Return a member that is a list of objects, empty if it is missing."""
    found: Any = document.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in cast("list[Any]", found)):
        raise ConfigError(f"{name} must be a list of objects")
    return cast("list[Table]", found)


def _require_known(where: str, document: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := sorted(document.keys() - set(known)):
        raise ConfigError(f"{where}.{unknown[0]} has no equal in the settings of a pool")


def _member(document: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in document:
        raise ConfigError(f"{where}.{name} is missing")
    return document[name]
