"""open-inference-openapi: the client generated from the Open Inference Protocol's OpenAPI document."""

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
def client(doors):
    made = OpenInferenceClient(base_url=f"http://{doors['rest']}", timeout=30)
    yield made
    made._client_wrapper.httpx_client.close()


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
    told = client.read_model_metadata("sum")
    assert told.versions == ["1", "2"]
    assert [(t.name, t.datatype, t.shape) for t in told.inputs] == [
        ("a", "INT32", [-1, 4]),
        ("b", "INT32", [-1, 4]),
    ]
    assert client.read_model_version_metadata("sum", "2").platform == told.platform


def test_infer(client):
    answer = client.model_infer("sum", request=request_of(id="mine"))
    assert (answer.id, answer.model_name, answer.model_version) == ("mine", "sum", "2")
    assert [o.name for o in answer.outputs] == ["sum", "difference"]
    assert flat(values(answer.outputs[0])) == [2, 4, 6, 8]
    answer = client.model_version_infer(
        "sum", "1", request=request_of(outputs=[{"name": "difference"}], parameters={"priority": 1})
    )
    assert answer.model_version == "1"
    assert [o.name for o in answer.outputs] == ["difference"]


def flat(data):
    return [v for row in data for v in (flat(row) if isinstance(row, list) else [row])]


def test_text(client):
    x = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", "straße"]}
    answer = client.model_infer("upper", request=InferenceRequest(inputs=[x]))
    assert values(answer.outputs[0]) == ["A", "STRASSE"]


def test_errors(client):
    with pytest.raises(NotFoundError) as missing:
        client.check_model_readiness("nothing")
    assert "nothing" in missing.value.body["error"]
    with pytest.raises(BadRequestError) as wrong:
        client.model_infer("fails", request=request_of())
    assert "input 'x' is missing" in wrong.value.body["error"]
    with pytest.raises(ApiError) as unknown:
        client.model_infer("nothing", request=request_of())
    assert (unknown.value.status_code, "nothing" in unknown.value.body["error"]) == (404, True)


def test_of_asyncio(doors):
    async def main():
        client = AsyncOpenInferenceClient(base_url=f"http://{doors['rest']}", timeout=30)
        await client.check_server_readiness()
        answer = await client.model_infer("sum", request=request_of())
        await client._client_wrapper.httpx_client.aclose()
        return flat(values(answer.outputs[0]))

    assert asyncio.run(main()) == [2, 4, 6, 8]
