"""Real servers for tests: real engines behind a REST listener, in a thread of their own."""

import asyncio
import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from headrace.core import Model, RowError, TensorSpec
from headrace.engine.repository import FindDefinitions, ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.jobs.access import Access, ApiKey, Scope, hash_key
from headrace.server.application import Guard, WebApp
from headrace.server.dataplane import Dataplane
from headrace.server.listen import HttpListener, new_event_loop
from headrace.server.rest import model_app, model_routes
from headrace.server.rest_inference import RestLimits

WAIT_S = 30.0
HEADER_LENGTH = "Inference-Header-Content-Length"


class Linear(Model):
    """``x[n, 4] -> y[n, 1]``: the sum of a row."""

    inputs = (TensorSpec("x", "FP32", (-1, 4)),)
    outputs = (TensorSpec("y", "FP32", (-1, 1)),)

    def predict(self, x):
        """Return the sum of each row."""
        return x.sum(axis=1, keepdims=True)


class EchoAll(Model):
    """A model that returns its inputs under their names."""

    def predict(self, **tensors):
        """Return the inputs."""
        return tensors


class Typed(Model):
    """A model with one declared input of each kind, which it returns."""

    bytes_as = "sent"
    inputs = (
        TensorSpec("flag", "BOOL", (-1,)),
        TensorSpec("text", "BYTES", (-1,)),
        TensorSpec("half", "FP16", (-1, 2)),
        TensorSpec("brain", "BF16", (-1, 2)),
        TensorSpec("whole", "INT64", (-1,)),
    )
    outputs = inputs

    def predict(self, flag, text, half, brain, whole):
        """Return the inputs."""
        return {"flag": flag, "text": text, "half": half, "brain": brain, "whole": whole}


class Strided(Model):
    """A model with non-contiguous outputs: two views of its input and one array in Fortran order."""

    def predict(self, x):
        """Return the columns in reverse, every second column, and a copy in Fortran order."""
        return {"reversed": x[:, ::-1], "second": x[:, ::2], "column": np.asfortranarray(x)}


class Words(Model):
    """A model that streams the words of a text. ``boom`` raises; ``inf`` is a number that JSON
    lacks.
    """

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("word", "BYTES", (-1,)),)

    async def predict_stream(self, requests):
        """Yield a response for each word."""
        async for request in requests:
            texts = request["text"].tolist()
            text = texts[0] if texts else ""
            for word in (text.decode() if isinstance(text, bytes) else text).split():
                if word == "boom":
                    raise ValueError("boom at /secret/weights.bin")
                yield {"word": np.array([np.inf], np.float32)} if word == "inf" else {"word": [word]}


class Raising(Model):
    """A model that raises on negative values and refuses a row of 13."""

    def predict(self, x):
        """Return the rows."""
        if (x < 0).any():
            raise ValueError("negative at /secret/weights.bin")
        if (x == 13).any():
            raise RowError(int(np.argmax(x == 13)), "thirteen")
        return x


class Texts(Model):
    """A model ``text_input -> text_output`` that returns capitals."""

    inputs = (TensorSpec("text_input", "BYTES", (-1,)),)
    outputs = (TensorSpec("text_output", "BYTES", (-1,)),)

    def predict(self, text_input):
        """Return capitals."""
        return np.array([str(t).upper() for t in text_input], object)


@dataclass(frozen=True)
class Response:
    """A received response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its JSON document; with binary tensors, the document before them."""
        length = self.headers.get(HEADER_LENGTH.lower())
        return json.loads(self.body if length is None else self.body[: int(length)])

    @property
    def error(self) -> str:
        """The text of an error. The document has facts for programs besides it."""
        document = self.json
        assert document.get("request_id") == self.headers.get("x-request-id"), document
        assert set(document) <= {"error", "type", "request_id", "kind", "retry_after_s"}, document
        return document["error"]


