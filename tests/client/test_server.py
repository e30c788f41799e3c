"""What every `ModelServer` promises, by REST and by gRPC, against a real server."""

import asyncio
import socket

import grpc
import numpy as np
import pytest

from client.server_support import (
    ADMIN_KEY,
    INFER_KEY,
    Seen,
    asked,
    request_of,
    served_models,
    url_of,
    words_of,
)
from headrace.client.oip_grpc import GrpcServer
from headrace.client.server import ModelAddress
from headrace.core.errors import EndpointRefusedError, EndpointUnavailableError
from headrace.core.statistics import ModelState
from headrace.core.tensor import TensorSpec
from servers.served import serving

SUMS = ModelAddress("sums")
ROWS = np.array([[1, 2, 3], [0, 0, 6]], np.float32)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    with served_models(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture(params=["rest", "grpc"])
def url(models, request):
    return url_of(models[0], request.param)


def test_metadata_says_what_the_model_takes(url):
    metadata = asked(url, lambda server: server.metadata(SUMS))
    assert (metadata.name, metadata.version) == ("sums", "1")
    assert metadata.inputs == (TensorSpec("x", "FP32", (-1, 3)),)
    assert [s.name for s in metadata.outputs] == ["sum", "share"]


@pytest.mark.parametrize("binary", [True, False])
def test_a_request_is_answered(url, binary):
    async def ask(server):
        await server.metadata(SUMS)
        return await server.infer(SUMS, request_of(x=ROWS), binary=binary)

    response = asked(url, ask)
    assert (response.model_name, response.model_version, response.id) == ("sums", "1", "q")
    np.testing.assert_allclose(response["sum"], [6, 6])
    np.testing.assert_allclose(response["share"], ROWS / 6)


def test_text_goes_there_and_back(url):
    request = request_of(age=np.array([7, 8]), name=np.array([["Zoë"], ["Bo"]], object))
    response = asked(url, lambda server: server.infer(ModelAddress("pairs"), request, binary=False))
    texts = [v.decode() if isinstance(v, bytes) else v for v in response["text"]]
    assert texts == ["Zoë 7", "Bo 8"]


def test_infinity_travels_as_bytes(url):
    request = request_of(x=np.zeros((1, 1), np.float32))
    response = asked(url, lambda server: server.infer(ModelAddress("wide"), request, binary=True))
    assert response["inf"].tolist() == [np.inf]
    assert response["cube"].shape == (1, 2, 2)


def test_a_stream_comes_item_by_item_and_takes_parameters(url):
    assert asked(url, lambda s: words_of(s, "to be or not", [])) == ["to ", "be ", "or ", "not "]
    assert asked(url, lambda s: words_of(s, "to be or not", [], max_words=1)) == ["to "]


def test_a_stream_that_fails_gives_what_came_before(url):
    seen = []
    with pytest.raises(EndpointRefusedError, match="no more words"):
        asked(url, lambda s: words_of(s, "one fail two", seen))
    assert seen == ["one ", "fail "]


def test_a_stream_of_an_unknown_model_is_refused(url):
    async def ask(server):
        async for _ in server.stream(ModelAddress("nobody"), request_of(x=ROWS)):
            raise AssertionError("an item of nobody's stream")

    with pytest.raises(EndpointRefusedError, match="nobody"):
        asked(url, ask)


def test_leaving_a_stream_closes_it_at_the_server(tmp_path):
    with served_models(tmp_path) as (served, closed):
        for protocol in ("rest", "grpc"):

            async def ask(server):
                seen = Seen("wait ")
                task = asyncio.ensure_future(words_of(server, "one wait", seen))
                await seen.came.wait()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                # While the connection is still open: it is the stream that ends, not the line it came by.
                knock, _ = await asyncio.to_thread(closed.accept)
                knock.close()
                return list(seen)

            assert asked(url_of(served, protocol), ask) == ["one ", "wait "]


@pytest.mark.parametrize(
    ("model", "request_", "said"),
    [
        (ModelAddress("nobody"), request_of(x=ROWS), "no model of this name"),
        (ModelAddress("sums", "9"), request_of(x=ROWS), "no version '9'"),
        (SUMS, request_of(y=ROWS), "y"),
        (SUMS, request_of(x=-ROWS), "a value is negative"),
    ],
)
def test_what_is_wrong_is_refused_with_the_servers_reason(url, model, request_, said):
    with pytest.raises(EndpointRefusedError, match=said):
        asked(url, lambda server: server.infer(model, request_, binary=False))


def test_the_repository_can_be_listed_and_changed(url):
    async def ask(server):
        states = [{e.name: e.state for e in await server.index()}]
        await server.unload("free")
        states.append({e.name: e.state for e in await server.index()})
        await server.load("free")
        states.append({e.name: e.state for e in await server.index()})
        return states

    before, between, after = asked(url, ask)
    assert before["free"] == after["free"] == ModelState.READY
    assert between.get("free") != ModelState.READY
    with pytest.raises(EndpointRefusedError, match="nobody"):
        asked(url, lambda server: server.load("nobody"))


def test_statistics_count(url):
    async def ask(server):
        (before,) = await server.statistics("sums")
        await server.infer(SUMS, request_of(x=ROWS), binary=False)
        (after,) = await server.statistics("sums")
        return before, after, await server.statistics()

    before, after, every = asked(url, ask)
    assert after.rows - before.rows == 2
    assert after.success.count - before.success.count == 1
    assert after.success.ns > before.success.ns
    assert {s.name for s in every} >= {"sums", "words"}
    assert {b.rows: b.compute.count for b in after.batches}[2] > 0


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_nobody_there_is_told_as_such(scheme):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(EndpointUnavailableError, match="Is the server up and the URL right"):
        asked(f"{scheme}://127.0.0.1:{port}", lambda server: server.metadata(SUMS), timeout_s=10)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_silence_is_not_waited_for(scheme):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(EndpointUnavailableError, match=r"no answer within 0\.2 s"):
            asked(url, lambda server: server.metadata(SUMS), timeout_s=0.2)


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_a_silent_stream_is_given_up(models, protocol):
    seen = []
    with pytest.raises(EndpointUnavailableError, match=r"no answer within 0\.5 s"):
        asked(url_of(models[0], protocol), lambda s: words_of(s, "one wait", seen), timeout_s=0.5)
    assert seen == ["one ", "wait "]


def test_keys_open_what_their_roles_allow(tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text(f"infer web {INFER_KEY}\nadmin ops {ADMIN_KEY}\n")
    model = tmp_path / "free.py"
    model.write_text(
        "from headrace import Model\n\n\nclass Free(Model):\n    def predict(self, x):\n        return x\n"
    )
    with serving(model, "--api-keys", keys) as served:
        for protocol in ("rest", "grpc"):
            url = url_of(served, protocol)
            with pytest.raises(EndpointRefusedError, match="API key"):
                asked(url, lambda server: server.metadata(ModelAddress("free")))
            metadata = asked(url, lambda server: server.metadata(ModelAddress("free")), api_key=INFER_KEY)
            assert metadata.name == "free"
            with pytest.raises(EndpointRefusedError, match="admin"):
                asked(url, lambda server: server.index(), api_key=INFER_KEY)
            environ = {"HEADRACE_API_KEY": ADMIN_KEY}
            (entry,) = asked(url, lambda server: server.index(), environ=environ)
            assert entry.name == "free"


def test_a_sequence_that_has_lost_its_state_is_not_asked_again():
    def told(code, *metadata):
        error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), "why")
        return type(GrpcServer("there:1")._refusal(error))

    aborted = grpc.StatusCode.ABORTED
    assert issubclass(told(aborted, ("headrace-error-kind", "sequence_lost")), EndpointRefusedError)
    assert told(aborted) is EndpointUnavailableError
    full = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert told(full, ("headrace-error-kind", "sequence_full")) is EndpointUnavailableError
