"""The Open Inference Protocol over real sockets.

Encodings, metadata, refused rows and invalid responses.
"""

import numpy as np
import orjson
import pytest

from cases import for_each
from client.support import ScriptedPool, client_over, predicting, request_of, run, status
from headrace.client.address import resolve_address
from headrace.client.endpoint import OipRestProtocol
from headrace.client.rows import RefusalGuard, join_outputs
from headrace.core import InferRequest, RowError, Tensor, TensorSpec
from headrace.core.errors import (
    EndpointError,
    EndpointRefusedError,
    EndpointUnavailableError,
    ModelContractError,
    RefusedRowsError,
    UnsupportedError,
)
from headrace.testing import EndpointFault, ScriptedEndpoint

X = TensorSpec("x", "FP32", (-1, 2))
METADATA = orjson.dumps({"name": "m", "platform": "p", "versions": ["1"], "inputs": [], "outputs": []})


def double(tensors):
    return {"y": tensors["x"][:, 0] * 2}


def refusing(*bad_values, names_rows=False):
    def predict(tensors):
        bad = [i for i, v in enumerate(tensors["x"][:, 0].tolist()) if v in bad_values]
        if bad and names_rows:
            raise RowError(bad[0], "not taken")
        if bad:
            raise ValueError("not taken")
        return double(tensors)

    return predict


def oip(*script, url="http://h/v2/models/m"):
    """Return a protocol over scripted responses, its client and its pool."""
    pool = ScriptedPool(*script)
    return OipRestProtocol(resolve_address(url), RefusalGuard(url)), client_over(pool), pool


def values(response):
    return response.outputs[0].data.tolist() if response.outputs else []


# Encodings


@for_each("binary", [True, False])
def test_binary_and_json_give_the_same_response(binary):
    with ScriptedEndpoint(double, inputs=(X,), binary=binary) as endpoint, predicting(endpoint.oip_url) as p:
        response = p.submit(request_of(1, 2, 3)).result(10)
    assert (values(response), response.id, response.model_name) == ([2.0, 4.0, 6.0], "batch-0", "model")
    assert response.outputs[0].data.dtype == np.float32


def test_binary_is_tried_once_on_a_json_only_server():
    with ScriptedEndpoint(double, inputs=(X,), binary=False) as endpoint:
        with predicting(endpoint.oip_url, in_flight_max=8) as predictor:
            futures = [predictor.submit(request_of(i)) for i in range(20)]
            assert [values(f.result(10)) for f in futures] == [[2.0 * i] for i in range(20)]
        assert sum(r.binary for r in endpoint.requests) == 1
        assert endpoint.requests[0].binary


def test_binary_server_never_receives_json():
    with ScriptedEndpoint(double, inputs=(X,)) as endpoint, predicting(endpoint.oip_url) as predictor:
        for i in range(5):
            predictor.submit(request_of(i)).result(10)
        assert all(r.binary for r in endpoint.requests)
        assert len(endpoint.requests) == 5


@for_each("code", [400, 406, 415, 422, 500, 501])
def test_any_encoding_refusal_status_falls_back_to_json(code):
    body = b'{"outputs":[{"name":"y","shape":[1],"datatype":"FP32","data":[2]}]}'
    protocol, client, pool = oip(status(code), status(200, body))
    assert values(run(protocol.infer(client, request_of(1), 1))) == [2.0]
    assert [c.headers["Content-Type"] for c in pool.requests] == [
        "application/octet-stream",
        "application/json",
    ]


def test_encoding_is_found_after_a_first_refused_batch():
    """A bad row makes both encodings fail, so the encoding stays unknown until a half succeeds."""
    with ScriptedEndpoint(refusing(1.0), inputs=(X,)) as endpoint, predicting(endpoint.oip_url) as predictor:
        response = predictor.submit(request_of(1, 2, 3, 4)).result(10)
        assert [f.row for f in response.failures] == [0]
        predictor.submit(request_of(5)).result(10)
        assert endpoint.requests[-1].binary