class RestServer:
    """A server with an open REST listener; see `serving`."""

    def __init__(
        self, repository: ModelRepository, dataplane: Dataplane, app: WebApp, *, direct: bool = True
    ) -> None:
        self.repository = repository
        self.dataplane = dataplane
        self.app = app
        self.loop = new_event_loop()
        self._listener = HttpListener(app, "127.0.0.1", 0, direct=app.direct if direct else None)
        self.port = self._listener.port
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stop = asyncio.Event()
        self._started = threading.Event()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def _serve(self) -> None:
        await self._listener.start()
        self._started.set()
        await self._stop.wait()
        await self._listener.stop(1.0)

    def start(self) -> None:
        """Open the listener."""
        self._thread.start()
        assert self._started.wait(WAIT_S)

    def close(self) -> None:
        """Close the listener, and stop the models."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        self.repository.stop(drain=False)

    def open_tasks(self) -> int:
        """Return the number of tasks in its event loop, including two of its own."""

        async def count() -> int:
            return len(asyncio.all_tasks())

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(WAIT_S)

    # Requests

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send one request on a new connection. `body` is bytes, or a value for JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            return request_on(connection, method, path, body, headers)
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Response:
        """Send a GET."""
        return self.request("GET", path, None, headers)

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Response:
        """Send a POST."""
        return self.request("POST", path, body, headers)

    def infer(
        self, model: str, *inputs: Any, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Response:
        """Send a POST to ``infer`` of a model."""
        return self.post(f"/v2/models/{model}/infer", {"inputs": inputs, **more}, headers)

    def socket(self) -> "Socket":
        """Open a raw connection."""
        return Socket(self.port)


def request_on(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Send one request on an open connection."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, dict(headers or {}))
    response = connection.getresponse()
    return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


class Socket:
    """A raw connection, for bytes that no client would send."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *parts: bytes) -> "Socket":
        """Send all parts."""
        self._socket.sendall(b"".join(parts))
        return self

    def post(self, path: str, body: bytes, *headers: bytes) -> "Socket":
        """Send a whole POST."""
        lines = [b"POST %s HTTP/1.1" % path.encode(), b"Host: x", b"Content-Length: %d" % len(body), *headers]
        return self.send(b"\r\n".join(lines), b"\r\n\r\n", body)

    def read_until(self, end: bytes) -> bytes:
        """Read up to and including `end`; later bytes are kept."""
        while end not in self.received:
            part = self._socket.recv(1 << 16)
            assert part, f"closed before {end!r}: {self.received[-300:]!r}"
            self.received += part
        found, _, self.received = self.received.partition(end)
        return found + end

    def read_response(self) -> Response:
        """Read one response with a content length."""
        head = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        length = int(headers["content-length"])
        while len(self.received) < length:
            part = self._socket.recv(1 << 16)
            assert part, "closed in the middle of a response"
            self.received += part
        body, self.received = self.received[:length], self.received[length:]
        return Response(int(head[0].split()[1]), headers, body)

    def read_to_end(self) -> bytes:
        """Read until the server closes the connection."""
        while part := self._socket.recv(1 << 16):
            self.received += part
        return self.received

    def abort(self) -> None:
        """Reset the connection."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


MODEL_ROUTES = model_routes(Dataplane(ModelRepository([])))
"""The routes of a server without models."""


def key_of(name: str, text: str, *scopes: Scope, **limits: Any) -> tuple[bytes, ApiKey]:
    """Return the digest and the rights of an API key."""
    return hash_key(text), ApiKey(name, name, frozenset(scopes), **limits)


def definition(make: Any, name: str, version: str = "1", **settings: Any) -> ModelDefinition:
    """Return the definition of a model. All instances share an object."""
    factory = (lambda: make) if isinstance(make, Model) else make
    return ModelDefinition(
        name, version, factory, settings=ServeSettings(**{"max_batch_delay_ms": 0, **settings})
    )


@contextmanager
def serving(
    models: Mapping[str, Any] | Sequence[ModelDefinition],
    *,
    keys: Iterable[tuple[bytes, ApiKey]] = (),
    guard: Guard | None = None,
    limits: RestLimits | None = None,
    changeable: bool = False,
    find: FindDefinitions | None = None,
    started: bool = True,
    direct: bool = True,
    **settings: Any,
) -> Iterator[RestServer]:
    """Serve models by name until the end of the block.

    Without `direct`, every request is an ASGI exchange.
    """
    if isinstance(models, Mapping):
        models = [definition(make, name, **settings) for name, make in models.items()]
    repository = ModelRepository(models, find=find)
    dataplane = Dataplane(repository, version="1.2", changeable=changeable)
    app = model_app(dataplane, guard=guard or Guard(Access(dict(keys))), limits=limits)
    server = RestServer(repository, dataplane, app, direct=direct)
    server.start()
    try:
        if started:
            repository.start()
        yield server
    finally:
        server.close()


def tensor(name: str = "x", data: Any = (1.0,), datatype: str = "FP32", shape: Any = None) -> dict[str, Any]:
    """Return a tensor of a request, with one value per row unless `shape` says otherwise."""
    return {
        "name": name,
        "shape": [len(data)] if shape is None else shape,
        "datatype": datatype,
        "data": list(data),
    }
