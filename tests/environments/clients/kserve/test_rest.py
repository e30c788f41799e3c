"""KServe's InferenceRESTClient, in its protocol ``v2``."""

import asyncio

import httpx
import numpy as np
import pytest
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

A = np.arange(8, dtype=np.int32).reshape(2, 4)

VALUES = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([[0, 255]], np.uint8),
    "UINT64": np.array([[0, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 127]], np.int8),
    "INT64": np.array([[-(2**63), 2**63 - 1]], np.int64),
    "FP16": np.array([[1.5, -65504]], np.float16),
    "FP32": np.array([[1.5, -3e38]], np.float32),
    "FP64": np.array([[1.1, -1e308]], np.float64),
}


def with_client(doors, ask):
    async def main():
        client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0, timeout=30))
        try:
            return await ask(client, f"http://{doors['rest']}")
        finally:
            await client.close()

    return asyncio.run(main())


def filled(name, values, datatype, *, binary):
    made = InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


def sum_request(*, binary=True, **more):
    inputs = [filled(name, A, "INT32", binary=binary) for name in ("a", "b")]
    return InferRequest("sum", inputs, **more)


def infer(doors, model, request, **kwargs):
    return with_client(doors, lambda c, url: c.infer(url, request, model_name=model, **kwargs))


def test_health(doors):
    assert with_client(doors, lambda c, url: c.is_server_live(url)) is True
    assert with_client(doors, lambda c, url: c.is_server_ready(url)) is True
    assert with_client(doors, lambda c, url: c.is_model_ready(url, "sum")) is True


def test_an_unknown_model_is_not_ready(doors):
    """The client reads any refusal as a no."""
    assert with_client(doors, lambda c, url: c.is_model_ready(url, "nothing")) is False


@pytest.mark.parametrize("binary", [True, False])
def test_infer(doors, binary):
    response = infer(doors, "sum", sum_request(binary=binary, request_id="mine"))
    assert (response.id, response.model_name) == ("mine", "sum")
    np.testing.assert_array_equal(response.get_output_by_name("sum").as_numpy(), A + A)
    np.testing.assert_array_equal(response.get_output_by_name("difference").as_numpy(), A - A)


@pytest.mark.parametrize("binary", [True, False])
def test_requested_outputs_and_their_form(doors, binary):
    wanted = [RequestedOutput("difference", {"binary_data": binary})]
    heard = {}
    response = infer(doors, "sum", sum_request(request_outputs=wanted), response_headers=heard)
    assert ("inference-header-content-length" in heard) == binary
    assert [o.name for o in response.outputs] == ["difference"]
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), A - A)


def test_every_output_binary(doors):
    heard = {}
    request = sum_request(parameters={"binary_data_output": True})
    response = infer(doors, "sum", request, response_headers=heard)
    assert "inference-header-content-length" in heard
    np.testing.assert_array_equal(response.get_output_by_name("sum").as_numpy(), A + A)


@pytest.mark.parametrize("datatype", VALUES)
def test_every_datatype_comes_back(doors, datatype):
    x = filled("x", VALUES[datatype], datatype, binary=True)
    request = InferRequest("echo", [x], parameters={"binary_data_output": True})
    response = infer(doors, f"echo_{datatype}", request)
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), VALUES[datatype])


@pytest.mark.parametrize("binary", [True, False])
def test_text(doors, binary):
    x = filled("text", np.array(["straße", "b"], object), "BYTES", binary=binary)
    request = InferRequest("upper", [x], parameters={"binary_data_output": binary})
    response = infer(doors, "upper", request)
    found = [t.decode() if isinstance(t, bytes) else t for t in response.outputs[0].as_numpy()]
    assert found == ["STRASSE", "B"]


def test_a_request_as_a_plain_document(doors):
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [[1.5, 2]]}]}
    response = infer(doors, "echo_FP32", document)
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), [[1.5, 2]])


@pytest.mark.parametrize(
    ("model", "status", "says"),
    [("nothing", 404, "nothing"), ("fails", 400, "input 'x' is missing")],
)
def test_errors(doors, model, status, says):
    with pytest.raises(httpx.HTTPStatusError, match=says) as told:
        infer(doors, model, sum_request())
    assert told.value.response.status_code == status
