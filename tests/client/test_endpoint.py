"""From a URL and settings to a predictor."""

import logging

import pytest

from client.support import predicting, request_of
from headrace.client.endpoint import endpoint_predictor
from headrace.core.errors import ConfigError
from headrace.testing import EndpointFault, ScriptedEndpoint


@pytest.fixture
def endpoint():
    with ScriptedEndpoint(lambda t: t["x"][:, 0] * 2) as endpoint:
        yield endpoint


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v2/models/model", {}),
        ("/v2/models/model/infer", {"protocol": "oip"}),
        ("/v2/models/model/versions/1", {}),
        ("", {"model": "model"}),
        ("/predictions/model", {}),
        ("", {"model": "model", "protocol": "torchserve"}),
    ],
)
def test_every_form_of_url_asks_the_model(endpoint, path, more):
    with predicting(endpoint.url + path, **more) as predictor:
        assert predictor.submit(request_of(1, 2)).result(10).outputs[0].data.tolist() == [2.0, 4.0]


def test_urls_that_mean_the_same_model_are_one_identity(endpoint):
    forms = [
        endpoint_predictor(endpoint.oip_url),
        endpoint_predictor(endpoint.oip_url + "/infer"),
        endpoint_predictor(endpoint.url, model="model"),
    ]
    assert {p.url for p in forms} == {endpoint.oip_url}


def test_the_token_goes_with_every_request_and_is_never_logged(endpoint, caplog, monkeypatch):
    monkeypatch.setenv("HEADRACE_ENDPOINT_TOKEN", " s3cret\n")
    endpoint.token = "s3cret"
    endpoint.faults += [EndpointFault(status=503), EndpointFault(drop=True)]
    with caplog.at_level(logging.DEBUG), predicting(endpoint.oip_url, environ=None) as predictor:
        predictor.submit(request_of(1)).result(10)
    assert {r.headers["authorization"] for r in endpoint.requests} == {"Bearer s3cret"}
    assert caplog.records
    assert "s3cret" not in caplog.text


def test_without_a_token_nothing_is_authorized(endpoint):
    with predicting(endpoint.oip_url) as predictor:
        predictor.submit(request_of(1)).result(10)
    assert "authorization" not in endpoint.requests[0].headers


@pytest.mark.parametrize("token", ["a\nb", "naïve"])
def test_a_token_that_no_header_carries_is_refused_unseen(token):
    with pytest.raises(ConfigError, match="HEADRACE_ENDPOINT_TOKEN") as caught:
        endpoint_predictor("http://h/v2/models/m", environ={"HEADRACE_ENDPOINT_TOKEN": token})
    assert token not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"in_flight_max": 0}, {"timeout_s": 0}, {"retry_s": -1}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match="at least 1 request in flight"):
        endpoint_predictor("http://h/v2/models/m", **wrong)
