"""The contract of `ModelServerClient`, over REST and gRPC, against a real server."""

import asyncio
import socket

import grpc
import numpy as np
import pytest

from cases import for_each
from client.server_support import (
    ADMIN_KEY,
    INFER_KEY,
    KEYS,
    WordLog,
    call_server,
    request_of,
    served_models,
    url_of,
    words_of,
)
from headrace.client.model_server import ModelAddress
from headrace.client.model_server_grpc import GrpcServerClient
from headrace.core.errors import EndpointRefusedError, EndpointUnavailableError, UnsupportedError
from headrace.core.statistics import InstanceStatus, ModelState
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


def test_metadata_describes_inputs_and_outputs(url):
    metadata = call_server(url, lambda server: server.metadata(SUMS))
    assert (metadata.name, metadata.version) == ("sums", "1")
    assert metadata.inputs == (TensorSpec("x", "FP32", (-1, 3)),)
    assert [s.name for s in metadata.outputs] == ["sum", "share"]


@for_each("binary", [True, False])
def test_infer_returns_the_response(url, binary):
    async def call(server):
        await server.metadata(SUMS)
        return await server.infer(SUMS, request_of(x=ROWS), binary=binary)

    response = call_server(url, call)
    assert (response.model_name, response.model_version, response.id) == ("sums", "1", "q")
    np.testing.assert_allclose(response["sum"], [6, 6])
    np.testing.assert_allclose(response["share"], ROWS / 6)


def test_text_round_trips(url):
    request = request_of(age=np.array([7, 8]), name=np.array([["Zoë"], ["Bo"]], object))
    response = call_server(url, lambda server: server.infer(ModelAddress("pairs"), request, binary=False))
    texts = [v.decode() if isinstance(v, bytes) else v for v in response["text"]]
    assert texts == ["Zoë 7", "Bo 8"]


def test_infinity_is_sent_as_binary(url):
    request = request_of(x=np.zeros((1, 1), np.float32))
    response = call_server(url, lambda server: server.infer(ModelAddress("wide"), request, binary=True))
    assert response["inf"].tolist() == [np.inf]
    assert response["cube"].shape == (1, 2, 2)


def test_stream_yields_items_and_accepts_parameters(url):
    assert call_server(url, lambda s: words_of(s, "to be or not", [])) == ["to ", "be ", "or ", "not "]
    assert call_server(url, lambda s: words_of(s, "to be or not", [], max_words=1)) == ["to "]


def test_failed_stream_yields_earlier_items_first(url):
    words = []
    with pytest.raises(EndpointRefusedError, match="no more words"):
        call_server(url, lambda s: words_of(s, "one fail two", words))
    assert words == ["one ", "fail "]


def test_stream_of_an_unknown_model_is_refused(url):
    async def call(server):
        async for _ in server.stream(ModelAddress("missing"), request_of(x=ROWS)):
            raise AssertionError("an item of the stream of a missing model")

    with pytest.raises(EndpointRefusedError, match="missing"):
        call_server(url, call)


@pytest.mark.slow
def test_closing_a_stream_cancels_it_at_the_server(tmp_path):
    with served_models(tmp_path) as (served, closed):
        for protocol in ("rest", "grpc"):

            async def call(server):
                words = WordLog("wait ")
                task = asyncio.ensure_future(words_of(server, "one wait", words))
                await words.arrived.wait()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                # The connection is still open: the stream ends, not the connection.
                accepted, _ = await asyncio.to_thread(closed.accept)
                accepted.close()
                return list(words)

            assert call_server(url_of(served, protocol), call) == ["one ", "wait "]


@for_each(
    ("model", "request_", "message"),
    [
        (ModelAddress("missing"), request_of(x=ROWS), "no model of this name"),
        (ModelAddress("sums", "9"), request_of(x=ROWS), "no version '9'"),
        (SUMS, request_of(y=ROWS), "y"),
        (SUMS, request_of(x=-ROWS), "a value is negative"),
    ],
)
def test_invalid_request_is_refused_with_the_servers_reason(url, model, request_, message):
    with pytest.raises(EndpointRefusedError, match=message):
        call_server(url, lambda server: server.infer(model, request_, binary=False))


def test_repository_can_be_listed_and_changed(url):
    async def call(server):
        states = [{e.name: e.state for e in await server.index()}]
        await server.unload("free")
        states.append({e.name: e.state for e in await server.index()})
        await server.load("free")
        states.append({e.name: e.state for e in await server.index()})
        return states

    before, unloaded, after = call_server(url, call)
    assert before["free"] == after["free"] == ModelState.READY
    assert unloaded.get("free") != ModelState.READY
    with pytest.raises(EndpointRefusedError, match="missing"):
        call_server(url, lambda server: server.load("missing"))


