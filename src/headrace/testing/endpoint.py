"""A model behind HTTP on loopback with scripted faults, for tests of endpoint clients.

Serves the Open Inference Protocol (JSON and binary tensors) and TorchServe's ``/predictions``.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np

from headrace.core.errors import DataError
from headrace.core.model import RowError
from headrace.core.tensor import Array, InferResponse, ModelMetadata, Tensor, TensorSpec, dtype_of, text_array
from headrace.protocols.oip_documents import encode_error, encode_model_metadata
from headrace.protocols.oip_json import HEADER_LENGTH, decode_request, encode_response, parse_header_length
from headrace.protocols.torchserve import decode_body, encode_error_body, encode_row

_WAIT_S = 30.0
"""Limit of a wait for requests, in real seconds."""
_HEAD_BYTES_MAX = 1 << 16

Predict = Callable[[Mapping[str, Array]], Array | Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class EndpointFault:
    """A deviation from the normal response to one request. The first field that is set counts."""

    hang: bool = False
    """Send nothing until the endpoint stops or the client disconnects."""
    drop: bool = False
    """Close the connection without a response."""
    status: int = 0
    """Respond with this status, `headers` and `body`."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    cut_bytes: int | None = None
    """Respond normally, but close the connection after so many bytes of the body."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A received request. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def binary(self) -> bool:
        """Return True if the tensors are binary data."""
        return HEADER_LENGTH.lower() in self.headers


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class ScriptedEndpoint:
    """A server of `predict`, a function of arrays by input name, first axis rows.

    `predict` returns one array, or arrays by output name. ::

        with ScriptedEndpoint(
            lambda x: x["x"] * 2, inputs=(TensorSpec("x", "FP32", (-1, 4)),)
        ) as endpoint:
            endpoint.faults += [EndpointFault(status=503)] * 3
            run_sync(source, output=output, endpoint=endpoint.oip_url)
            assert endpoint.in_flight_peak <= 16

    Errors of `predict` become responses as in the real servers: RowError 400, others 500
    (TorchServe: 503, InternalServerException). `predict` runs in the endpoint's only thread. Public
    methods may be called from any thread, and the settings below may change at any time. Health and
    metadata requests are served too. `faults` and `delay_s` apply to predictions only;
    `default_fault` and `token` apply to all requests.

    Args:
        predict: The model.
        name: The model's name in URLs.
        inputs: The inputs in the model's metadata; empty omits them.
        outputs: The outputs in the model's metadata; empty omits them.
        binary: Accept binary tensors. If false, they are refused with 422, as by MLServer.
        token: A bearer token required in every request; requests without it get 401.
    """

    def __init__(
        self,
        predict: Predict,
        *,
        name: str = "model",
        inputs: Sequence[TensorSpec] = (),
        outputs: Sequence[TensorSpec] = (),
        binary: bool = True,
        token: str | None = None,
    ) -> None:
        self.name = name
        self.binary = binary
        self.token = token
        self.faults: list[EndpointFault | None] = []
        """One fault for each prediction, removed in order of arrival; None responds normally."""
        self.default_fault: EndpointFault | None = None
        """Applied to predictions once `faults` is empty, and to all other requests."""
        self.delay_s: Callable[[int], float] = lambda _: 0.0
        """The delay of the response to the n-th prediction (from 0), in seconds."""
        self.requests: list[RecordedRequest] = []
        """Requested predictions, in order of arrival."""
        self.other_requests: list[RecordedRequest] = []
        """All other requests: metadata, health, and unknown paths."""
        self.completed: list[int] = []
        """Indexes into `requests`, in order of completion, without those that had faults."""
        self.in_flight_peak = 0
        """The maximum of concurrent predictions."""
        self.rows_completed = 0
        self._predict = predict
        self._metadata = ModelMetadata(name, "1", "scripted", tuple(inputs), tuple(outputs))
        self._in_flight = 0
        self._arrived = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, on the previous port after a restart.

        Raise TimeoutError if the listener does not start.
        """
        if self._thread is not None:
            return
        ready = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="scripted-endpoint", daemon=True
        )
        self._thread.start()
        if not ready.wait(_WAIT_S):
            raise TimeoutError(f"the endpoint did not listen within {_WAIT_S} s")

    def stop(self) -> None:
        """Close all connections and stop listening. New connections are refused."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join()

    @property
    def url(self) -> str:
        """The root URL of the server."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def oip_url(self) -> str:
        """The model's URL in the Open Inference Protocol."""
        return f"{self.url}/v2/models/{self.name}"

    @property
    def torchserve_url(self) -> str:
        """The model's URL in TorchServe's API."""
        return f"{self.url}/predictions/{self.name}"

    def hold(self) -> None:
        """Block the responses of all predictions until `release`."""
        self._in_loop(self._gate.clear)

    def release(self) -> None:
        """Send the held responses and hold no more."""
        self._in_loop(self._gate.set)

    def wait_for_requests(self, count: int, *, other_requests: bool = False) -> None:
        """Block until `count` predictions, or with `other_requests` others, have arrived in total.

        Raise TimeoutError after 30 s of real time.
        """
        arrived = self.other_requests if other_requests else self.requests
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(arrived) >= count, _WAIT_S):
                raise TimeoutError(f"{len(arrived)} requests have arrived, expected {count}")

    def _in_loop(self, call: Callable[[], None]) -> None:
        if self._loop is None or self._thread is None:
            call()
            return
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (call(), done.set()))
        done.wait(_WAIT_S)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        # asyncio's own server would leave a connection open that it accepts while it closes.
        with socket.create_server(("127.0.0.1", self._port), backlog=1024) as listener:
            listener.setblocking(False)
            self._port = listener.getsockname()[1]
            self._loop.add_reader(listener, self._accept, listener)
            ready.set()
            await self._stopping.wait()
            self._loop.remove_reader(listener)
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionError):
            client_socket, _ = listener.accept()
            client_socket.setblocking(False)
            connection = asyncio.ensure_future(self._serve_connection(client_socket))
            self._connections.add(connection)
            # Close here: the connection's task may be cancelled before it begins.
            connection.add_done_callback(self._connections.discard)
            connection.add_done_callback(lambda _: client_socket.close())

    async def _serve_connection(self, client_socket: socket.socket) -> None:
        """Serve the requests of one connection in order, until either side closes it."""
        # These mean that the client disconnected or the endpoint stops.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            reader, writer = await asyncio.open_connection(sock=client_socket, limit=_HEAD_BYTES_MAX)
            try:
                while (request := await _read_request(reader, writer)) is not None:
                    if not await self._respond(request, reader, writer):
                        break
            finally:
                writer.close()
                await writer.wait_closed()

    async def _respond(
        self, request: RecordedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Respond to one request. Return True if the connection stays open."""
        prediction = request.method == "POST"
        number = len(self.requests)
        fault = self._next_fault(prediction=prediction)
        if prediction:
            self._in_flight += 1
            self.in_flight_peak = max(self.in_flight_peak, self._in_flight)
        with self._arrived:
            (self.requests if prediction else self.other_requests).append(request)
            self._arrived.notify_all()
        try:
            if prediction:
                await self._gate.wait()
                if delay_s := self.delay_s(number):
                    await asyncio.sleep(delay_s)
            if fault is not None and fault.hang:
                # This ends when the client disconnects, or by cancellation.
                await reader.read(1)
                return False
            if fault is not None and fault.drop:
                return False
            response = self._response_to(request, fault)
            if prediction and fault is None:
                self.completed.append(number)
        finally:
            # Count down before the response is sent: its client may send the next request at once.
            self._in_flight -= prediction
        cut = fault.cut_bytes if fault is not None else None
        writer.write(_encode(response, cut))
        await writer.drain()
        return cut is None and response.status < 400  # like TorchServe

    def _next_fault(self, *, prediction: bool) -> EndpointFault | None:
        if prediction and self.faults:
            return self.faults.pop(0)
        return self.default_fault

    def _response_to(self, request: RecordedRequest, fault: EndpointFault | None) -> _Response:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return _Response(401, encode_error("a bearer token is required"))
        if fault is not None and fault.status:
            return _Response(fault.status, fault.body, fault.headers)
        path = request.path
        torchserve = f"/predictions/{self.name}"
        if request.method == "POST" and (path == torchserve or path.startswith(torchserve + "/")):
            return self._torchserve(request)
        model = f"/v2/models/{self.name}"
        if path.startswith(f"{model}/versions/1"):
            path = model + path.removeprefix(f"{model}/versions/1")
        if request.method == "POST" and path == f"{model}/infer":
            return self._oip(request)
        if request.method == "GET" and path == model:
            version = self._metadata.version
            versions = () if version is None else (version,)
            return _Response(200, encode_model_metadata(self._metadata, versions))
        if request.method == "GET" and path in (
            "/v2/health/live",
            "/v2/health/ready",
            f"{model}/ready",
            "/ping",
        ):
            return _Response(200)
        return _Response(404, encode_error(f"no resource at {path}"))

    def _oip(self, request: RecordedRequest) -> _Response:
        if request.binary and not self.binary:
            return _Response(422, b'{"detail":[{"type":"json_invalid","msg":"JSON decode error"}]}')
        try:
            json_bytes = parse_header_length(request.headers.get(HEADER_LENGTH.lower()))
            wire = decode_request(request.body, json_bytes)
            outputs = self._call_predict({t.name: t.data for t in wire.request.inputs})
        except RowError as error:
            return _Response(400, encode_error(str(error)))
        except Exception as error:  # noqa: BLE001 - a server responds to every error
            status = 400 if isinstance(error, DataError) else 500
            return _Response(status, encode_error(f"{type(error).__name__}: {error}"))
        requested = tuple(t for t in outputs if t.name in wire.request.outputs or not wire.request.outputs)
        response = InferResponse(requested, self.name, "1", id=wire.request.id)
        encoded = encode_response(response, binary=wire.binary)
        return _Response(200, encoded.body, encoded.headers)

    def _torchserve(self, request: RecordedRequest) -> _Response:
        try:
            outputs = self._call_predict(self._row(decode_body(request.body)))
        except RowError as error:
            return _Response(400, encode_error_body(400, "BadRequestException", str(error)))
        except Exception:  # noqa: BLE001 - a server responds to every error
            return _Response(503, encode_error_body(503, "InternalServerException", "Prediction failed"))
        row = encode_row(outputs, 0)
        return _Response(200, row.body + b"\n" * (row.content_type == "application/json"))

    def _row(self, value: Any) -> dict[str, Array]:
        """Return one row as arrays of one row. A JSON object has one input in each member."""
        specs = {s.name: s.datatype for s in self._metadata.inputs}
        named = cast("dict[str, Any]", value) if isinstance(value, dict) else {next(iter(specs), "x"): value}
        return {n: _one_row(v, specs.get(n)) for n, v in named.items()}

    def _call_predict(self, tensors: Mapping[str, Array]) -> tuple[Tensor, ...]:
        returned = self._predict(tensors)
        named = returned if isinstance(returned, Mapping) else {"output": returned}
        outputs = tuple(Tensor(name, np.asarray(data)) for name, data in named.items())
        self.rows_completed += outputs[0].rows if outputs else 0
        return outputs


def _one_row(value: Any, datatype: str | None) -> Array:
    if isinstance(value, str | bytes):
        return text_array([value])
    return np.array([value], dtype_of(datatype or "FP32"))


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RecordedRequest | None:
    """Return the next request of a connection.

    Return None if the client closed it or sent something other than HTTP.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        return None
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return RecordedRequest(method, path.partition("?")[0], headers, body)


def _encode(response: _Response, cut_bytes: int | None) -> bytes:
    closes = response.status >= 400 or cut_bytes is not None
    headers = {
        "Content-Type": "application/json",
        **response.headers,
        "Content-Length": str(len(response.body)),
        "Connection": "close" if closes else "keep-alive",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {response.status} {'OK' if response.status < 400 else 'Refused'}\r\n{lines}\r\n"
    return head.encode("latin-1") + response.body[:cut_bytes]
