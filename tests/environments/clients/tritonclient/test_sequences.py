"""Sequences as tritonclient asks for them: ``sequence_id=``, ``sequence_start=``, ``sequence_end=``, by every one of its doors."""

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
    """A number and a text, which no other test has."""
    return [uuid4().int >> 65 or 1, uuid4().hex]


@pytest.fixture(params=[0, 1], ids=["number", "text"])
def id(request):
    return new_ids()[request.param]


def number(value, module=tritonclient.grpc):
    made = module.InferInput("x", [1, 1], "FP32")
    made.set_data_from_numpy(np.array([[value]], np.float32))
    return made


def parameters_of(door, result):
    told = result.get_response()
    if door.is_http:
        return told["parameters"]
    return {name: getattr(p, p.WhichOneof("parameter_choice")) for name, p in told.parameters.items()}


def test_a_sequence_from_start_to_end(door, id):
    def ask(value, **kwargs):
        result = door.infer("running", [number(value, door.module)], sequence_id=id, **kwargs)
        told = parameters_of(door, result)
        assert told["sequence_id"] == id
        return float(result.as_numpy("sum")[0, 0]), told.get("sequence_end", False)

    assert ask(2, sequence_start=True) == (2, False)
    assert ask(4) == (6, False)
    assert ask(6, sequence_end=True) == (12, True)
    with pytest.raises(InferenceServerException, match=f"sequence '{id}'.* ended"):
        ask(1)
    assert ask(5, sequence_start=True, sequence_end=True) == (5, True)


def test_a_start_ends_the_old_one_of_the_same_id(door, id):
    def ask(value, **kwargs):
        result = door.infer("running", [number(value, door.module)], sequence_id=id, **kwargs)
        return float(result.as_numpy("sum")[0, 0])

    assert [ask(2, sequence_start=True), ask(2), ask(7, sequence_start=True), ask(1)] == [2, 4, 7, 8]


def test_the_status_says_that_a_sequence_is_not_there(door, id):
    with pytest.raises(InferenceServerException) as error:
        door.infer("running", [number(1, door.module)], sequence_id=id)
    assert error.value.status() == ("410" if door.is_http else "StatusCode.NOT_FOUND")
    assert f"sequence '{id}': there is no such sequence" in error.value.message()


def test_sequences_are_interleaved_on_one_stream(doors):
    ids = [*new_ids(), *new_ids()]
    came: queue.Queue = queue.Queue()
    client = tritonclient.grpc.InferenceServerClient(doors["grpc"])
    client.start_stream(lambda result, error: came.put((result, error)), headers=TRITON)
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
        result, error = came.get(timeout=WAIT_S)
        assert error is None, error
        id, _, i = result.get_response().id.partition("/")
        sums.setdefault(id, []).append((int(i), float(result.as_numpy("sum")[0, 0])))
    client.close()
    assert sums.keys() == {str(id) for id in ids}
    assert all(of_one == [(i, i + 1.0) for i in range(50)] for of_one in sums.values())


def test_an_error_of_one_sequence_leaves_the_stream_and_the_others(doors):
    good, bad = new_ids()
    came: queue.Queue = queue.Queue()
    client = tritonclient.grpc.InferenceServerClient(doors["grpc"])
    client.start_stream(lambda result, error: came.put((result, error)), headers=TRITON)

    def ask(id, **kwargs):
        client.async_stream_infer("running", [number(3)], sequence_id=id, **kwargs)
        return came.get(timeout=WAIT_S)

    assert ask(good, sequence_start=True)[1] is None
    assert f"sequence '{bad}'" in ask(bad)[1].message()
    result, error = ask(good)
    assert error is None
    assert result.as_numpy("sum").tolist() == [[6]]
    client.close()


def test_a_client_that_left_its_stream_comes_back(doors):
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
                await asyncio.sleep(WAIT_S)

            async with tritonclient.grpc.aio.InferenceServerClient(doors["grpc"]) as client:
                answers = client.stream_infer(requests(), headers=TRITON)
                result, error = await anext(aiter(answers))
                assert error is None, error
                sums.append(float(result.as_numpy("sum")[0, 0]))
                answers.cancel()
        return sums

    assert asyncio.run(asyncio.wait_for(two_streams(), WAIT_S)) == [4, 8]