def test_text_round_trips_in_both_encodings():
    texts = np.array(["naïve", ""], object)
    for binary in (True, False):
        with ScriptedEndpoint(lambda t: t["s"], binary=binary) as endpoint, predicting(endpoint.oip_url) as p:
            (output,) = p.submit(InferRequest((Tensor("s", texts),))).result(10).outputs
            assert [v.decode() if isinstance(v, bytes) else v for v in output.data] == ["naïve", ""]


def test_bf16_is_reported_and_accepted_as_float32():
    metadata = orjson.dumps(
        {"name": "m", "inputs": [{"name": "x", "datatype": "BF16", "shape": [-1, 2]}], "outputs": []}
    )
    protocol, client, pool = oip(status(200, metadata), status(404), status(500))
    metadata = run(protocol.fetch_metadata(client))
    assert metadata.inputs == (TensorSpec("x", "FP32", (-1, 2)),)
    protocol._binary = True
    run(protocol.infer(client_over(pool), request_of(1), 1))
    sent_request = pool.requests[-1]
    assert b'"datatype":"BF16"' in sent_request.body
    assert sent_request.body.endswith(b"\x80\x3f\x00\x00")


# Metadata


def test_predictor_reports_the_endpoints_metadata():
    with (
        ScriptedEndpoint(double, inputs=(X,), outputs=(TensorSpec("y", "FP32", (-1,)),)) as endpoint,
        predicting(endpoint.oip_url + "/versions/1") as predictor,
    ):
        metadata = predictor.metadata
    assert (metadata.name, metadata.version, metadata.inputs) == ("model", "1", (X,))
    assert metadata.outputs == (TensorSpec("y", "FP32", (-1,)),)
    assert metadata.max_batch_rows == 1024


@for_each(
    ("shape", "config", "rows"),
    [
        ([-1, 2], status(404), 1024),
        ([-1, 2], status(200, b'{"max_batch_size":8}'), 8),
        ([-1, 2], status(200, b'{"max_batch_size":0}'), 1024),
        ([-1, 2], status(200, b"<html>"), 1024),
        ([-1, 2], status(503), 1024),
        ([16, 2], status(500), 16),
    ],
)
def test_batch_rows_are_limited_by_the_endpoint(shape, config, rows):
    metadata = orjson.dumps({"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": shape}]})
    protocol, client, _ = oip(status(200, metadata), config)
    assert run(protocol.fetch_metadata(client)).max_batch_rows == rows


@for_each("code", [405, 501])
def test_missing_metadata_is_no_error(code):
    protocol, client, _ = oip(status(code), url="http://h/v2/models/m/versions/2")
    metadata = run(protocol.fetch_metadata(client))
    assert (metadata.name, metadata.version, metadata.inputs) == ("m", "2", ())


@for_each("code", [400, 401, 403, 404])
def test_unknown_model_is_refused(code):
    protocol, client, _ = oip(status(code, b'{"error":"who?"}'))
    with pytest.raises(EndpointRefusedError, match=f"HTTP {code}: who?"):
        run(protocol.fetch_metadata(client))


def test_invalid_metadata_raises_endpoint_error():
    protocol, client, _ = oip(status(200, b"<html>login</html>"))
    with pytest.raises(EndpointError, match="its response is not the metadata of a model"):
        run(protocol.fetch_metadata(client))


# Refused rows


@for_each("names_rows", [True, False])
def test_only_bad_rows_fail_and_others_keep_their_order(names_rows):
    with (
        ScriptedEndpoint(refusing(3.0, 11.0, names_rows=names_rows), inputs=(X,)) as endpoint,
        predicting(endpoint.oip_url) as predictor,
    ):
        response = predictor.submit(request_of(*range(16))).result(10)
        statistics = predictor.statistics()
    assert [f.row for f in response.failures] == [3, 11]
    assert all("not taken" in f.why and f.attempts == 5 for f in response.failures)
    assert values(response) == [2.0 * i for i in range(16) if i not in (3, 11)]
    assert (statistics.rows, statistics.failed_rows) == (14, 2)


