"""The rules of deploy/prometheus for Prometheus Adapter, and the queries that the adapter makes of them.

The sources are `prometheus-adapter@pkg/config/config.go` and `pkg/naming/{metric_namer,metrics_query}.go`
(0.12).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

VALUES = Path(__file__).parent.parent.parent / "deploy" / "prometheus" / "adapter-values.yaml"
FIELDS = {"seriesQuery", "seriesFilters", "resources", "name", "metricsQuery"}
"""The fields of a rule. The adapter ignores others."""


def read_rules() -> dict[str, dict[str, Any]]:
    """Return the rules by the names of their metrics."""
    rules = yaml.safe_load(VALUES.read_text())["rules"]["custom"]
    found = {metric_of(rule): rule for rule in rules}
    assert len(found) == len(rules)
    return found


def series_of(rule: Mapping[str, Any]) -> str:
    """Return the name of the series by which the adapter finds the metric."""
    return rule["seriesQuery"].partition("{")[0]


def metric_of(rule: Mapping[str, Any]) -> str:
    """Return the name of the metric: `as`, which without `matches` replaces the name of any series."""
    name = rule.get("name", {})
    assert name.keys() <= {"as"}
    return name.get("as", series_of(rule))


def labels_of(rule: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of series by the resources of Kubernetes that they name."""
    return {each["resource"]: label for label, each in rule["resources"]["overrides"].items()}


def query_of(rule: Mapping[str, Any], series: str, namespace: str, pods: Sequence[str]) -> str:
    """Return the query for the metric of some pods."""
    labels = labels_of(rule)
    operator = "=" if len(pods) == 1 else "=~"
    fields = {
        "Series": series,
        "LabelMatchers": f'{labels["namespace"]}="{namespace}",{labels["pod"]}{operator}"{"|".join(pods)}"',
        "GroupBy": labels["pod"],
    }
    return re.sub(r"<<\s*\.(\w+)\s*>>", lambda found: fields[found[1]], rule["metricsQuery"])
