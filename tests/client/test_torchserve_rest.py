"""TorchServe over real sockets: one request a row, and refusals of single rows."""

import numpy as np
import pytest

from cases import for_each
from client.support import ScriptedPool, client_over, predicting, request_of, run, status
from headrace.client.address import resolve_address
from headrace.client.endpoint import TorchServeProtocol, classify_torchserve_response
from headrace.client.retry import HttpResponse, ResponseKind
from headrace.client.rows import RefusalGuard
from headrace.core import InferRequest, RowError, Tensor
from headrace.core.errors import EndpointRefusedError, EndpointUnavailableError, ModelContractError
from headrace.protocols.torchserve import encode_error_body
from headrace.testing import ScriptedEndpoint

FAILED = encode_error_body(503, "InternalServerException", "Prediction failed")
BUSY = encode_error_body(503, "ServiceUnavailableException", "no worker to serve")
WRONG_KEY = encode_error_body(400, "InvalidKeyException", "Token Authorization failed")


def double(tensors):
    return tensors["x"][:, 0] * 2


def torchserve(*script):
    url = "http://h/predictions/m"
    pool = ScriptedPool(*script)
    return TorchServeProtocol(resolve_address(url), RefusalGuard(url)), client_over(pool), pool


def test_each_row_is_a_request_and_outputs_keep_row_order():
    with (
        ScriptedEndpoint(double) as endpoint,
        predicting(endpoint.torchserve_url, in_flight_max=4) as predictor,
    ):
        endpoint.delay_s = lambda n: 0.1 if n % 4 == 0 else 0.05
        response = predictor.submit(request_of(*range(12))).result(10)
        assert len(endpoint.requests) == 12
        assert endpoint.completed != sorted(endpoint.completed)
        assert endpoint.in_flight_peak == 4
    assert response.outputs[0].data.tolist() == [2.0 * i for i in range(12)]
    assert (response.model_name, response.id, response.failures) == ("model", "batch-0", ())


def test_concurrent_requests_share_the_attempt_limit():
    with (
        ScriptedEndpoint(double) as endpoint,
        predicting(endpoint.torchserve_url, in_flight_max=3) as predictor,
    ):
        endpoint.delay_s = lambda _: 0.001
        futures = [predictor.submit(request_of(*range(8))) for _ in range(6)]
        for future in futures:
            assert future.result(10).outputs[0].rows == 8
        assert endpoint.in_flight_peak == 3


def test_refused_row_fails_alone_and_raising_handler_is_retried_briefly():
    def predict(tensors):
        value = float(tensors["x"][0, 0])
        if value == 1:
            raise RowError(0, "too young")
        if value == 2:
            raise ValueError
        return tensors["x"][:, 0] * 2

    with ScriptedEndpoint(predict) as endpoint, predicting(endpoint.torchserve_url) as predictor:
        response = predictor.submit(request_of(0, 1, 2, 3)).result(10)
    assert response.outputs[0].data.tolist() == [0.0, 6.0]
    assert [(f.row, f.attempts) for f in response.failures] == [(1, 1), (2, 3)]
    assert "too young" in response.failures[0].why
    assert "Prediction failed" in response.failures[1].why


@for_each(
    ("response", "kind"),
    [
        (HttpResponse(200), ResponseKind.SUCCESS),
        (HttpResponse(503, FAILED), ResponseKind.RETRY_BRIEFLY),
        (HttpResponse(503, BUSY), ResponseKind.RETRY),
        (HttpResponse(503, b"<html>"), ResponseKind.RETRY),
        (HttpResponse(400, WRONG_KEY), ResponseKind.REQUEST_REFUSED),
        (HttpResponse(400, b"{}"), ResponseKind.ROWS_REFUSED),
        (HttpResponse(404, b"{}"), ResponseKind.REQUEST_REFUSED),
    ],
)
def test_response_kind_depends_on_the_exception_type(response, kind):
    assert classify_torchserve_response(response) is kind


def test_unknown_model_fails_the_request():
    protocol, client, _ = torchserve(status(404, encode_error_body(404, "ModelNotFoundException", "no m")))
    with pytest.raises(EndpointRefusedError, match="HTTP 404: no m"):
        run(protocol.infer(client, request_of(1, 2, 3), 3))


def test_unavailable_endpoint_fails_the_request():
    protocol, client, _ = torchserve(status(503, BUSY))
    with pytest.raises(EndpointUnavailableError, match="no worker to serve"):
        run(protocol.infer(client, request_of(1, 2, 3), 3))


def test_all_rows_refused_raises_at_the_limit():
    protocol, client, pool = torchserve(status(400, b'{"message":"what is this"}'))
    with pytest.raises(EndpointRefusedError, match=r"each of the first 100 rows.*what is this"):
        run(protocol.infer(client, request_of(*range(300)), 300))
    assert len(pool.requests) < 110


def test_unencodable_row_fails_alone():
    protocol, client, _ = torchserve(status(200, b"1.5"))
    response = run(protocol.infer(client, request_of(1, np.inf), 2))
    assert [(f.row, "infinite" in f.why) for f in response.failures] == [(1, True)]


def test_json_objects_become_selectable_columns():
    protocol, client, _ = torchserve(status(200, b'{"cat": 0.5, "dog": 0.25}'))
    request = request_of(1, 2)
    response = run(protocol.infer(client, request, 2))
    assert {t.name: t.data.tolist() for t in response.outputs} == {"cat": [0.5, 0.5], "dog": [0.25, 0.25]}
    response = run(protocol.infer(client, InferRequest(request.inputs, outputs=("dog",)), 2))
    assert [t.name for t in response.outputs] == ["dog"]
    with pytest.raises(ModelContractError, match=r"no output 'cow' \(it has cat, dog\)"):
        run(protocol.infer(client, InferRequest(request.inputs, outputs=("dog", "cow")), 2))


def test_changed_response_layout_names_the_batch():
    protocol, client, _ = torchserve(status(200, b'{"cat": 1}'), status(200, b'{"dog": 1}'))
    run(protocol.infer(client, request_of(1), 1))
    with pytest.raises(ModelContractError, match=r"model m: request batch-0: a response is .*dog.*keys cat"):
        run(protocol.infer(client, request_of(1), 1))


def test_text_is_sent_unchanged():
    with ScriptedEndpoint(lambda t: np.array([len(t["x"][0])])) as endpoint:
        with predicting(endpoint.torchserve_url) as predictor:
            request = InferRequest((Tensor("x", np.array(["tabby", "b"], object)),))
            assert predictor.submit(request).result(10).outputs[0].data.tolist() == [5, 1]
        assert {r.headers["content-type"] for r in endpoint.requests} == {"text/plain; charset=utf-8"}


def test_request_without_rows_sends_nothing():
    protocol, client, pool = torchserve(status(500))
    assert run(protocol.infer(client, request_of(), 0)).outputs == ()
    assert pool.requests == []


def test_metadata_is_only_the_name():
    protocol, client, pool = torchserve(status(500))
    metadata = run(protocol.fetch_metadata(client))
    assert (metadata.name, metadata.platform, metadata.inputs, pool.requests) == ("m", "torchserve", (), [])