def test_request_with_all_rows_refused_has_no_outputs():
    with (
        ScriptedEndpoint(refusing(1.0, 2.0), inputs=(X,)) as endpoint,
        predicting(endpoint.oip_url) as predictor,
    ):
        response = predictor.submit(request_of(1, 2)).result(10)
    assert (response.outputs, [f.row for f in response.failures]) == ((), [0, 1])


def test_always_refused_request_raises_after_limited_calls():
    protocol, client, pool = oip(status(400, b'{"error":"unexpected input"}'))
    with pytest.raises(EndpointRefusedError, match=r"each of the first 100 rows.*unexpected input"):
        run(protocol.infer(client, request_of(*range(1024)), 1024))
    assert len(pool.requests) < 500


def test_row_without_a_json_form_fails_alone():
    with (
        ScriptedEndpoint(double, inputs=(X,), binary=False) as endpoint,
        predicting(endpoint.oip_url) as predictor,
    ):
        predictor.submit(request_of(0)).result(10)
        response = predictor.submit(request_of(1, np.inf, 3)).result(10)
    assert values(response) == [2.0, 6.0]
    assert [(f.row, "infinite" in f.why) for f in response.failures] == [(1, True)]


@for_each("code", [401, 403, 404, 405])
def test_request_refusal_is_not_bisected(code):
    protocol, client, pool = oip(status(code))
    with pytest.raises(EndpointRefusedError, match=f"HTTP {code}"):
        run(protocol.infer(client, request_of(1, 2, 3), 3))
    assert len(pool.requests) == 1


def test_unavailable_endpoint_fails_the_request():
    protocol, client, _ = oip(status(503))
    with pytest.raises(EndpointUnavailableError):
        run(protocol.infer(client, request_of(1, 2), 2))


# Requests larger than the endpoint's batch


def test_large_request_is_split_and_failures_keep_row_numbers():
    with (
        ScriptedEndpoint(refusing(5.0), inputs=(TensorSpec("x", "FP32", (4, 2)),)) as endpoint,
        predicting(endpoint.oip_url) as predictor,
    ):
        response = predictor.submit(request_of(*range(10))).result(10)
    assert [f.row for f in response.failures] == [5]
    assert values(response) == [2.0 * i for i in range(10) if i != 5]


def test_request_without_rows_sends_nothing():
    protocol, client, pool = oip(status(500))
    response = run(protocol.infer(client, request_of(), 0))
    assert (response.outputs, pool.requests) == ((), [])


# Invalid responses


@for_each(
    ("predict", "message"),
    [
        (lambda t: {"y": t["x"][1:, 0]}, "request batch-7: output 'y' has 2 rows for 3 rows"),
        (lambda t: {"y": np.zeros(4)}, "request batch-7: output 'y' has 4 rows for 3 rows"),
        (lambda _: {}, "request batch-7: the endpoint returned no output for 3 rows"),
    ],
)
def test_wrong_output_row_count_names_the_batch(predict, message):
    with ScriptedEndpoint(predict, inputs=(X,)) as endpoint, predicting(endpoint.oip_url) as predictor:
        with pytest.raises(ModelContractError, match=message):
            predictor.submit(request_of(1, 2, 3, id="batch-7")).result(10)
        assert len(endpoint.requests) == 1


def test_requested_outputs_are_selected_and_missing_ones_named():
    def two(tensors):
        return {"a": tensors["x"][:, 0], "b": tensors["x"][:, 1]}

    request = request_of(1, 2)
    with ScriptedEndpoint(two, inputs=(X,)) as endpoint, predicting(endpoint.oip_url) as predictor:
        with_output = InferRequest(request.inputs, outputs=("b",))
        assert [t.name for t in predictor.submit(with_output).result(10).outputs] == ["b"]
        with pytest.raises(ModelContractError, match="returned no output 'c'"):
            predictor.submit(InferRequest(request.inputs, outputs=("b", "c"))).result(10)


