"""Sequences in tritonclient: ``sequence_id=``, ``sequence_start=``, ``sequence_end=``, in all
clients.
"""

import asyncio
import queue
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

WAIT_S = 30
TRITON = {"headrace-stream-dialect": "triton"}


def new_ids():
    """Return a new number and a new text."""
    return [uuid4().int >> 65 or 1, uuid4().hex]


@pytest.fixture(params=[0, 1], ids=["number", "text"])
def id(request):
    return new_ids()[request.param]


def number(value, module=tritonclient.grpc):
    tensor = module.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[value]], np.float32))
    return tensor


def parameters_of(any_client, result):
    parameters = result.get_response()
    if any_client.is_http:
        return parameters["parameters"]
    return {name: getattr(p, p.WhichOneof("parameter_choice")) for name, p in parameters.parameters.items()}


def test_sequence_from_start_to_end(any_client, id):
    def infer(value, **kwargs):
        result = any_client.infer("running", [number(value, any_client.module)], sequence_id=id, **kwargs)
        parameters = parameters_of(any_client, result)
        assert parameters["sequence_id"] == id
        return float(result.as_numpy("sum")[0, 0]), parameters.get("sequence_end", False)

    assert infer(2, sequence_start=True) == (2, False)
    assert infer(4) == (6, False)
    assert infer(6, sequence_end=True) == (12, True)
    with pytest.raises(InferenceServerException, match=f"sequence '{id}'.* ended"):
        infer(1)
    assert infer(5, sequence_start=True, sequence_end=True) == (5, True)


def test_start_replaces_a_sequence_of_the_same_id(any_client, id):
    def infer(value, **kwargs):
        result = any_client.infer("running", [number(value, any_client.module)], sequence_id=id, **kwargs)
        return float(result.as_numpy("sum")[0, 0])

    assert [infer(2, sequence_start=True), infer(2), infer(7, sequence_start=True), infer(1)] == [2, 4, 7, 8]


def test_unknown_sequence_has_its_own_status(any_client, id):
    with pytest.raises(InferenceServerException) as error:
        any_client.infer("running", [number(1, any_client.module)], sequence_id=id)
    assert error.value.status() == ("410" if any_client.is_http else "StatusCode.NOT_FOUND")
    assert f"sequence '{id}': there is no such sequence" in error.value.message()


def test_sequences_interleave_on_one_stream(addresses):
    ids = [*new_ids(), *new_ids()]
    received: queue.Queue = queue.Queue()
    client = tritonclient.grpc.InferenceServerClient(addresses["grpc"])
    client.start_stream(lambda result, error: received.put((result, error)), headers=TRITON)
    for i in range(50):
        for id in ids:
            client.async_stream_infer(
                "running",
                [number(1)],
                request_id=f"{id}/{i}",
                sequence_id=id,
                sequence_start=i == 0,
                sequence_end=i == 49,
            )
    sums: dict[str, list[tuple[int, float]]] = {}
    for _ in range(50 * len(ids)):
        result, error = received.get(timeout=WAIT_S)
        assert error is None, error
        id, _, i = result.get_response().id.partition("/")
        sums.setdefault(id, []).append((int(i), float(result.as_numpy("sum")[0, 0])))
    client.close()
    assert sums.keys() == {str(id) for id in ids}
    assert all(steps == [(i, i + 1.0) for i in range(50)] for steps in sums.values())


def test_error_of_one_sequence_spares_stream_and_others(addresses):
    good, bad = new_ids()
    received: queue.Queue = queue.Queue()
    client = tritonclient.grpc.InferenceServerClient(addresses["grpc"])
    client.start_stream(lambda result, error: received.put((result, error)), headers=TRITON)

    def infer(id, **kwargs):
        client.async_stream_infer("running", [number(3)], sequence_id=id, **kwargs)
        return received.get(timeout=WAIT_S)

    assert infer(good, sequence_start=True)[1] is None
    assert f"sequence '{bad}'" in infer(bad)[1].message()
    result, error = infer(good)
    assert error is None
    assert result.as_numpy("sum").tolist() == [[6]]
    client.close()


def test_sequence_survives_its_stream(addresses):
    (id, _) = new_ids()

    async def two_streams():
        sums = []
        for start in (True, False):

            async def requests(start=start):
                yield {
                    "model_name": "running",
                    "inputs": [number(4, tritonclient.grpc.aio)],
                    "sequence_id": id,
                    "sequence_start": start,
                }
                await asyncio.Event().wait()

            async with tritonclient.grpc.aio.InferenceServerClient(addresses["grpc"]) as client:
                responses = client.stream_infer(requests(), headers=TRITON)
                result, error = await anext(aiter(responses))
                assert error is None, error
                sums.append(float(result.as_numpy("sum")[0, 0]))
                responses.cancel()
        return sums

    assert asyncio.run(asyncio.wait_for(two_streams(), WAIT_S)) == [4, 8]
