"""Streams of tritonclient over gRPC, in every way that it can ask for Triton's form of the answers.

Its answers are another message than MLServer's under the same method, so one of these must say which is meant: the listener's
setting (``--stream-dialect triton``), call metadata (``headers=``), or ``enable_empty_final_response`` in the first request.
"""

import asyncio
import queue

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

WAIT_S = 30

WAYS = {
    "listener": ("grpc_triton", None, {}),
    "our key": ("grpc", {"headrace-stream-dialect": "triton"}, {}),
    "triton's key": ("grpc", {"triton_grpc_error": "false"}, {}),
    "final response": ("grpc", None, {"enable_empty_final_response": True}),
}


@pytest.fixture(params=WAYS)
def way(request, doors):
    door, headers, kwargs = WAYS[request.param]
    return doors[door], headers, kwargs


def text_input(text, module=tritonclient.grpc):
    made = module.InferInput("text", [1], "BYTES")
    made.set_data_from_numpy(np.array([text], object))
    return made


class Stream:
    """A stream whose answers are put into a queue."""

    def __init__(self, address, headers=None):
        self.client = tritonclient.grpc.InferenceServerClient(address)
        self.came = queue.Queue()
        self.client.start_stream(lambda result, error: self.came.put((result, error)), headers=headers)

    def ask(self, text, model="words", **kwargs):
        self.client.async_stream_infer(model, [text_input(text)], **kwargs)

    def take(self, output="word"):
        """The next word, None for an empty final response, or the error."""
        result, error = self.came.get(timeout=WAIT_S)
        if error is not None:
            return error
        array = result.as_numpy(output)
        return None if array is None else array[0].decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()


def test_words_come_one_by_one(way):
    address, headers, kwargs = way
    with Stream(address, headers) as stream:
        stream.ask("to be or not", request_id="1", **kwargs)
        assert [stream.take() for _ in range(4)] == ["to", "be", "or", "not"]
        if kwargs:
            assert stream.take() is None
        stream.client.stop_stream()
        assert stream.came.empty()


def test_an_empty_final_response_says_that_it_is_the_last(way):
    address, headers, _ = way
    with Stream(address, headers) as stream:
        stream.ask("a b", request_id="mine", enable_empty_final_response=True)
        finals = []
        for _ in range(3):
            response = stream.came.get(timeout=WAIT_S)[0].get_response()
            assert response.id == "mine"
            finals.append(response.parameters["triton_final_response"].bool_param)
        assert finals == [False, False, True]
        assert len(response.outputs) == 0


def test_a_stream_serves_many_requests_and_models(way):
    address, headers, kwargs = way
    with Stream(address, headers) as stream:
        for number in range(20):
            stream.ask(f"word-{number}", request_id=str(number), **kwargs)
        upper = tritonclient.grpc.InferInput("text", [1], "BYTES")
        upper.set_data_from_numpy(np.array(["loud"], object))
        stream.client.async_stream_infer("upper", [upper], request_id="upper", **kwargs)
        stream.client.stop_stream()
        by_id = {}
        while not stream.came.empty():
            result, error = stream.came.get()
            assert error is None
            response = result.get_response()
            by_id.setdefault(response.id, []).extend(
                result.as_numpy(output.name)[0].decode() for output in response.outputs
            )
        assert by_id == {"upper": ["LOUD"], **{str(n): [f"word-{n}"] for n in range(20)}}


def test_an_error_is_of_its_request_and_the_stream_goes_on(way):
    address, headers, kwargs = way
    with Stream(address, headers) as stream:
        stream.ask("good ! never", **kwargs)
        assert stream.take() == "good"
        error = stream.take()
        assert isinstance(error, InferenceServerException)
        assert "no word: !" in error.message()
        stream.ask("x", model="nothing", **kwargs)
        assert "model nothing" in stream.take().message()
        stream.ask("again", **kwargs)
        assert stream.take() == "again"


