"""The Open Inference Protocol asked over real sockets: forms, metadata, refused rows, broken contracts."""

import numpy as np
import orjson
import pytest

from client.support import ScriptedConnection, asker_over, predicting, request_of, run, status
from headrace.client.address import resolve_address
from headrace.client.oip_rest import OipRest
from headrace.client.outputs import joined
from headrace.client.refusals import RefusalGuard
from headrace.core import InferRequest, RowError, Tensor, TensorSpec
from headrace.core.errors import (
    EndpointError,
    EndpointRefusedError,
    EndpointUnavailableError,
    ModelContractError,
)
from headrace.testing import EndpointFault, ScriptedEndpoint

X = TensorSpec("x", "FP32", (-1, 2))
METADATA = orjson.dumps({"name": "m", "platform": "p", "versions": ["1"], "inputs": [], "outputs": []})


def double(tensors):
    return {"y": tensors["x"][:, 0] * 2}


def picky(*guilty, names_rows=False):
    def predict(tensors):
        bad = [i for i, v in enumerate(tensors["x"][:, 0].tolist()) if v in guilty]
        if bad and names_rows:
            raise RowError(bad[0], "not taken")
        if bad:
            raise ValueError("not taken")
        return double(tensors)

    return predict


def oip(*script, url="http://h/v2/models/m"):
    """A dialect over scripted answers, and its asker."""
    connection = ScriptedConnection(*script)
    return OipRest(resolve_address(url), RefusalGuard(url)), asker_over(connection), connection


def values(response):
    return response.outputs[0].data.tolist() if response.outputs else []


# Forms


@pytest.mark.parametrize("binary", [True, False])
def test_answers_are_the_same_in_either_form(binary):
    with ScriptedEndpoint(double, inputs=(X,), binary=binary) as endpoint, predicting(endpoint.oip_url) as p:
        response = p.submit(request_of(1, 2, 3)).result(10)
    assert (values(response), response.id, response.model_name) == ([2.0, 4.0, 6.0], "batch-0", "model")
    assert response.outputs[0].data.dtype == np.float32


def test_a_server_without_binary_tensors_is_asked_so_once_and_then_with_json():
    with ScriptedEndpoint(double, inputs=(X,), binary=False) as endpoint:
        with predicting(endpoint.oip_url, in_flight_max=8) as predictor:
            futures = [predictor.submit(request_of(i)) for i in range(20)]
            assert [values(f.result(10)) for f in futures] == [[2.0 * i] for i in range(20)]
        assert sum(r.binary for r in endpoint.requests) == 1
        assert endpoint.requests[0].binary


def test_a_server_with_binary_tensors_never_sees_json():
    with ScriptedEndpoint(double, inputs=(X,)) as endpoint, predicting(endpoint.oip_url) as predictor:
        for i in range(5):
            predictor.submit(request_of(i)).result(10)
        assert all(r.binary for r in endpoint.requests)
        assert len(endpoint.requests) == 5


@pytest.mark.parametrize("code", [400, 406, 415, 422, 500, 501])
def test_binary_may_be_refused_by_many_a_status(code):
    answer = b'{"outputs":[{"name":"y","shape":[1],"datatype":"FP32","data":[2]}]}'
    dialect, asker, connection = oip(status(code), status(200, answer))
    assert values(run(dialect.answer(asker, request_of(1), 1))) == [2.0]
    assert [c.headers["Content-Type"] for c in connection.calls] == [
        "application/octet-stream",
        "application/json",
    ]


def test_after_a_first_poisoned_batch_binary_is_still_found_out():
    """Both forms are refused because of a row, so the form stays open until a half of the batch is answered."""
    with ScriptedEndpoint(picky(1.0), inputs=(X,)) as endpoint, predicting(endpoint.oip_url) as predictor:
        response = predictor.submit(request_of(1, 2, 3, 4)).result(10)
        assert [f.row for f in response.failures] == [0]
        predictor.submit(request_of(5)).result(10)
        assert endpoint.requests[-1].binary


