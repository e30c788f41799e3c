"""The lifecycle of a server: listeners before models, drain, stop, and forced stop."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest

from cases import for_each
from engine.support import request
from headrace.core.errors import ModelLoadError, ModelNotReadyError, StoppedError
from headrace.core.model import Model
from headrace.engine.repository import ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.server.dataplane import Dataplane
from headrace.server.grpc_aio import GrpcAioServer, GrpcAioSettings
from headrace.server.grpc_asgi import GrpcHttp2Server
from headrace.server.grpc_service import GrpcService
from headrace.server.listen import HttpListener
from headrace.server.listener import DrainSettings, Serving
from headrace.server.rest import model_app
from headrace.testing import EchoModel, HeldModel
from server.grpc_support import bidi, infer_request

WAIT_S = 30.0


class RecordingListener:
    """A listener that records its calls."""

    address = "here"

    def __init__(self, log: list[str], name: str = "door") -> None:
        self.log = log
        self.name = name
        self.busy: asyncio.Event | None = None
        self.closing = asyncio.Event()

    async def start(self) -> None:
        self.log.append(f"{self.name} opens")

    async def stop(self, grace_s: float) -> None:
        self.log.append(f"{self.name} closes in {grace_s:g}")
        self.closing.set()
        if self.busy is not None and grace_s:
            await self.busy.wait()


def serving(model, log, **drain):
    repository = ModelRepository(
        [ModelDefinition("m", "1", model, settings=ServeSettings(isolation="thread", warm_up=False))]
    )
    plane = Dataplane(repository)
    door = RecordingListener(log)
    made = Serving(
        repository,
        plane.drain,
        [door],
        stopped_last=[RecordingListener(log, "metrics")],
        drain=DrainSettings(**drain),
    )
    return made, plane, door


def test_listeners_open_before_models_load():
    log = []

    class Loads(EchoModel):
        def load(self):
            log.append("model loads")

    async def main():
        made, plane, _ = serving(Loads, log, grace_s=5)
        assert not plane.ready()

        def ready():
            log.append(f"ready {plane.ready()}")
            made.stop()

        await made.run(ready, signals=False)
        assert not plane.ready()

    asyncio.run(main())
    assert log == [
        "metrics opens",
        "door opens",
        "model loads",
        "ready True",
        "door closes in 6",
        "metrics closes in 1",
    ]


def test_failed_load_closes_listeners_and_raises():
    log = []

    class Broken(EchoModel):
        def load(self):
            raise OSError("no weights")

    async def main():
        made, _, _ = serving(Broken, log)
        with pytest.raises(ModelLoadError, match="no weights"):
            await made.run(signals=False)

    asyncio.run(main())
    assert log[-1] == "metrics closes in 1"


def test_server_serves_but_is_not_ready_during_the_notice():
    log = []

    async def main():
        made, plane, _ = serving(EchoModel, log, notice_s=WAIT_S, grace_s=5)
        ready = asyncio.Event()
        running = asyncio.ensure_future(made.run(ready.set, signals=False))
        await ready.wait()
        made.stop()
        async with asyncio.timeout(WAIT_S):
            while plane.ready():  # noqa: ASYNC110 - it has no event to wait for
                await asyncio.sleep(0)
        assert not any("closes" in line for line in log)
        made.stop()
        await running

    asyncio.run(main())
    assert any(line.startswith("door closes") for line in log)


def test_second_stop_cancels_running_requests():
    log = []

    async def main():
        made, _, door = serving(EchoModel, log, grace_s=WAIT_S)
        door.busy = asyncio.Event()
        ready = asyncio.Event()
        running = asyncio.ensure_future(made.run(ready.set, signals=False))
        await ready.wait()
        made.stop()
        await door.closing.wait()
        made.stop()
        await asyncio.wait_for(running, WAIT_S)

    asyncio.run(main())
    assert "door closes in 0" in log


def test_stop_during_load_raises_nothing():
    log = []
    loading, go_on = threading.Event(), threading.Event()

    class Lingers(EchoModel):
        def load(self):
            loading.set()
            go_on.wait(WAIT_S)

    async def main():
        made, _, _ = serving(Lingers, log)
        running = asyncio.ensure_future(made.run(lambda: log.append("ready"), signals=False))
        await asyncio.to_thread(loading.wait, WAIT_S)
        made.stop()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait_for(running, WAIT_S)

    asyncio.run(main())
    assert "ready" not in log


class Endless(Model):
    """Yields one item, then nothing until it is cancelled."""

    async def predict_stream(self, requests):
        yield {"n": [1]}
        await asyncio.Event().wait()


class Stubborn(Model):
    """Yields one item, then ignores its cancellation until its gate opens."""

    def __init__(self):
        self.gate = threading.Event()

    def predict_stream(self, requests):
        yield {"n": [1]}
        self.gate.wait(WAIT_S)
        yield {"n": [2]}


async def events_until_the_end(port, on_first):
    """Return the events of a stream, whose body must be complete; call `on_first` after the first."""
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}'
    head = f"POST /v2/models/m/infer_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    received = await reader.readuntil(b"\n\n\r\n")
    on_first()
    received += await reader.read()
    writer.close()
    assert received.endswith(b"\r\n0\r\n\r\n"), received
    return [line[6:] for line in received.splitlines() if line.startswith(b"data: ")]


async def grpc_status_at_the_end(port, on_first):
    """Return the status of a gRPC stream and the text of its error; call `on_first` after an item."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = bidi(channel)()
        await call.write(infer_request(np.ones(1, np.float32)))
        await call.read()
        on_first()
        with pytest.raises(grpc.RpcError) as caught:
            await call.read()
        return caught.value.code(), caught.value.details()


