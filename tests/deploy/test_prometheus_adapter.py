"""The rules for Prometheus Adapter fit the chart, the metrics of headrace, and Prometheus."""

import re
import shutil
import subprocess

import pytest
import yaml

from deploy.manifests import charted, one, pods_of
from deploy.prometheus_adapter import FIELDS, labels_of, query_of, read_rules, series_of
from headrace.server.jobs.metrics import LEDGER_FAMILIES, PROCESS_FAMILIES, WORKER_FAMILIES
from headrace.server.metrics import FAMILIES

pytestmark = pytest.mark.slow

REQUESTS = "headrace_in_flight_requests"
BUSY = "headrace_busy_share"
METRICS = {"requests": REQUESTS, "busy": BUSY}
"""The metrics by the values of `server.autoscaling.by`."""
KINDS = {
    REQUESTS: {REQUESTS: "gauge"},
    BUSY: {"headrace_busy_seconds_total": "counter", "headrace_instances": "gauge"},
}
"""The kinds of the series in the query of each metric."""


def manifests_by(by):
    pytest.importorskip("helm_python")
    return charted({"server": {"autoscaling": {"by": by}}, "serviceMonitor": {"enabled": True}})


@pytest.fixture
def manifests():
    return manifests_by("requests")


def test_rules_serve_the_metrics_of_the_chart():
    assert read_rules().keys() == set(METRICS.values())
    for by, metric in METRICS.items():
        hpa = one(manifests_by(by), "HorizontalPodAutoscaler", "headrace-server")
        assert hpa["spec"]["metrics"][0]["pods"]["metric"] == {"name": metric}


def test_queries_read_the_metrics_of_headrace():
    families = {family.name: family for family in FAMILIES}
    for metric, rule in read_rules().items():
        assert rule.keys() <= FIELDS
        # The series by which the adapter finds the metric is not repeated in the query.
        series = {series_of(rule), *re.findall(r"\bheadrace_\w+", rule["metricsQuery"])}
        assert {name: families[name].kind for name in series} == KINDS[metric]
        # Prometheus divides series with equal labels only.
        assert len({families[name].labels for name in series}) == 1
        # No other metric has the name that a rule gives.
        assert metric == series_of(rule) or metric not in families


def test_labels_of_the_scrape_are_those_of_the_rules(manifests):
    """The Prometheus operator adds `namespace` and `pod` to each target, unless a monitor says otherwise."""
    for rule in read_rules().values():
        assert labels_of(rule) == {"namespace": "namespace", "pod": "pod"}
    # Prometheus would rename a label of headrace with one of these names.
    families = (*FAMILIES, *LEDGER_FAMILIES, *PROCESS_FAMILIES, *WORKER_FAMILIES)
    assert not {label for family in families for label in family.labels} & {"namespace", "pod"}
    (endpoint,) = one(manifests, "ServiceMonitor", "headrace")["spec"]["endpoints"]
    assert not {"honorLabels", "relabelings", "metricRelabelings"} & endpoint.keys()


def test_minute_of_the_rules_has_two_samples(manifests):
    (endpoint,) = one(manifests, "ServiceMonitor", "headrace")["spec"]["endpoints"]
    for rule in read_rules().values():
        assert re.findall(r"\[(\w+)\]", rule["metricsQuery"]) == ["1m"]
    assert endpoint["interval"] == "30s"


def test_pod_of_the_server_is_scraped_once(manifests):
    """A second Service with a port `metrics` for the same pods would double their requests."""
    monitor = one(manifests, "ServiceMonitor", "headrace")["spec"]
    labels = dict(pods_of(manifests))["headrace-server"]["metadata"]["labels"]
    (service,) = (
        each
        for each in manifests
        if each["kind"] == "Service"
        and monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
        and each["spec"]["selector"].items() <= labels.items()
    )
    assert monitor["endpoints"][0]["port"] in [port["name"] for port in service["spec"]["ports"]]


def series(name, pod, model, values, namespace="ml"):
    labels = f'namespace="{namespace}",pod="{pod}",model="{model}",version="1"'
    return {"series": f"{name}{{{labels}}}", "values": values}


IN_FLIGHT = [
    series(REQUESTS, "a", "m", "4x9"),
    series(REQUESTS, "a", "n", "0 0 40 0 0 0"),
    series(REQUESTS, "b", "m", "2x9"),
    series(REQUESTS, "c", "m", "9x9"),
    series(REQUESTS, "a", "m", "9x9", namespace="other"),
]
BUSY_SECONDS = [
    each
    for pod, model, instances, values, namespace in (
        ("a", "m", 2, "100+18x9", "ml"),
        ("a", "n", 1, "0+3x9", "ml"),
        # A model that is loaded again counts from zero.
        ("b", "m", 1, "700 703 3 6 9 12", "ml"),
        ("c", "m", 1, "0+15x9", "ml"),
        ("a", "m", 1, "0+15x9", "other"),
    )
    for each in (
        series("headrace_busy_seconds_total", pod, model, values, namespace),
        series("headrace_instances", pod, model, f"{instances}x9", namespace),
    )
]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
@pytest.mark.parametrize(
    ("metric", "samples", "expected"),
    [
        # The sum of the models. Four samples are in the minute before.
        (REQUESTS, IN_FLIGHT, {"a": 4 + 40 / 4, "b": 2}),
        # The largest of the models, for each instance: 18 s and 3 s of 15 s.
        (BUSY, BUSY_SECONDS, {"a": 18 / 15 / 2, "b": 3 / 15}),
    ],
    ids=METRICS.keys(),
)
def test_query_joins_the_models_of_each_pod_over_a_minute(tmp_path, metric, samples, expected):
    rule = read_rules()[metric]
    document = {
        "tests": [
            {
                "interval": "15s",
                "input_series": samples,
                "promql_expr_test": [
                    {
                        "expr": f"round({query_of(rule, series_of(rule), 'ml', pods)}, 0.001)",
                        "eval_time": "70s",
                        "exp_samples": [
                            {"labels": f'{{pod="{pod}"}}', "value": round(expected[pod], 3)} for pod in pods
                        ],
                    }
                    for pods in (["a", "b"], ["b"])
                ],
            }
        ]
    }
    path = tmp_path / "query.test.yml"
    path.write_text(yaml.safe_dump(document))
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
