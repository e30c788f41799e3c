"""A model behind real HTTP on loopback, for tests of what asks endpoints; it fails exactly as it is told.

Speaks the Open Inference Protocol (JSON and binary tensors) and TorchServe's ``/predictions`` at once. Needs nothing
but the standard library.
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
from headrace.protocols.oip_json import (
    HEADER_LENGTH,
    decode_request,
    encode_error,
    encode_metadata,
    encode_response,
    header_length,
)
from headrace.protocols.torchserve import decode_body, encode_error_body, encode_row

_WAIT_S = 30.0
"""How long a test that waits for requests hangs before it fails; real time."""
_HEAD_BYTES_MAX = 1 << 16

Predict = Callable[[Mapping[str, Array]], Array | Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class EndpointFault:
    """What is done to one request instead of answering it well; the first that is set counts."""

    hang: bool = False
    """Say nothing until the endpoint is stopped or the client hangs up."""
    drop: bool = False
    """Close the connection without a word."""
    status: int = 0
    """Answer with this status, `headers` and `body`."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    cut_bytes: int | None = None
    """Answer well, but close after so many bytes of the body."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request as it came in; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def binary(self) -> bool:
        """Whether its tensors are binary data."""
        return HEADER_LENGTH.lower() in self.headers


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class ScriptedEndpoint:
    """Serves `predict`, which takes arrays by input name, first axis rows, and returns an array or arrays by name.

    ::

        with ScriptedEndpoint(lambda x: x["x"] * 2, inputs=(TensorSpec("x", "FP32", (-1, 4)),)) as endpoint:
            endpoint.faults += [EndpointFault(status=503)] * 3
            run_sync(source, output=output, endpoint=endpoint.oip_url)
            assert endpoint.in_flight_peak <= 16

    What `predict` raises is answered as the real servers do: RowError by 400, anything else by 500 (TorchServe: 503,
    InternalServerException). It runs in the endpoint's one thread. A public method may be called from any thread, and
    the settings below changed at any time. Health and metadata paths are answered too; faults and delays are for
    predictions alone, `always` and `token` for everything.

    Args:
        predict: The model.
        name: Its name in URLs.
        inputs: What its metadata tells; empty is not told.
        outputs: The same.
        binary: Whether binary tensors are taken; otherwise they are refused by 422, as MLServer does.
        token: A bearer token that every request must bring, or is answered by 401.
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
        """Used up one a prediction, in order of arrival; None answers well."""
        self.always: EndpointFault | None = None
        """Done to every request, once `faults` are used up."""
        self.delay_s: Callable[[int], float] = lambda _: 0.0
        """How long the n-th prediction (from 0) waits for its answer."""
        self.requests: list[SeenRequest] = []
        """Predictions that were asked for, in order of arrival."""
        self.others: list[SeenRequest] = []
        """Everything else: metadata, health, and what is not there."""
        self.answered: list[int] = []
        """Their numbers, in order of answering; faults are not among them."""
        self.in_flight_peak = 0
        """The most predictions that were under way at once."""
        self.rows_answered = 0
        self._predict = predict
        self._metadata = ModelMetadata(name, "1", "scripted", tuple(inputs), tuple(outputs))
        self._in_flight = 0
        self._arrived = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._over = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()
        self._port = 0
        self._conversations: set[asyncio.Task[None]] = set()

    # Life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; on the port of the last time, where there was one."""
        if self._thread is not None:
            return
        ready = threading.Event()
        self._over = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="scripted-endpoint", daemon=True
        )
        self._thread.start()
        if not ready.wait(_WAIT_S):
            raise TimeoutError("the endpoint did not begin to listen")

    def stop(self) -> None:
        """Close all connections, and listen no more: clients are refused from now on."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)
        thread.join()

    @property
    def url(self) -> str:
        """The server's root."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def oip_url(self) -> str:
        """The model by the Open Inference Protocol."""
        return f"{self.url}/v2/models/{self.name}"

    @property
    def torchserve_url(self) -> str:
        """The model by TorchServe's API."""
        return f"{self.url}/predictions/{self.name}"

    # The test's hand

    def hold(self) -> None:
        """Let no prediction be answered until `release`."""
        self._in_loop(self._gate.clear)

    def release(self) -> None:
        """Answer what was held, and go on."""
        self._in_loop(self._gate.set)

    def wait_for_requests(self, count: int, *, others: bool = False) -> None:
        """Block until `count` predictions (or others) have been asked for in all."""
        seen = self.others if others else self.requests
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(seen) >= count, _WAIT_S):
                raise TimeoutError(f"{len(seen)} requests have arrived, not {count}")

    def _in_loop(self, call: Callable[[], None]) -> None:
        if self._loop is None or self._thread is None:
            call()
            return
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (call(), done.set()))
        done.wait(_WAIT_S)

    # HTTP, in the endpoint's thread

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        # By hand, since asyncio's own server leaves a connection open that it accepts while it is closed.
        with socket.create_server(("127.0.0.1", self._port), backlog=1024) as listener:
            listener.setblocking(False)
            self._port = listener.getsockname()[1]
            self._loop.add_reader(listener, self._accept, listener)
            ready.set()
            await self._over.wait()
            self._loop.remove_reader(listener)
        for conversation in self._conversations:
            conversation.cancel()
        if self._conversations:
            await asyncio.wait(self._conversations)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionError):
            connected, _ = listener.accept()
            connected.setblocking(False)
            conversation = asyncio.ensure_future(self._converse(connected))
            self._conversations.add(conversation)
            # Here and not in the conversation, which may be cancelled before it began.
            conversation.add_done_callback(self._conversations.discard)
            conversation.add_done_callback(lambda _: connected.close())

    async def _converse(self, connected: socket.socket) -> None:
        """One connection: requests one after another, until either side closes it."""
        # The client hung up, or the endpoint stops.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            reader, writer = await asyncio.open_connection(sock=connected, limit=_HEAD_BYTES_MAX)
            try:
                while (request := await _read_request(reader, writer)) is not None:
                    if not await self._respond(request, reader, writer):
                        break
            finally:
                writer.close()
                await writer.wait_closed()

    async def _respond(
        self, request: SeenRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether the connection goes on."""
        prediction = request.method == "POST"
        number = len(self.requests)
        fault = self._next_fault(prediction=prediction)
        if prediction:
            self._in_flight += 1
            self.in_flight_peak = max(self.in_flight_peak, self._in_flight)
        with self._arrived:
            (self.requests if prediction else self.others).append(request)
            self._arrived.notify_all()
        try:
            if prediction:
                await self._gate.wait()
                if delay_s := self.delay_s(number):
                    await asyncio.sleep(delay_s)
            if fault is not None and fault.hang:
                # Ends when the client hangs up, or by being cancelled.
                await reader.read(1)
                return False
            if fault is not None and fault.drop:
                return False
            answer = self._answer(request, fault)
            if prediction and fault is None:
                self.answered.append(number)
        finally:
            # Before the answer goes out, since its receiver may ask the next at once.
            self._in_flight -= prediction
        cut = fault.cut_bytes if fault is not None else None
        writer.write(_wire(answer, cut))
        await writer.drain()
        return cut is None and answer.status < 400  # as TorchServe does

    def _next_fault(self, *, prediction: bool) -> EndpointFault | None:
        if prediction and self.faults:
            return self.faults.pop(0)
        return self.always

    def _answer(self, request: SeenRequest, fault: EndpointFault | None) -> _Answer:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return _Answer(401, encode_error("a token is needed"))
        if fault is not None and fault.status:
            return _Answer(fault.status, fault.body, fault.headers)
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
            return _Answer(200, encode_metadata(self._metadata))
        if request.method == "GET" and path in (
            "/v2/health/live",
            "/v2/health/ready",
            f"{model}/ready",
            "/ping",
        ):
            return _Answer(200)
        return _Answer(404, encode_error(f"nothing is at {path}"))

    def _oip(self, request: SeenRequest) -> _Answer:
        if request.binary and not self.binary:
            return _Answer(422, b'{"detail":[{"type":"json_invalid","msg":"JSON decode error"}]}')
        try:
            json_bytes = header_length(request.headers.get(HEADER_LENGTH.lower()))
            wire = decode_request(request.body, json_bytes)
            outputs = self._predicted({t.name: t.data for t in wire.request.inputs})
        except RowError as error:
            return _Answer(400, encode_error(str(error)))
        except Exception as error:  # noqa: BLE001 - as a server must
            status = 400 if isinstance(error, DataError) else 500
            return _Answer(status, encode_error(f"{type(error).__name__}: {error}"))
        wanted = tuple(t for t in outputs if t.name in wire.request.outputs or not wire.request.outputs)
        response = InferResponse(wanted, self.name, "1", id=wire.request.id)
        body = encode_response(response, binary=wire.binary)
        return _Answer(200, body.body, body.headers)

    def _torchserve(self, request: SeenRequest) -> _Answer:
        try:
            outputs = self._predicted(self._row(decode_body(request.body)))
        except RowError as error:
            return _Answer(400, encode_error_body(400, "BadRequestException", str(error)))
        except Exception:  # noqa: BLE001 - as a server must
            return _Answer(503, encode_error_body(503, "InternalServerException", "Prediction failed"))
        row = encode_row(outputs, 0)
        return _Answer(200, row.body + b"\n" * (row.content_type == "application/json"))

    def _row(self, value: Any) -> dict[str, Array]:
        """One row as arrays of one row; an object has an input in each of its fields."""
        specs = {s.name: s.datatype for s in self._metadata.inputs}
        named = cast("dict[str, Any]", value) if isinstance(value, dict) else {next(iter(specs), "x"): value}
        return {n: _one_row(v, specs.get(n)) for n, v in named.items()}

    def _predicted(self, tensors: Mapping[str, Array]) -> tuple[Tensor, ...]:
        returned = self._predict(tensors)
        named = returned if isinstance(returned, Mapping) else {"output": returned}
        outputs = tuple(Tensor(name, np.asarray(data)) for name, data in named.items())
        self.rows_answered += outputs[0].rows if outputs else 0
        return outputs


def _one_row(value: Any, datatype: str | None) -> Array:
    if isinstance(value, str | bytes):
        return text_array([value])
    return np.array([value], dtype_of(datatype or "FP32"))


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SeenRequest | None:
    """The next request of a connection; None when the client closed it instead, or sends what is no HTTP."""
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
    return SeenRequest(method, path.partition("?")[0], headers, body)


def _wire(answer: _Answer, cut_bytes: int | None) -> bytes:
    closes = answer.status >= 400 or cut_bytes is not None
    headers = {
        "Content-Type": "application/json",
        **answer.headers,
        "Content-Length": str(len(answer.body)),
        "Connection": "close" if closes else "keep-alive",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {answer.status} {'OK' if answer.status < 400 else 'Refused'}\r\n{lines}\r\n"
    return head.encode("latin-1") + answer.body[:cut_bytes]
