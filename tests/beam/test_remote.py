"""Served models inside RunInference: a real server, over both protocols; and one that fails as it is told, as Beam tests it."""

import pickle

import numpy as np
import pytest
from apache_beam.io.components.rate_limiter import RateLimiter
from apache_beam.ml.inference.base import KeyedModelHandler, ModelMetadata, RateLimitExceeded, RunInference

from beam.support import created, gives, metrics, pipeline
from headrace import InferRequest, Tensor, TensorSpec
from headrace.beam import ModelHandler, RemoteModelHandler, SplitFailures
from headrace.beam.remote import is_retryable
from headrace.client.address import TOKEN_VARIABLE
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
    """Of the model sums, over either protocol."""
    root = served.rest if request.param == "http" else served.grpc
    return f"{root.rstrip('/')}/v2/models/sums"


class Allow(RateLimiter):
    """From the next time on than so many; never, where that is 0."""

    def __init__(self, times):
        super().__init__("allow")
        self.asked = 0
        self.times = times

    def allow(self, **_: object) -> bool:
        self.asked += 1
        return self.asked > self.times if self.times else False


@pytest.fixture
def waits(monkeypatch):
    """Retries of Beam's come at once; gives how long it would have waited each time."""
    waits = []
    monkeypatch.setattr("apache_beam.utils.retry.Clock.sleep", lambda _, seconds: waits.append(seconds))
    return waits


def x(*values):
    return np.array(values, np.float32)


def summed(result):
    inference = result.inference
    return "failed" if hasattr(inference, "why") else float(inference["sum"])


def run(handler, elements, **more):
    client = handler.load_model()
    try:
        return handler.run_inference(elements, client, **more)
    finally:
        client.close()


def test_results_are_those_of_the_model_here(url):
    elements = [x(1, 2, 3), x(0, 0, 1), {"x": x(4, 4, 4)}]
    there = run(RemoteModelHandler(url), elements)
    here = run(ModelHandler(Sums), elements)
    for one, other in zip(there, here, strict=True):
        assert one.example is other.example
        assert one.inference["sum"] == other.inference["sum"]
        assert one.inference["share"].tolist() == other.inference["share"].tolist()
        assert one.model_id == url


def test_a_row_that_is_refused_costs_that_row(url):
    with pipeline() as p:
        handler = RemoteModelHandler(url, failures="return", min_batch_size=6)
        elements = [x(1, 1, 1), x(-1, 1, 1), x(2, 2, 2), x(1, 2), x(3, 3, 3), x(1, -5, 1)]
        parted = created(p, elements) | RunInference(handler) | SplitFailures()
        gives(parted.predictions, [3, 6, 9], summed)
        gives(parted.failures, [-1, 1, 1], lambda result: float(result.example[0]))
    found = metrics(p.result, "Headrace")
    assert (found["num_inferences"], found["failed_inferences"]) == (6, 3)


def test_without_that_the_batch_fails(url):
    with pytest.raises(RefusedRowsError, match=r"1 of 2 elements .* a value is negative"):
        run(RemoteModelHandler(url), [x(1, 1, 1), x(-1, 0, 0)])


def test_keys_and_requests_go_as_they_do_here(url):
    request = InferRequest((Tensor("x", np.ones((2, 3), np.float32)),), id="q")
    with pipeline() as p:
        handler = KeyedModelHandler(RemoteModelHandler(url))
        results = created(p, [("a", request)]) | RunInference(handler)
        gives(results, [("a", [3, 3])], lambda pair: (pair[0], pair[1].inference["sum"].tolist()))


def test_an_update_is_another_url(url):
    other = url.replace("sums", "other")
    with pipeline() as p:
        updates = created(p, [ModelMetadata(other, "other")])
        results = created(p, [x(1, 2, 3)]) | RunInference(
            RemoteModelHandler(url), model_metadata_pcoll=updates
        )
        gives(results, [(6, other)], lambda result: (summed(result), result.model_id))


