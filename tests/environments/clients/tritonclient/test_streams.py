"""Streams of tritonclient over gRPC, with every way to select Triton's form of responses.

Triton's responses are another message than MLServer's under the same method. The form is selected
by the listener's setting (``--stream-dialect triton``), by call metadata (``headers=``), or by
``enable_empty_final_response`` in the first request.
"""

import asyncio
import queue

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

WAIT_S = 30

DIALECT_SELECTORS = {
    "listener": ("grpc_triton", None, {}),
    "headrace key": ("grpc", {"headrace-stream-dialect": "triton"}, {}),
    "triton's key": ("grpc", {"triton_grpc_error": "false"}, {}),
    "final response": ("grpc", None, {"enable_empty_final_response": True}),
}


@pytest.fixture(params=DIALECT_SELECTORS)
def selector(request, addresses):
    listener, headers, kwargs = DIALECT_SELECTORS[request.param]
    return addresses[listener], headers, kwargs


def text_input(text, module=tritonclient.grpc):
    tensor = module.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text], object))
    return tensor


class Stream:
    """A stream that puts its responses into a queue."""

    def __init__(self, address, headers=None):
        self.client = tritonclient.grpc.InferenceServerClient(address)
        self.received = queue.Queue()
        self.client.start_stream(lambda result, error: self.received.put((result, error)), headers=headers)

    def send(self, text, model="words", **kwargs):
        self.client.async_stream_infer(model, [text_input(text)], **kwargs)

    def receive(self, output="word"):
        """Return the next word, None for an empty final response, or the error."""
        result, error = self.received.get(timeout=WAIT_S)
        if error is not None:
            return error
        array = result.as_numpy(output)
        return None if array is None else array[0].decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()


def test_words_arrive_one_by_one(selector):
    address, headers, kwargs = selector
    with Stream(address, headers) as stream:
        stream.send("to be or not", request_id="1", **kwargs)
        assert [stream.receive() for _ in range(4)] == ["to", "be", "or", "not"]
        if kwargs:
            assert stream.receive() is None
        stream.client.stop_stream()
        assert stream.received.empty()


def test_empty_final_response_marks_the_end(selector):
    address, headers, _ = selector
    with Stream(address, headers) as stream:
        stream.send("a b", request_id="mine", enable_empty_final_response=True)
        finals = []
        for _ in range(3):
            response = stream.received.get(timeout=WAIT_S)[0].get_response()
            assert response.id == "mine"
            finals.append(response.parameters["triton_final_response"].bool_param)
        assert finals == [False, False, True]
        assert len(response.outputs) == 0


def test_stream_serves_many_requests_and_models(selector):
    address, headers, kwargs = selector
    with Stream(address, headers) as stream:
        for number in range(20):
            stream.send(f"word-{number}", request_id=str(number), **kwargs)
        upper = tritonclient.grpc.InferInput("text", [1], "BYTES")
        upper.set_data_from_numpy(np.array(["loud"], object))
        stream.client.async_stream_infer("upper", [upper], request_id="upper", **kwargs)
        stream.client.stop_stream()
        by_id = {}
        while not stream.received.empty():
            result, error = stream.received.get()
            assert error is None
            response = result.get_response()
            by_id.setdefault(response.id, []).extend(
                result.as_numpy(output.name)[0].decode() for output in response.outputs
            )
        assert by_id == {"upper": ["LOUD"], **{str(n): [f"word-{n}"] for n in range(20)}}


def test_error_spares_the_stream(selector):
    address, headers, kwargs = selector
    with Stream(address, headers) as stream:
        stream.send("good ! never", **kwargs)
        assert stream.receive() == "good"
        error = stream.receive()
        assert isinstance(error, InferenceServerException)
        assert "no word: !" in error.message()
        stream.send("x", model="nothing", **kwargs)
        assert "model nothing" in stream.receive().message()
        stream.send("again", **kwargs)
        assert stream.receive() == "again"


