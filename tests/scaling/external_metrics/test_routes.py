"""The documents of each route, literally as Kubernetes has them, and the errors."""

import logging
import threading

import httpx
import pytest

from cases import for_each
from headrace.server.application import Guard
from headrace.server.jobs.shared_reading import SharedReading
from headrace.server.scaling.external_metrics import external_metrics_app
from scaling.external_metrics.adapter import GROUP, LEASE_MS, METRIC, VERSION, WAIT_S, served_metrics
from scaling.pool_bench import unshared

V1BETA1 = {"groupVersion": "external.metrics.k8s.io/v1beta1", "version": "v1beta1"}
NAMED = {"name": "external.metrics.k8s.io", "versions": [V1BETA1], "preferredVersion": V1BETA1}
EMPTY = {
    "kind": "ExternalMetricValueList",
    "apiVersion": "external.metrics.k8s.io/v1beta1",
    "metadata": {},
    "items": [],
}
GPU = {
    "metricName": "headrace_pool_workers_wanted",
    "metricLabels": {"pool": "gpu"},
    "timestamp": "2027-01-15T08:00:00Z",
    "value": "3",
}
CPU = GPU | {"metricLabels": {"pool": "cpu"}, "value": "0"}
UNAVAILABLE = "the job ledger does not respond: retry later"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"


@pytest.fixture
def http(ledger):
    with served_metrics(unshared(ledger.memory.pools)) as address, client(address) as http:
        yield http


def client(address):
    return httpx.Client(base_url=address, timeout=WAIT_S, trust_env=False, verify=False)


def items(http, selector=None, path=METRIC):
    """Return the items of the metric."""
    response = http.get(path, params=None if selector is None else {"labelSelector": selector})
    assert response.status_code == 200, response.text
    document = response.json()
    assert document | {"items": []} == EMPTY
    return document["items"]


def check_status(response, code, reason, message):
    """Check that a response is this `Status`. Its message may continue."""
    document = response.json()
    assert document.pop("message").startswith(message), response.text
    assert document == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "code": code,
    }
    assert response.status_code == code
    assert response.headers["content-type"] == "application/json"


# Discovery


@for_each(
    ("path", "document"),
    [
        ("/apis", {"kind": "APIGroupList", "apiVersion": "v1", "groups": [NAMED]}),
        ("/apis/", {"kind": "APIGroupList", "apiVersion": "v1", "groups": [NAMED]}),
        (GROUP, {"kind": "APIGroup", "apiVersion": "v1"} | NAMED),
        (
            VERSION,
            {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": "external.metrics.k8s.io/v1beta1",
                "resources": [
                    {
                        "name": "headrace_pool_workers_wanted",
                        "singularName": "",
                        "namespaced": True,
                        "kind": "ExternalMetricValueList",
                        "verbs": ["get"],
                    }
                ],
            },
        ),
    ],
)
def test_discovery_needs_no_ledger(ledger, http, path, document):
    ledger.memory.unavailable = True
    response = http.get(path)
    assert (response.status_code, response.json()) == (200, document)
    assert response.headers["content-type"] == "application/json"


@for_each(
    ("accept", "status"),
    [
        ("application/json", 200),
        ("application/json, */*", 200),
        ("application/vnd.kubernetes.protobuf", 200),
        (f"{AGGREGATED.format('v2')},{AGGREGATED.format('v2beta1')},application/json", 200),
        (f"{AGGREGATED.format('v2')},{AGGREGATED.format('v2beta1')}", 406),
        (f"{AGGREGATED.format('v2')}, {AGGREGATED.format('v2beta1')}", 406),
        (AGGREGATED.format("v2beta1"), 406),
    ],
)
def test_api_server_is_sent_to_the_documents_of_the_version(http, accept, status):
    """The aggregator of Kubernetes 1.27 reads any answer of 200 as a list of all resources, and only
    406 makes it read the list of the version.
    """
    response = http.get("/apis", headers={"accept": accept})
    if status == 200:
        assert response.json()["kind"] == "APIGroupList"
    else:
        check_status(response, 406, "NotAcceptable", "aggregated discovery is not supported")


def test_routes_are_not_in_the_openapi_document(ledger):
    app = external_metrics_app(unshared(ledger.memory.pools))
    assert len(app.routes) == 4
    assert all(route.operation is None and not route.scopes for route in app.routes)


# Metric


@for_each(
    ("selector", "selected"),
    [
        (None, [CPU, GPU]),
        ("", [CPU, GPU]),
        ("pool=gpu", [GPU]),
        ("pool in (gpu, cpu)", [CPU, GPU]),
        ("pool!=gpu", [CPU]),
        ("pool=disk", []),
        ("zone=a", []),
        ("!zone", [CPU, GPU]),
    ],
)
def test_metric_has_the_number_of_each_selected_pool(http, selector, selected):
    assert items(http, selector) == selected