def test_text_travels_in_either_form():
    texts = np.array(["naïve", ""], object)
    for binary in (True, False):
        with ScriptedEndpoint(lambda t: t["s"], binary=binary) as endpoint, predicting(endpoint.oip_url) as p:
            (output,) = p.submit(InferRequest((Tensor("s", texts),))).result(10).outputs
            assert [v.decode() if isinstance(v, bytes) else v for v in output.data] == ["naïve", ""]


def test_bf16_is_told_and_given_as_float32():
    metadata = orjson.dumps(
        {"name": "m", "inputs": [{"name": "x", "datatype": "BF16", "shape": [-1, 2]}], "outputs": []}
    )
    dialect, asker, connection = oip(status(200, metadata), status(404), status(500))
    told = run(dialect.describe(asker))
    assert told.inputs == (TensorSpec("x", "FP32", (-1, 2)),)
    dialect._form.binary = True
    run(dialect.answer(asker_over(connection), request_of(1), 1))
    sent = connection.calls[-1]
    assert b'"datatype":"BF16"' in sent.body
    assert sent.body.endswith(b"\x80\x3f\x00\x00")


# Metadata


def test_metadata_is_the_endpoints():
    with (
        ScriptedEndpoint(double, inputs=(X,), outputs=(TensorSpec("y", "FP32", (-1,)),)) as endpoint,
        predicting(endpoint.oip_url + "/versions/1") as predictor,
    ):
        told = predictor.metadata
    assert (told.name, told.version, told.inputs) == ("model", "1", (X,))
    assert told.outputs == (TensorSpec("y", "FP32", (-1,)),)
    assert told.max_batch_rows == 1024


@pytest.mark.parametrize(
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
def test_the_batch_is_no_larger_than_the_endpoint_takes(shape, config, rows):
    metadata = orjson.dumps({"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": shape}]})
    dialect, asker, _ = oip(status(200, metadata), config)
    assert run(dialect.describe(asker)).max_batch_rows == rows


@pytest.mark.parametrize("code", [405, 501])
def test_an_endpoint_may_know_nothing_of_metadata(code):
    dialect, asker, _ = oip(status(code), url="http://h/v2/models/m/versions/2")
    told = run(dialect.describe(asker))
    assert (told.name, told.version, told.inputs) == ("m", "2", ())


@pytest.mark.parametrize("code", [400, 401, 403, 404])
def test_an_endpoint_that_does_not_know_the_model_is_refused(code):
    dialect, asker, _ = oip(status(code, b'{"error":"who?"}'))
    with pytest.raises(EndpointRefusedError, match=f"HTTP {code}: who?"):
        run(dialect.describe(asker))


def test_a_page_that_is_no_metadata_is_an_error():
    dialect, asker, _ = oip(status(200, b"<html>login</html>"))
    with pytest.raises(EndpointError, match="not with a model's metadata"):
        run(dialect.describe(asker))


# Refused rows


@pytest.mark.parametrize("names_rows", [True, False])
def test_only_guilty_rows_fail_and_the_others_stay_in_order(names_rows):
    with (
        ScriptedEndpoint(picky(3.0, 11.0, names_rows=names_rows), inputs=(X,)) as endpoint,
        predicting(endpoint.oip_url) as predictor,
    ):
        response = predictor.submit(request_of(*range(16))).result(10)
        statistics = predictor.statistics()
    assert [f.row for f in response.failures] == [3, 11]
    assert all("not taken" in f.why and f.attempts == 5 for f in response.failures)
    assert values(response) == [2.0 * i for i in range(16) if i not in (3, 11)]
    assert (statistics.rows, statistics.failed_rows) == (14, 2)


def test_a_request_whose_rows_are_all_refused_has_no_outputs():
    with (
        ScriptedEndpoint(picky(1.0, 2.0), inputs=(X,)) as endpoint,
        predicting(endpoint.oip_url) as predictor,
    ):
        response = predictor.submit(request_of(1, 2)).result(10)
    assert (response.outputs, [f.row for f in response.failures]) == ((), [0, 1])


def test_a_request_that_is_always_refused_ends_the_run_after_a_bounded_number_of_calls():
    dialect, asker, connection = oip(status(400, b'{"error":"unexpected input"}'))
    with pytest.raises(EndpointRefusedError, match=r"each of the first 100 rows.*unexpected input"):
        run(dialect.answer(asker, request_of(*range(1024)), 1024))
    assert len(connection.calls) < 500


