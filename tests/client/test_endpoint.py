"""Predictors from a URL and settings."""

import logging

import pytest

from cases import for_each
from client.support import predicting, request_of
from headrace.client.endpoint import endpoint_predictor
from headrace.core.errors import ConfigError
from headrace.testing import EndpointFault, ScriptedEndpoint


@pytest.fixture
def endpoint():
    with ScriptedEndpoint(lambda t: t["x"][:, 0] * 2) as endpoint:
        yield endpoint


@for_each(
    ("path", "settings"),
    [
        ("/v2/models/model", {}),
        ("/v2/models/model/infer", {"protocol": "oip"}),
        ("/v2/models/model/versions/1", {}),
        ("", {"model": "model"}),
        ("/predictions/model", {}),
        ("", {"model": "model", "protocol": "torchserve"}),
    ],
)
def test_every_url_form_reaches_the_model(endpoint, path, settings):
    with predicting(endpoint.url + path, **settings) as predictor:
        assert predictor.submit(request_of(1, 2)).result(10).outputs[0].data.tolist() == [2.0, 4.0]


def test_equivalent_urls_give_the_same_predictor_url(endpoint):
    forms = [
        endpoint_predictor(endpoint.oip_url),
        endpoint_predictor(endpoint.oip_url + "/infer"),
        endpoint_predictor(endpoint.url, model="model"),
    ]
    assert {p.url for p in forms} == {endpoint.oip_url}


def test_token_is_sent_with_every_request_and_never_logged(endpoint, caplog, monkeypatch):
    monkeypatch.setenv("HEADRACE_ENDPOINT_TOKEN", " s3cret\n")
    endpoint.token = "s3cret"
    endpoint.faults += [EndpointFault(status=503), EndpointFault(drop=True)]
    with caplog.at_level(logging.DEBUG), predicting(endpoint.oip_url, environ=None) as predictor:
        predictor.submit(request_of(1)).result(10)
    assert {r.headers["authorization"] for r in endpoint.requests} == {"Bearer s3cret"}
    assert caplog.records
    assert "s3cret" not in caplog.text


def test_missing_token_sends_no_authorization(endpoint):
    with predicting(endpoint.oip_url) as predictor:
        predictor.submit(request_of(1)).result(10)
    assert "authorization" not in endpoint.requests[0].headers


@for_each("token", ["a\nb", "naïve"])
def test_invalid_token_is_rejected_without_showing_it(token):
    with pytest.raises(ConfigError, match="HEADRACE_ENDPOINT_TOKEN") as caught:
        endpoint_predictor("http://h/v2/models/m", environ={"HEADRACE_ENDPOINT_TOKEN": token})
    assert token not in str(caught.value)


@for_each("wrong", [{"in_flight_max": 0}, {"timeout_s": 0}, {"retry_s": -1}])
def test_invalid_settings_are_rejected(wrong):
    with pytest.raises(ConfigError, match="at least 1 request in flight"):
        endpoint_predictor("http://h/v2/models/m", **wrong)