@for_each("body", [b"<html>", b"{}", b'{"outputs":[{"name":"y"}]}', b""])
def test_invalid_response_fails_the_request_without_bisection(body):
    fault = EndpointFault(status=200, body=body)
    with ScriptedEndpoint(double, inputs=(X,)) as endpoint, predicting(endpoint.oip_url) as predictor:
        endpoint.faults.append(fault)
        with pytest.raises(EndpointError, match="violates the Open Inference Protocol"):
            predictor.submit(request_of(1, 2)).result(10)
        assert len(endpoint.requests) == 1


def test_join_outputs_rejects_differing_parts():
    part, other = (Tensor("y", np.zeros(1)),), (Tensor("y", np.zeros((1, 2))),)
    assert join_outputs("m", "r", []) == ()
    assert join_outputs("m", "r", [part, part])[0].rows == 2
    with pytest.raises(ModelContractError, match="request r: its outputs differ between calls"):
        join_outputs("m", "r", [part, other])


# Whole requests


def whole_request(**more):
    tensors = (
        Tensor("x", np.array([[1, 2]], np.int16), {"content_type": "np"}),
        Tensor("scale", np.array(2.0)),
    )
    return InferRequest(tensors, "mine", ("y",), {"k": [1], **more})


def test_whole_request_and_its_response_are_sent_as_they_are():
    output = {"name": "y", "shape": [], "datatype": "FP16", "data": [1.5], "parameters": {"unit": "m"}}
    answer = {
        "model_name": "n",
        "model_version": "7",
        "id": "mine",
        "parameters": {"p": 1},
        "outputs": [output],
    }
    protocol, client, pool = oip(status(400), status(200, orjson.dumps(answer)))
    response = run(protocol.infer_whole(client, whole_request()))
    sent = orjson.loads(pool.requests[-1].body)
    assert (sent["id"], sent["parameters"], sent["outputs"]) == ("mine", {"k": [1]}, [{"name": "y"}])
    assert [(tensor["shape"], tensor["datatype"]) for tensor in sent["inputs"]] == [
        ([1, 2], "INT16"),
        ([], "FP64"),
    ]
    assert sent["inputs"][0]["parameters"] == {"content_type": "np"}
    assert (response.model_name, response.model_version, response.parameters) == ("n", "7", {"p": 1})
    (y,) = response.outputs
    assert (y.data.shape, y.datatype, y.parameters) == ((), "FP16", {"unit": "m"})


def test_refused_whole_request_is_not_bisected():
    with (
        ScriptedEndpoint(refusing(2.0), inputs=(X,), binary=True) as endpoint,
        predicting(endpoint.oip_url) as p,
    ):
        assert p.metadata.whole_requests
        assert values(p.submit(request_of(1), strict=True).result(10)) == [2.0]
        with pytest.raises(RefusedRowsError, match="not taken"):
            p.submit(request_of(1, 2, 3), strict=True).result(10)
        assert len(endpoint.requests) == 2
        statistics = p.statistics()
        assert (statistics.rows, statistics.failed_rows) == (1, 0)


def test_endpoint_that_refuses_every_whole_request_ends_the_run():
    protocol, client, _ = oip(status(422))
    for _ in range(99):
        with pytest.raises(RefusedRowsError):
            run(protocol.infer_whole(client, whole_request()))
    with pytest.raises(EndpointRefusedError, match="refused each of the first 100 rows"):
        run(protocol.infer_whole(client, whole_request()))


def test_step_of_a_sequence_is_not_sent_to_an_endpoint():
    protocol, client, pool = oip(status(200, b"{}"))
    with pytest.raises(UnsupportedError, match="take twice"):
        run(protocol.infer_whole(client, whole_request(sequence_id="a")))
    assert pool.requests == []