def test_rows_that_cannot_travel_fail_alone():
    with (
        ScriptedEndpoint(double, inputs=(X,), binary=False) as endpoint,
        predicting(endpoint.oip_url) as predictor,
    ):
        predictor.submit(request_of(0)).result(10)
        response = predictor.submit(request_of(1, np.inf, 3)).result(10)
    assert values(response) == [2.0, 6.0]
    assert [(f.row, "infinite" in f.why) for f in response.failures] == [(1, True)]


@pytest.mark.parametrize("code", [401, 403, 404, 405])
def test_a_refusal_of_everything_is_not_bisected(code):
    dialect, asker, connection = oip(status(code))
    with pytest.raises(EndpointRefusedError, match=f"HTTP {code}"):
        run(dialect.answer(asker, request_of(1, 2, 3), 3))
    assert len(connection.calls) == 1


def test_an_endpoint_that_does_not_answer_fails_the_request():
    dialect, asker, _ = oip(status(503))
    with pytest.raises(EndpointUnavailableError):
        run(dialect.answer(asker, request_of(1, 2), 2))


# Requests that are larger than the endpoint takes


def test_a_request_beyond_the_batch_is_cut_and_its_failures_keep_their_rows():
    with (
        ScriptedEndpoint(picky(5.0), inputs=(TensorSpec("x", "FP32", (4, 2)),)) as endpoint,
        predicting(endpoint.oip_url) as predictor,
    ):
        response = predictor.submit(request_of(*range(10))).result(10)
    assert [f.row for f in response.failures] == [5]
    assert values(response) == [2.0 * i for i in range(10) if i != 5]


def test_no_rows_are_no_call():
    dialect, asker, connection = oip(status(500))
    response = run(dialect.answer(asker, request_of(), 0))
    assert (response.outputs, connection.calls) == ((), [])


# Contracts


@pytest.mark.parametrize(
    ("predict", "why"),
    [
        (lambda t: {"y": t["x"][1:, 0]}, "request batch-7: output 'y' has 2 rows for 3 rows"),
        (lambda t: {"y": np.zeros(4)}, "request batch-7: output 'y' has 4 rows for 3 rows"),
        (lambda _: {}, "request batch-7: the endpoint answered 3 rows without any output"),
    ],
)
def test_an_answer_without_a_row_for_each_row_names_the_batch(predict, why):
    with ScriptedEndpoint(predict, inputs=(X,)) as endpoint, predicting(endpoint.oip_url) as predictor:
        with pytest.raises(ModelContractError, match=why):
            predictor.submit(request_of(1, 2, 3, id="batch-7")).result(10)
        assert len(endpoint.requests) == 1


def test_outputs_are_asked_for_and_missed_by_name():
    def two(tensors):
        return {"a": tensors["x"][:, 0], "b": tensors["x"][:, 1]}

    request = request_of(1, 2)
    with ScriptedEndpoint(two, inputs=(X,)) as endpoint, predicting(endpoint.oip_url) as predictor:
        asked = InferRequest(request.inputs, outputs=("b",))
        assert [t.name for t in predictor.submit(asked).result(10).outputs] == ["b"]
        with pytest.raises(ModelContractError, match="without output 'c'"):
            predictor.submit(InferRequest(request.inputs, outputs=("b", "c"))).result(10)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"outputs":[{"name":"y"}]}', b""])
def test_an_answer_that_is_none_is_not_the_rows_fault(body):
    fault = EndpointFault(status=200, body=body)
    with ScriptedEndpoint(double, inputs=(X,)) as endpoint, predicting(endpoint.oip_url) as predictor:
        endpoint.faults.append(fault)
        with pytest.raises(EndpointError, match="not one of the Open Inference Protocol"):
            predictor.submit(request_of(1, 2)).result(10)
        assert len(endpoint.requests) == 1


def test_parts_that_differ_are_not_joined():
    part, other = (Tensor("y", np.zeros(1)),), (Tensor("y", np.zeros((1, 2))),)
    assert joined("m", "r", []) == ()
    assert joined("m", "r", [part, part])[0].rows == 2
    with pytest.raises(ModelContractError, match="request r: its outputs differ"):
        joined("m", "r", [part, other])
