"""KServe's InferenceRESTClient with its protocol ``v2``."""

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


def with_client(addresses, call):
    async def main():
        client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0, timeout=30))
        try:
            return await call(client, f"http://{addresses['rest']}")
        finally:
            await client.close()

    return asyncio.run(main())


def make_input(name, values, datatype, *, binary):
    tensor = InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    return tensor


def sum_request(*, binary=True, **more):
    inputs = [make_input(name, A, "INT32", binary=binary) for name in ("a", "b")]
    return InferRequest("sum", inputs, **more)


def infer(addresses, model, request, **kwargs):
    return with_client(addresses, lambda c, url: c.infer(url, request, model_name=model, **kwargs))


def test_health(addresses):
    assert with_client(addresses, lambda c, url: c.is_server_live(url)) is True
    assert with_client(addresses, lambda c, url: c.is_server_ready(url)) is True
    assert with_client(addresses, lambda c, url: c.is_model_ready(url, "sum")) is True


def test_unknown_model_is_not_ready(addresses):
    """The client takes any refusal for False."""
    assert with_client(addresses, lambda c, url: c.is_model_ready(url, "nothing")) is False


@pytest.mark.parametrize("binary", [True, False])
def test_infer(addresses, binary):
    response = infer(addresses, "sum", sum_request(binary=binary, request_id="mine"))
    assert (response.id, response.model_name) == ("mine", "sum")
    np.testing.assert_array_equal(response.get_output_by_name("sum").as_numpy(), A + A)
    np.testing.assert_array_equal(response.get_output_by_name("difference").as_numpy(), A - A)


@pytest.mark.parametrize("binary", [True, False])
def test_requested_outputs_in_binary_and_json(addresses, binary):
    wanted = [RequestedOutput("difference", {"binary_data": binary})]
    headers = {}
    response = infer(addresses, "sum", sum_request(request_outputs=wanted), response_headers=headers)
    assert ("inference-header-content-length" in headers) == binary
    assert [o.name for o in response.outputs] == ["difference"]
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), A - A)


def test_all_outputs_binary(addresses):
    headers = {}
    request = sum_request(parameters={"binary_data_output": True})
    response = infer(addresses, "sum", request, response_headers=headers)
    assert "inference-header-content-length" in headers
    np.testing.assert_array_equal(response.get_output_by_name("sum").as_numpy(), A + A)


@pytest.mark.parametrize("datatype", VALUES)
def test_every_datatype_round_trips(addresses, datatype):
    x = make_input("x", VALUES[datatype], datatype, binary=True)
    request = InferRequest("echo", [x], parameters={"binary_data_output": True})
    response = infer(addresses, f"echo_{datatype}", request)
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), VALUES[datatype])


@pytest.mark.parametrize("binary", [True, False])
def test_text(addresses, binary):
    x = make_input("text", np.array(["straße", "b"], object), "BYTES", binary=binary)
    request = InferRequest("upper", [x], parameters={"binary_data_output": binary})
    response = infer(addresses, "upper", request)
    found = [t.decode() if isinstance(t, bytes) else t for t in response.outputs[0].as_numpy()]
    assert found == ["STRASSE", "B"]


def test_request_as_plain_document(addresses):
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [[1.5, 2]]}]}
    response = infer(addresses, "echo_FP32", document)
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), [[1.5, 2]])


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [("nothing", 404, "nothing"), ("fails", 400, "input 'x' is missing")],
)
def test_errors(addresses, model, status, message):
    with pytest.raises(httpx.HTTPStatusError, match=message) as raised:
        infer(addresses, model, sum_request())
    assert raised.value.response.status_code == status