@pytest.mark.parametrize(("name", "path"), [("sums", ""), (None, "/v2/models/sums")])
def test_a_model_is_named_in_the_url_or_beside_it(served, name, path):
    for root in (served.rest, served.grpc):
        (result,) = run(RemoteModelHandler(root.rstrip("/") + path, model=name), [x(1, 2, 3)])
        assert summed(result) == 6


def test_a_model_that_is_not_there_is_no_rows_fault(url):
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
    """A handler of it, and what it has loaded."""
    # Beam holds requests back for a second after one that failed; so it looks again at once.
    handler = RemoteModelHandler(endpoint.oip_url, num_retries=2, throttle_delay_secs=0)
    client = handler.load_model()
    yield handler, client
    client.close()


def test_who_does_not_answer_is_asked_again(endpoint, client, waits):
    handler, loaded = client
    endpoint.faults += [EndpointFault(status=503), EndpointFault(drop=True)]
    (result,) = handler.run_inference([x(1)], loaded)
    assert result.inference["output"].tolist() == [2]
    assert (len(endpoint.requests), len(waits)) == (3, 2)


def test_but_not_for_ever(endpoint, client, waits):
    handler, loaded = client
    endpoint.always = EndpointFault(status=503)
    with pytest.raises(EndpointUnavailableError, match="503"):
        handler.run_inference([x(1)], loaded)
    assert (len(endpoint.requests), len(waits)) == (3, 2)


def test_who_refuses_is_not_asked_again(endpoint, client, waits):
    handler, loaded = client
    endpoint.always = EndpointFault(status=403)
    with pytest.raises(EndpointRefusedError):
        handler.run_inference([x(1)], loaded)
    assert (len(endpoint.requests), waits) == (1, [])


def test_inference_args_go_with_the_request(endpoint, client):
    handler, loaded = client
    handler.run_inference([x(1)], loaded, {"key": "value"})
    assert b'"parameters":{"key":"value"' in endpoint.requests[0].body


def test_a_rate_limiter_holds_requests_back(endpoint, waits):
    refused = RemoteModelHandler(endpoint.oip_url, num_retries=2, rate_limiter=Allow(0))
    client = refused.load_model()
    with pytest.raises(RateLimitExceeded):
        refused.run_inference([x(1)], client)
    assert (endpoint.requests, len(waits)) == ([], 2)
    late = RemoteModelHandler(endpoint.oip_url, num_retries=2, rate_limiter=Allow(1))
    assert len(late.run_inference([x(1)], client)) == 1
    client.close()


def test_the_key_is_the_workers_own(endpoint, monkeypatch):
    handler = RemoteModelHandler(endpoint.oip_url)
    monkeypatch.setenv(TOKEN_VARIABLE, KEY)
    assert KEY.encode() not in pickle.dumps(handler)
    endpoint.token = KEY
    (result,) = run(pickle.loads(pickle.dumps(handler)), [x(1)])
    assert result.inference["output"].tolist() == [2]


def test_what_may_be_asked_again():
    assert is_retryable(EndpointUnavailableError("u", "away"))
    assert is_retryable(OverloadedError("full", retry_after_s=1))
    assert is_retryable(RateLimitExceeded("slow down"))
    assert not is_retryable(EndpointRefusedError("u", "no"))
    assert not is_retryable(RefusedRowsError("m", "no"))


def test_settings_that_cannot_be():
    for url in ("ftp://host/v2/models/m", "grpc://host:8081", "http://user:word@host/v2/models/m"):
        with pytest.raises(ConfigError):
            RemoteModelHandler(url)
    with pytest.raises(ConfigError, match='"raise" or "return"'):
        RemoteModelHandler("http://host/v2/models/m", failures="drop")


def test_batching_as_given_and_bounded_otherwise():
    url = "http://host/v2/models/m"
    assert RemoteModelHandler(url).batch_elements_kwargs() == {"max_batch_size": 128}
    given = RemoteModelHandler(url, min_batch_size=200, max_batch_duration_secs=2).batch_elements_kwargs()
    assert given == {"min_batch_size": 200, "max_batch_size": 200, "max_batch_duration_secs": 2}
    assert RemoteModelHandler(url).get_num_bytes([x(1, 2)]) == 8