def test_every_namespace_has_the_pools(http):
    path = f"{VERSION}/namespaces/kube-system/headrace_pool_workers_wanted"
    assert items(http, "pool=gpu", path) == [GPU]


def test_unknown_metric_has_no_values(ledger, http):
    ledger.memory.unavailable = True
    assert items(http, path=f"{VERSION}/namespaces/default/queue_length") == []


def test_other_parameters_are_ignored(http):
    assert http.get(f"{METRIC}?limit=500&labelSelector=pool%3Dgpu&fieldSelector=x").json()["items"] == [GPU]


def test_number_is_as_of_the_reading(ledger, http):
    ledger.clock.advance(20_999)
    ledger.decide("gpu")
    assert items(http, "pool=gpu") == [GPU | {"timestamp": "2027-01-15T08:00:20Z"}]
    ledger.decide("gpu", 4)
    assert [each["value"] for each in items(http, "pool=gpu")] == ["4"]


# Missing numbers


def test_pool_without_a_controller_fails_the_whole_answer(ledger, http):
    ledger.release("cpu")
    why = "pool 'cpu' has no controller: start one, such as `headrace scale`; the label selector"
    check_status(http.get(METRIC), 503, "ServiceUnavailable", f"{why} pool=NAME")
    check_status(http.get(f"{METRIC}?labelSelector=pool"), 503, "ServiceUnavailable", why)
    assert items(http, "pool=gpu") == [GPU]


def test_expired_lease_fails_the_answer(ledger, http):
    ledger.clock.advance(LEASE_MS - 1)
    assert len(items(http)) == 2
    ledger.clock.advance(1)
    check_status(http.get(METRIC), 503, "ServiceUnavailable", "pool 'cpu' has no controller")


def test_pool_without_a_decision_fails_the_answer(ledger, http):
    ledger.decide("new")
    check_status(http.get(METRIC), 503, "ServiceUnavailable", "pool 'new' has no decision yet")


def test_ledger_that_is_down_is_an_error_without_its_address(ledger, http):
    ledger.memory.unavailable = True
    response = http.get(f"{METRIC}?labelSelector=pool%3Dgpu")
    check_status(response, 503, "ServiceUnavailable", UNAVAILABLE)
    # Clients of Kubernetes would repeat the request ten times.
    assert "retry-after" not in response.headers
    assert "memory" not in response.text
    ledger.memory.unavailable = False
    assert items(http, "pool=gpu") == [GPU]


def test_ledger_that_hangs_is_an_error():
    released = threading.Event()
    reading = SharedReading(lambda: [released.wait(WAIT_S)][:0], wait_s=0.01)
    try:
        with served_metrics(reading.wait) as address, client(address) as http:
            check_status(http.get(METRIC), 503, "ServiceUnavailable", UNAVAILABLE)
    finally:
        released.set()


def test_defect_is_an_internal_error(caplog):
    def read_pools():
        raise ValueError("secret")

    with (
        caplog.at_level(logging.CRITICAL, "headrace"),
        served_metrics(unshared(read_pools)) as address,
        client(address) as http,
    ):
        check_status(http.get(METRIC), 500, "InternalError", "internal error")


# Refused requests


@for_each(
    "path",
    [
        "/",
        "/api",
        "/openapi/v2",
        "/apis/apps",
        f"{GROUP}/v1",
        f"{VERSION}/headrace_pool_workers_wanted",
        f"{VERSION}/namespaces/default",
        f"{VERSION}/namespaces//headrace_pool_workers_wanted",
        f"{METRIC}/more",
        f"{VERSION}/namespaces/default/a%2Fb",
    ],
)
def test_unknown_path_is_not_found(http, path):
    check_status(http.get(path), 404, "NotFound", "no resource at /")


@for_each("path", ["/apis", VERSION, METRIC])
def test_other_methods_are_not_allowed(http, path):
    response = http.post(path, json={})
    check_status(response, 405, "MethodNotAllowed", f"POST is not supported for {path}")
    assert response.headers["allow"] == "GET, HEAD"


@for_each(
    ("query", "why"),
    [
        ("labelSelector=pool%3E1", "labelSelector: found '>'"),
        ("labelSelector=pool%20in%20(a", "labelSelector: found the end"),
        ("labelSelector=%C3%A9", "labelSelector: found '\\xe9'"),
        (f"labelSelector={'a' * 4097}", "labelSelector: longer than the limit of 4096"),
        ("labelSelector=a%00", "the query contains a NUL character"),
    ],
)
def test_bad_selector_is_a_bad_request(http, query, why):
    check_status(http.get(f"{METRIC}?{query}"), 400, "BadRequest", why)


def test_guard_refuses_pages_of_other_sites(ledger):
    guard = Guard(bound_to="127.0.0.1")
    with served_metrics(unshared(ledger.memory.pools), guard=guard) as address, client(address) as http:
        for path in (METRIC, "/nowhere"):
            response = http.get(path, headers={"host": "evil.example"})
            check_status(response, 403, "Forbidden", "the Host 'evil.example' is not a name of this server")