def test_errors_end_the_stream_for_who_asks_for_that(doors):
    with Stream(doors["grpc"], {"triton_grpc_error": "true"}) as stream:
        stream.ask("good !")
        assert stream.take() == "good"
        error = stream.take()
        assert "no word: !" in error.message()
        assert error.status() == "StatusCode.INTERNAL"


def test_cancelling_reaches_the_model(way):
    address, headers, kwargs = way
    with Stream(address, headers) as stream:
        before = gone(address)
        stream.ask("hold", model="held", **kwargs)
        assert stream.take("said") == "held"
        stream.client.stop_stream(cancel_requests=True)
        error = stream.take()
        assert error.status() == "StatusCode.CANCELLED"
        wait_until_gone(address, before)


def gone(address):
    """How many callers of the held model have gone, as the model has it."""
    return asked_of_held(address, "gone")


def asked_of_held(address, what):
    with tritonclient.grpc.InferenceServerClient(address) as client:
        return int(client.infer("held", [text_input(what)]).as_numpy("said")[0])


def wait_until_gone(address, before):
    """The model learns of it a moment later: it is asked until it has; pytest's timeout bounds that."""
    while gone(address) == before:
        pass


def test_cancelling_a_single_call_reaches_the_model(doors):
    address = doors["grpc"]
    before, begun = gone(address), asked_of_held(address, "begun")
    came = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(address) as client:
        call = client.async_infer(
            "held", [text_input("hold")], callback=lambda result, error: came.put(error)
        )
        while asked_of_held(address, "begun") == begun:
            pass
        call.cancel()
        assert came.get(timeout=WAIT_S).status() == "StatusCode.CANCELLED"
    wait_until_gone(address, before)


def test_a_client_timeout_reaches_the_model(doors):
    address = doors["grpc"]
    before = gone(address)
    with (
        tritonclient.grpc.InferenceServerClient(address) as client,
        pytest.raises(InferenceServerException) as told,
    ):
        client.infer("held", [text_input("hold")], client_timeout=0.3)
    assert told.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    wait_until_gone(address, before)


# asyncio, whose client leaves `enable_empty_final_response` out


@pytest.fixture(params=[name for name in WAYS if not WAYS[name][2]])
def aio_way(request, doors):
    door, headers, _ = WAYS[request.param]
    return doors[door], headers


async def requests_of(texts):
    for text in texts:
        yield {
            "model_name": "words",
            "inputs": [text_input(text, tritonclient.grpc.aio)],
            "request_id": text,
        }


def test_streams_of_asyncio(aio_way):
    address, headers = aio_way

    async def main():
        async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
            answers = client.stream_infer(requests_of(["a b", "c"]), headers=headers)
            found = {}
            async for result, error in answers:
                assert error is None
                found.setdefault(result.get_response().id, []).append(result.as_numpy("word")[0])
            return found

    assert asyncio.run(main()) == {"a b": [b"a", b"b"], "c": [b"c"]}


def test_a_stream_of_asyncio_is_cancelled(aio_way):
    address, headers = aio_way
    before = gone(address)

    async def main():
        async def hold():
            yield {
                "model_name": "held",
                "inputs": [text_input("hold", tritonclient.grpc.aio)],
            }
            await asyncio.Event().wait()

        async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
            answers = client.stream_infer(hold(), headers=headers)
            result, _ = await anext(answers)
            assert result.as_numpy("said")[0] == b"held"
            assert answers.cancel()
            with pytest.raises(asyncio.CancelledError):
                await anext(answers)

    asyncio.run(main())
    wait_until_gone(address, before)


def test_without_any_of_these_the_client_cannot_read_the_answers(doors):
    """What the page warns of: MLServer's messages, read as Triton's. This client of asyncio gets None for them."""

    async def main():
        async with tritonclient.grpc.aio.InferenceServerClient(doors["grpc"]) as client:
            with pytest.raises(AttributeError):
                await anext(client.stream_infer(requests_of(["a b"])))

    asyncio.run(main())
