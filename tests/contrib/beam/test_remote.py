"""Served models inside RunInference: a real server over both protocols, and a scripted one with
faults.
"""

import pickle

import numpy as np
import pytest
from apache_beam.io.components.rate_limiter import RateLimiter
from apache_beam.ml.inference.base import KeyedModelHandler, ModelMetadata, RateLimitExceeded, RunInference

from contrib.beam.support import create, expect, pipeline, read_metrics
from headrace import InferRequest, Tensor, TensorSpec
from headrace.beam import ModelHandler, RemoteModelHandler, SplitFailures
from headrace.client.address import TOKEN_VARIABLE
from headrace.contrib.beam.remote import is_retryable
from headrace.core.errors import (
    ConfigError,
    EndpointRefusedError,
    EndpointUnavailableError,
    OverloadedError,
    RefusedRowsError,
)
from headrace.testing.endpoint import EndpointFault, ScriptedEndpoint
from servers.models_for_clients import Sums

KEY = "infer-key-0123456789"


@pytest.fixture(params=["http", "grpc"])
def url(request, served):
    """The URL of the model sums, over either protocol."""
    root = served.rest if request.param == "http" else served.grpc
    return f"{root.rstrip('/')}/v2/models/sums"


class CountingLimiter(RateLimiter):
    """A rate limiter that allows calls after the first `times`, or none if `times` is 0."""

    def __init__(self, times):
        super().__init__("allow")
        self.calls = 0
        self.times = times

    def allow(self, **_: object) -> bool:
        self.calls += 1
        return self.calls > self.times if self.times else False


@pytest.fixture
def retry_waits(monkeypatch):
    """Beam's retry delays in seconds. Beam does not wait for them."""
    retry_waits = []
    monkeypatch.setattr("apache_beam.utils.retry.Clock.sleep", lambda _, seconds: retry_waits.append(seconds))
    return retry_waits


def x(*values):
    return np.array(values, np.float32)


def sum_of(result):
    inference = result.inference
    return "failed" if hasattr(inference, "why") else float(inference["sum"])


def run(handler, elements, **more):
    client = handler.load_model()
    try:
        return handler.run_inference(elements, client, **more)
    finally:
        client.close()


def test_results_equal_those_of_a_local_model(url):
    elements = [x(1, 2, 3), x(0, 0, 1), {"x": x(4, 4, 4)}]
    there = run(RemoteModelHandler(url), elements)
    here = run(ModelHandler(Sums), elements)
    for one, other in zip(there, here, strict=True):
        assert one.example is other.example
        assert one.inference["sum"] == other.inference["sum"]
        assert one.inference["share"].tolist() == other.inference["share"].tolist()
        assert one.model_id == url


def test_refused_row_fails_alone(url):
    with pipeline() as p:
        handler = RemoteModelHandler(url, failures="return", min_batch_size=6)
        elements = [x(1, 1, 1), x(-1, 1, 1), x(2, 2, 2), x(1, 2), x(3, 3, 3), x(1, -5, 1)]
        split = create(p, elements) | RunInference(handler) | SplitFailures()
        expect(split.predictions, [3, 6, 9], sum_of)
        expect(split.failures, [-1, 1, 1], lambda result: float(result.example[0]))
    counters = read_metrics(p.result, "Headrace")
    assert (counters["num_inferences"], counters["failed_inferences"]) == (6, 3)


def test_raising_handler_fails_the_batch(url):
    with pytest.raises(RefusedRowsError, match=r"1 of 2 elements .* a value is negative"):
        run(RemoteModelHandler(url), [x(1, 1, 1), x(-1, 0, 0)])


def test_keyed_requests_are_supported(url):
    request = InferRequest((Tensor("x", np.ones((2, 3), np.float32)),), id="q")
    with pipeline() as p:
        handler = KeyedModelHandler(RemoteModelHandler(url))
        results = create(p, [("a", request)]) | RunInference(handler)
        expect(results, [("a", [3, 3])], lambda pair: (pair[0], pair[1].inference["sum"].tolist()))


def test_update_changes_the_url(url):
    other = url.replace("sums", "other")
    with pipeline() as p:
        updates = create(p, [ModelMetadata(other, "other")])
        results = create(p, [x(1, 2, 3)]) | RunInference(
            RemoteModelHandler(url), model_metadata_pcoll=updates
        )
        expect(results, [(6, other)], lambda result: (sum_of(result), result.model_id))


