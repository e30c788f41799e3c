"""The official client of Kubernetes, over TLS with the certificate of the front proxy."""

from contextlib import contextmanager

import pytest
import urllib3

kubernetes = pytest.importorskip("kubernetes")  # part of the dev extra

METRIC = "headrace_pool_workers_wanted"
VERSION = ("external.metrics.k8s.io", "v1beta1")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@contextmanager
def api_client(address, certificates, *certificate):
    """Yield a client that sends a certificate, if there is one, and never repeats a request."""
    configuration = kubernetes.client.Configuration(host=address)
    configuration.ssl_ca_cert = str(certificates.ca)
    configuration.retries = False
    if certificate:
        configuration.cert_file, configuration.key_file = map(str, certificate)
    with kubernetes.client.ApiClient(configuration) as made:
        yield made


@pytest.fixture
def api(https_address, certificates):
    with api_client(https_address, certificates, certificates.client, certificates.client_key) as made:
        yield made


def metric(api, name=METRIC, **options):
    custom = kubernetes.client.CustomObjectsApi(api)
    return custom.list_namespaced_custom_object(*VERSION, "default", name, **options)


def test_client_reads_the_number_of_the_selected_pool(api):
    (item,) = metric(api, label_selector="pool=gpu")["items"]
    assert item["metricLabels"] == {"pool": "gpu"}
    assert kubernetes.utils.parse_quantity(item["value"]) == 3
    assert [each["value"] for each in metric(api)["items"]] == ["0", "3"]
    assert metric(api, "other")["items"] == []


def test_client_discovers_the_metric(api):
    (group,) = kubernetes.client.ApisApi(api).get_api_versions().groups
    assert group.preferred_version.group_version == "/".join(VERSION)
    (resource,) = kubernetes.client.CustomObjectsApi(api).get_api_resources(*VERSION).resources
    assert (resource.name, resource.namespaced, resource.verbs) == (METRIC, True, ["get"])


def test_client_gets_the_status_of_an_error(api, ledger):
    ledger.release("gpu")
    with pytest.raises(kubernetes.client.ApiException) as caught:
        metric(api, label_selector="pool=gpu")
    assert caught.value.status == 503
    assert "pool 'gpu' has no controller" in caught.value.body


@pytest.mark.parametrize("sent", ["none", "another authority"])
def test_client_without_the_certificate_of_the_front_proxy_is_refused(https_address, certificates, sent):
    certificate = () if sent == "none" else (certificates.other, certificates.other_key)
    with (
        api_client(https_address, certificates, *certificate) as made,
        pytest.raises((urllib3.exceptions.HTTPError, OSError)),
    ):
        metric(made)