@asynccontextmanager
async def stopped_in_the_end(repository, plane, carrier):
    """Yield how a stream's end is read, the port, and the server's `stop`; wait for the end."""
    if carrier == "rest":
        listener = HttpListener(model_app(plane), "127.0.0.1", 0)
    elif carrier == "aio":
        listener = GrpcAioServer(GrpcService(plane), GrpcAioSettings(port=0))
    else:
        listener = GrpcHttp2Server(GrpcService(plane), "127.0.0.1", 0, message_bytes_max=1 << 20)
    made = Serving(repository, plane.drain, [listener], drain=DrainSettings(grace_s=0.05))
    ready = asyncio.Event()
    running = asyncio.ensure_future(made.run(ready.set, signals=False))
    await ready.wait()
    async with asyncio.timeout(WAIT_S):
        yield (
            (events_until_the_end if carrier == "rest" else grpc_status_at_the_end),
            listener.port,
            made.stop,
        )
        await running


@for_each("carrier", ["rest", "aio", "asgi"])
def test_open_stream_gets_an_error_after_the_grace_period(carrier):

    async def main():
        repository = ModelRepository([ModelDefinition("m", "1", Endless)])
        plane = Dataplane(repository)
        async with stopped_in_the_end(repository, plane, carrier) as (ends, port, stop):
            return await ends(port, stop)

    found = asyncio.run(main())
    why = "model m is not running: while this stream was open"
    if carrier == "rest":
        assert json.loads(found[-1]) == {"error": why, "type": "StoppedError"}
        assert len(found) == 2
    else:
        assert found[0] is grpc.StatusCode.UNAVAILABLE
        # The HTTP/2 server closes the connection right after the last stream, which may cost its text.
        assert carrier == "asgi" or found[1] == why


@for_each("carrier", ["rest", "aio", "asgi"])
def test_stream_of_a_stubborn_model_ends_with_an_error_too(carrier):
    model = Stubborn()

    async def main():
        repository = ModelRepository([ModelDefinition("m", "1", lambda: model)])
        plane = Dataplane(repository)
        async with stopped_in_the_end(repository, plane, carrier) as (ends, port, stop):
            try:
                return await ends(port, stop)
            finally:
                model.gate.set()

    found = asyncio.run(main())
    if carrier == "rest":
        assert json.loads(found[-1]) == {"error": "the server is stopping"}
    else:
        assert found[0] is grpc.StatusCode.UNAVAILABLE


def test_slow_model_is_stopped_after_the_grace_period():
    log = []
    model = HeldModel()

    async def main():
        made, plane, door = serving(lambda: model, log, grace_s=0.05)
        ready = asyncio.Event()
        running = asyncio.ensure_future(made.run(ready.set, signals=False))
        await ready.wait()
        asking = asyncio.ensure_future(plane.infer("m", "", request()))
        waiting = asyncio.ensure_future(plane.infer("m", "", request(np.zeros((1, 2), np.float32))))
        await asyncio.to_thread(model.wait_for_calls, 1)
        made.stop()
        # Waiting requests are cancelled after the grace period; a running call can only be waited
        # for.
        with pytest.raises((StoppedError, ModelNotReadyError)):
            await asyncio.wait_for(waiting, WAIT_S)
        model.release()
        await asyncio.wait_for(running, WAIT_S)
        assert door.closing.is_set()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(main())
