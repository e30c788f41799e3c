"""The rule for Prometheus Adapter fits the chart, the metrics of headrace, and Prometheus."""

import shutil
import subprocess

import pytest
import yaml

from deploy.manifests import charted, one, pods_of
from deploy.prometheus_adapter import FIELDS, labels_of, query_of, read_rule
from headrace.server.jobs.metrics import LEDGER_FAMILIES, PROCESS_FAMILIES, WORKER_FAMILIES
from headrace.server.metrics import FAMILIES

pytestmark = pytest.mark.slow

METRIC = "headrace_in_flight_requests"


@pytest.fixture
def manifests():
    pytest.importorskip("helm_python")
    return charted({"server": {"autoscaling": {"by": "requests"}}, "serviceMonitor": {"enabled": True}})


def test_rule_serves_the_metric_of_the_chart_under_its_name(manifests):
    rule = read_rule()
    assert rule.keys() <= FIELDS
    assert "name" not in rule
    series, _, _ = rule["seriesQuery"].partition("{")
    (family,) = (each for each in FAMILIES if each.name == series)
    assert family.kind == "gauge"
    hpa = one(manifests, "HorizontalPodAutoscaler", "headrace-server")
    assert hpa["spec"]["metrics"][0]["pods"]["metric"] == {"name": series}


def test_labels_of_the_scrape_are_those_of_the_rule(manifests):
    """The Prometheus operator adds `namespace` and `pod` to each target, unless a monitor says otherwise."""
    labels = labels_of(read_rule())
    assert labels == {"namespace": "namespace", "pod": "pod"}
    # Prometheus would rename a label of headrace with one of these names.
    families = (*FAMILIES, *LEDGER_FAMILIES, *PROCESS_FAMILIES, *WORKER_FAMILIES)
    assert not {label for family in families for label in family.labels} & set(labels.values())
    (endpoint,) = one(manifests, "ServiceMonitor", "headrace")["spec"]["endpoints"]
    assert not {"honorLabels", "relabelings", "metricRelabelings"} & endpoint.keys()


def test_average_of_a_minute_has_two_samples(manifests):
    (endpoint,) = one(manifests, "ServiceMonitor", "headrace")["spec"]["endpoints"]
    assert "[1m]" in read_rule()["metricsQuery"]
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


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_query_sums_the_models_of_each_pod_over_a_minute(tmp_path):
    def series(pod, model, values, namespace="ml"):
        labels = f'namespace="{namespace}",pod="{pod}",model="{model}",version="1"'
        return {"series": f"{METRIC}{{{labels}}}", "values": values}

    document = {
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    series("a", "m", "4x9"),
                    series("a", "n", "0 0 40 0 0 0"),
                    series("b", "m", "2x9"),
                    series("c", "m", "9x9"),
                    series("a", "m", "9x9", namespace="other"),
                ],
                "promql_expr_test": [
                    {
                        "expr": query_of(read_rule(), METRIC, "ml", pods),
                        # Four samples are in the minute before.
                        "eval_time": "70s",
                        "exp_samples": [
                            {"labels": f'{{pod="{pod}"}}', "value": {"a": 4 + 40 / 4, "b": 2}[pod]}
                            for pod in pods
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