@pytest.mark.parametrize(("name", "path"), [("sums", ""), (None, "/v2/models/sums")])
def test_model_name_comes_from_url_or_argument(served, name, path):
    for root in (served.rest, served.grpc):
        (result,) = run(RemoteModelHandler(root.rstrip("/") + path, model=name), [x(1, 2, 3)])
        assert sum_of(result) == 6


def test_unknown_model_fails_load(url):
    with pytest.raises(EndpointRefusedError):
        RemoteModelHandler(url.replace("sums", "gone"), failures="return").load_model()


@pytest.fixture
def endpoint():
    with ScriptedEndpoint(
        lambda inputs: inputs["x"] + 1, inputs=(TensorSpec("x", "FP32", (-1, 1)),)
    ) as endpoint:
        yield endpoint


@pytest.fixture
def client(endpoint):
    """A handler of the endpoint, and its client."""
    # Beam throttles for a second after a failed request; a delay of 0 makes it check at once.
    handler = RemoteModelHandler(endpoint.oip_url, num_retries=2, throttle_delay_secs=0)
    client = handler.load_model()
    yield handler, client
    client.close()


def test_unresponsive_endpoint_is_retried(endpoint, client, retry_waits):
    handler, loaded = client
    endpoint.faults += [EndpointFault(status=503), EndpointFault(drop=True)]
    (result,) = handler.run_inference([x(1)], loaded)
    assert result.inference["output"].tolist() == [2]
    assert (len(endpoint.requests), len(retry_waits)) == (3, 2)


def test_retries_are_bounded(endpoint, client, retry_waits):
    handler, loaded = client
    endpoint.default_fault = EndpointFault(status=503)
    with pytest.raises(EndpointUnavailableError, match="503"):
        handler.run_inference([x(1)], loaded)
    assert (len(endpoint.requests), len(retry_waits)) == (3, 2)


def test_refusal_is_not_retried(endpoint, client, retry_waits):
    handler, loaded = client
    endpoint.default_fault = EndpointFault(status=403)
    with pytest.raises(EndpointRefusedError):
        handler.run_inference([x(1)], loaded)
    assert (len(endpoint.requests), retry_waits) == (1, [])


def test_inference_args_are_request_parameters(endpoint, client):
    handler, loaded = client
    handler.run_inference([x(1)], loaded, {"key": "value"})
    assert b'"parameters":{"key":"value"' in endpoint.requests[0].body


def test_rate_limiter_delays_requests(endpoint, retry_waits):
    refused = RemoteModelHandler(endpoint.oip_url, num_retries=2, rate_limiter=CountingLimiter(0))
    client = refused.load_model()
    with pytest.raises(RateLimitExceeded):
        refused.run_inference([x(1)], client)
    assert (endpoint.requests, len(retry_waits)) == ([], 2)
    late = RemoteModelHandler(endpoint.oip_url, num_retries=2, rate_limiter=CountingLimiter(1))
    assert len(late.run_inference([x(1)], client)) == 1
    client.close()


def test_token_is_read_in_the_worker(endpoint, monkeypatch):
    handler = RemoteModelHandler(endpoint.oip_url)
    monkeypatch.setenv(TOKEN_VARIABLE, KEY)
    assert KEY.encode() not in pickle.dumps(handler)
    endpoint.token = KEY
    (result,) = run(pickle.loads(pickle.dumps(handler)), [x(1)])
    assert result.inference["output"].tolist() == [2]


def test_only_transient_errors_are_retryable():
    assert is_retryable(EndpointUnavailableError("u", "away"))
    assert is_retryable(OverloadedError("full", retry_after_s=1))
    assert is_retryable(RateLimitExceeded("slow down"))
    assert not is_retryable(EndpointRefusedError("u", "no"))
    assert not is_retryable(RefusedRowsError("m", "no"))


def test_invalid_settings_are_refused():
    for url in ("ftp://host/v2/models/m", "grpc://host:8081", "http://user:word@host/v2/models/m"):
        with pytest.raises(ConfigError):
            RemoteModelHandler(url)
    with pytest.raises(ConfigError, match='"raise" or "return"'):
        RemoteModelHandler("http://host/v2/models/m", failures="drop")


def test_batching_settings_and_default_bound():
    url = "http://host/v2/models/m"
    assert RemoteModelHandler(url).batch_elements_kwargs() == {"max_batch_size": 128}
    given = RemoteModelHandler(url, min_batch_size=200, max_batch_duration_secs=2).batch_elements_kwargs()
    assert given == {"min_batch_size": 200, "max_batch_size": 200, "max_batch_duration_secs": 2}
    assert RemoteModelHandler(url).get_num_bytes([x(1, 2)]) == 8