def test_number_of_instances_can_be_changed(models):
    pairs = ModelAddress("pairs", "1")

    async def call(server):
        changed = await server.set_instances(pairs, 2)
        read = await server.instances(ModelAddress("pairs"))
        ranged = await server.set_instances(pairs, 1, 4)
        with pytest.raises(EndpointRefusedError, match="HTTP 400: instances_max must be at least"):
            await server.set_instances(pairs, 3, 2)
        with pytest.raises(EndpointRefusedError, match="no version '9'"):
            await server.instances(ModelAddress("pairs", "9"))
        return changed, read, ranged

    changed, read, ranged = call_server(url_of(models[0], "rest"), call)
    assert read == changed == InstanceStatus("pairs", "1", 2, 2, changed.draining, 2)
    assert (ranged.instances_min, ranged.instances_max) == (1, 4)


def test_instances_need_rest(models):
    for call in (lambda s: s.instances(SUMS), lambda s: s.set_instances(SUMS, 2)):
        with pytest.raises(UnsupportedError, match="numbers of instances are available only over REST"):
            call_server(url_of(models[0], "grpc"), call)


def test_statistics_count_requests_and_rows(url):
    async def call(server):
        (before,) = await server.statistics("sums")
        await server.infer(SUMS, request_of(x=ROWS), binary=False)
        (after,) = await server.statistics("sums")
        return before, after, await server.statistics()

    before, after, every = call_server(url, call)
    assert after.rows - before.rows == 2
    assert after.success.count - before.success.count == 1
    assert after.success.ns > before.success.ns
    assert {s.name for s in every} >= {"sums", "words"}
    assert {b.rows: b.compute.count for b in after.batches}[2] > 0


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_refused_connection_raises_unavailable(scheme):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(EndpointUnavailableError, match="Is the server up and the URL right"):
        call_server(f"{scheme}://127.0.0.1:{port}", lambda server: server.metadata(SUMS), timeout_s=10)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_silent_server_raises_after_the_timeout(scheme):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(EndpointUnavailableError, match=r"no response within 0\.2 s"):
            call_server(url, lambda server: server.metadata(SUMS), timeout_s=0.2)


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_silent_stream_raises_after_the_timeout(models, protocol):
    words = []
    with pytest.raises(EndpointUnavailableError, match=r"no response within 0\.5 s"):
        call_server(url_of(models[0], protocol), lambda s: words_of(s, "one wait", words), timeout_s=0.5)
    assert words == ["one ", "wait "]


@pytest.mark.slow
def test_api_keys_grant_their_scopes(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    model = tmp_path / "free.py"
    model.write_text(
        "from headrace import Model\n\n\nclass Free(Model):\n    def predict(self, x):\n        return x\n"
    )
    with serving(model, "--api-keys", keys) as served:
        for protocol in ("rest", "grpc"):
            url = url_of(served, protocol)
            with pytest.raises(EndpointRefusedError, match="API key"):
                call_server(url, lambda server: server.metadata(ModelAddress("free")))
            metadata = call_server(
                url, lambda server: server.metadata(ModelAddress("free")), api_key=INFER_KEY
            )
            assert metadata.name == "free"
            with pytest.raises(EndpointRefusedError, match="scope models"):
                call_server(url, lambda server: server.index(), api_key=INFER_KEY)
            environ = {"HEADRACE_API_KEY": ADMIN_KEY}
            (entry,) = call_server(url, lambda server: server.index(), environ=environ)
            assert entry.name == "free"


def test_lost_sequence_state_is_a_refusal():
    def error_type(code, *metadata):
        error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), "why")
        return type(GrpcServerClient("there:1")._translate_error(error))

    aborted = grpc.StatusCode.ABORTED
    assert issubclass(error_type(aborted, ("headrace-error-kind", "sequence_lost")), EndpointRefusedError)
    assert error_type(aborted) is EndpointUnavailableError
    full = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error_type(full, ("headrace-error-kind", "sequence_full")) is EndpointUnavailableError


def test_grpc_api_key_is_sent_as_a_bearer_token():
    assert GrpcServerClient("there:1", api_key="key")._metadata == (("authorization", "Bearer key"),)
    assert GrpcServerClient("there:1")._metadata == ()
