"""open-inference-openapi: a client generated from the Open Inference Protocol's OpenAPI document."""

import asyncio

import pytest
from open_inference.openapi.client import (
    AsyncOpenInferenceClient,
    InferenceRequest,
    NotFoundError,
    OpenInferenceClient,
)
from open_inference.openapi.core.api_error import ApiError
from open_inference.openapi.errors.bad_request_error import BadRequestError


@pytest.fixture
def client(addresses):
    client = OpenInferenceClient(base_url=f"http://{addresses['rest']}", timeout=30)
    yield client
    client._client_wrapper.httpx_client.close()


def request_of(**more):
    tensor = {"datatype": "INT32", "shape": [1, 4], "data": [[1, 2, 3, 4]]}
    return InferenceRequest(inputs=[{"name": "a", **tensor}, {"name": "b", **tensor}], **more)


def values(output):
    return output.data.dict()["__root__"]


def test_health_and_metadata(client):
    client.check_server_liveness()
    client.check_server_readiness()
    client.check_model_readiness("sum")
    client.check_model_version_readiness("sum", "1")
    assert client.read_server_metadata().name == "headrace"
    metadata = client.read_model_metadata("sum")
    assert metadata.versions == ["1", "2"]
    assert [(t.name, t.datatype, t.shape) for t in metadata.inputs] == [
        ("a", "INT32", [-1, 4]),
        ("b", "INT32", [-1, 4]),
    ]
    assert client.read_model_version_metadata("sum", "2").platform == metadata.platform


def test_infer(client):
    response = client.model_infer("sum", request=request_of(id="mine"))
    assert (response.id, response.model_name, response.model_version) == ("mine", "sum", "2")
    assert [o.name for o in response.outputs] == ["sum", "difference"]
    assert flat(values(response.outputs[0])) == [2, 4, 6, 8]
    response = client.model_version_infer(
        "sum", "1", request=request_of(outputs=[{"name": "difference"}], parameters={"priority": 1})
    )
    assert response.model_version == "1"
    assert [o.name for o in response.outputs] == ["difference"]


def flat(data):
    return [v for row in data for v in (flat(row) if isinstance(row, list) else [row])]


def test_text(client):
    x = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", "straße"]}
    response = client.model_infer("upper", request=InferenceRequest(inputs=[x]))
    assert values(response.outputs[0]) == ["A", "STRASSE"]


def test_errors(client):
    with pytest.raises(NotFoundError) as missing:
        client.check_model_readiness("nothing")
    assert "nothing" in missing.value.body["error"]
    with pytest.raises(BadRequestError) as bad_request:
        client.model_infer("fails", request=request_of())
    assert "input 'x' is missing" in bad_request.value.body["error"]
    with pytest.raises(ApiError) as unknown:
        client.model_infer("nothing", request=request_of())
    assert (unknown.value.status_code, "nothing" in unknown.value.body["error"]) == (404, True)


def test_asyncio_client(addresses):
    async def main():
        client = AsyncOpenInferenceClient(base_url=f"http://{addresses['rest']}", timeout=30)
        await client.check_server_readiness()
        response = await client.model_infer("sum", request=request_of())
        await client._client_wrapper.httpx_client.aclose()
        return flat(values(response.outputs[0]))

    assert asyncio.run(main()) == [2, 4, 6, 8]