def test_error_ends_the_stream_on_request(addresses):
    with Stream(addresses["grpc"], {"triton_grpc_error": "true"}) as stream:
        stream.send("good !")
        assert stream.receive() == "good"
        error = stream.receive()
        assert "no word: !" in error.message()
        assert error.status() == "StatusCode.INTERNAL"


def test_cancelled_stream_reaches_the_model(selector):
    address, headers, kwargs = selector
    with Stream(address, headers) as stream:
        before = count_closed(address)
        stream.send("hold", model="held", **kwargs)
        assert stream.receive("status") == "held"
        stream.client.stop_stream(cancel_requests=True)
        error = stream.receive()
        assert error.status() == "StatusCode.CANCELLED"
        wait_until_closed(address, before)


def count_closed(address):
    """Return the number of clients of the held model that disconnected, as the model counts them."""
    return count_of(address, "closed")


def count_of(address, event):
    with tritonclient.grpc.InferenceServerClient(address) as client:
        return int(client.infer("held", [text_input(event)]).as_numpy("status")[0])


def wait_until_closed(address, before):
    """Poll the model until it has noticed a disconnect. pytest's timeout bounds the loop."""
    while count_closed(address) == before:
        pass


def test_cancelled_call_reaches_the_model(addresses):
    address = addresses["grpc"]
    before, started = count_closed(address), count_of(address, "started")
    received = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(address) as client:
        call = client.async_infer(
            "held", [text_input("hold")], callback=lambda result, error: received.put(error)
        )
        while count_of(address, "started") == started:
            pass
        call.cancel()
        assert received.get(timeout=WAIT_S).status() == "StatusCode.CANCELLED"
    wait_until_closed(address, before)


def test_client_timeout_reaches_the_model(addresses):
    address = addresses["grpc"]
    before = count_closed(address)
    with (
        tritonclient.grpc.InferenceServerClient(address) as client,
        pytest.raises(InferenceServerException) as raised,
    ):
        client.infer("held", [text_input("hold")], client_timeout=0.3)
    assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    wait_until_closed(address, before)


# The asyncio client does not send `enable_empty_final_response`.


@pytest.fixture(params=[name for name in DIALECT_SELECTORS if not DIALECT_SELECTORS[name][2]])
def aio_selector(request, addresses):
    listener, headers, _ = DIALECT_SELECTORS[request.param]
    return addresses[listener], headers


async def requests_of(texts):
    for text in texts:
        yield {
            "model_name": "words",
            "inputs": [text_input(text, tritonclient.grpc.aio)],
            "request_id": text,
        }


def test_asyncio_streams(aio_selector):
    address, headers = aio_selector

    async def main():
        async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
            responses = client.stream_infer(requests_of(["a b", "c"]), headers=headers)
            found = {}
            async for result, error in responses:
                assert error is None
                found.setdefault(result.get_response().id, []).append(result.as_numpy("word")[0])
            return found

    assert asyncio.run(main()) == {"a b": [b"a", b"b"], "c": [b"c"]}


def test_asyncio_stream_is_cancelled(aio_selector):
    address, headers = aio_selector
    before = count_closed(address)

    async def main():
        async def hold():
            yield {
                "model_name": "held",
                "inputs": [text_input("hold", tritonclient.grpc.aio)],
            }
            await asyncio.Event().wait()

        async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
            responses = client.stream_infer(hold(), headers=headers)
            result, _ = await anext(responses)
            assert result.as_numpy("status")[0] == b"held"
            assert responses.cancel()
            with pytest.raises(asyncio.CancelledError):
                await anext(responses)

    asyncio.run(main())
    wait_until_closed(address, before)


def test_default_dialect_is_unreadable_for_tritonclient(addresses):
    """The asyncio client gets None for MLServer's messages, as docs/clients.md warns."""

    async def main():
        async with tritonclient.grpc.aio.InferenceServerClient(addresses["grpc"]) as client:
            with pytest.raises(AttributeError):
                await anext(client.stream_infer(requests_of(["a b"])))

    asyncio.run(main())
