"""The main module of an instance's process: loads the model by name and serves calls until closed.

Calls run in the main thread, one at a time. Streams and cancellations arrive in the wire's thread.
The process ends with its parent process, however that one ends.
"""

import ctypes
import itertools
import logging
import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import orjson
from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import DataError, ModelContractError
from headrace.core.model import Call
from headrace.core.tensor import Array, InferRequest, InferResponse
from headrace.engine.backend import CallInputs
from headrace.engine.local_backend import LocalBackend
from headrace.engine.outputs import ChunkedResponse, Outputs
from headrace.engine.process.messages import (
    CALL_NUMBER,
    CONTROL_BYTES,
    CallMessage,
    CallSocket,
    EndSequencesMessage,
    ErrorMessage,
    Lengths,
    LoadedMessage,
    ResultMessage,
    StartMessage,
    join_blobs,
    pack_message,
    split_blobs,
)
from headrace.engine.process.request_codec import (
    error_to_wire,
    opaque_response_header,
    pack_bodies,
    pack_chunk,
    pack_response,
    unpack_opaque_requests,
    unpack_requests,
)
from headrace.engine.process.shared_arrays import Arena, ArenaMapping, ArrayHeader, read_arrays, write_arrays
from headrace.engine.process.wire import (
    Frame,
    FrameKind,
    Relay,
    StreamReceiver,
    StreamSender,
    Wire,
    decode_count,
    decode_end,
)
from headrace.engine.recipe import recipe_factory
from headrace.engine.streams import StreamCall

_PR_SET_PDEATHSIG: Final = 1
_BACKLOG_FRAMES_MAX: Final = 10_000
"""Number of unsent frames beyond which log records are dropped, so that they cannot fill the
memory.
"""

_NOTHING: Final[Mapping[str, Array]] = {}

_log = logging.getLogger("headrace.engine")


class _WireHandler(logging.Handler):
    """A log handler that sends records to the serving process."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self.setFormatter(logging.Formatter("%(message)s"))

    @override
    def emit(self, record: logging.LogRecord) -> None:
        wire = self._relay.wire
        if wire is None or wire.backlog > _BACKLOG_FRAMES_MAX:
            return
        try:
            text = self.format(record).encode(errors="replace").decode()
            traceback = getattr(record, "traceback", "")
            wire.post(FrameKind.LOG, 0, orjson.dumps([record.name, record.levelno, text, traceback]))
        except Exception:  # noqa: BLE001 - as logging does: a record must not break the code that logs it
            self.handleError(record)


class _Call(Call):
    """A call of `predict` or `step`, as its model sees it (`headrace.core.model.Call`)."""

    def __init__(self, number: int, deadline: float | None, clock: Clock, control: mmap.mmap) -> None:
        self._number = number
        self._deadline = deadline
        self._clock = clock
        self._control = control

    @property
    @override
    def deadline_s(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._clock.now()

    @property
    @override
    def cancelled(self) -> bool:
        expired = self._deadline is not None and self._clock.now() >= self._deadline
        return expired or CALL_NUMBER.unpack_from(self._control)[0] == self._number


class _Streams:
    """The open streams: frames to a model's streams and back."""

    def __init__(self, name: str, clock: Clock, relay: Relay) -> None:
        self._name = name
        self._clock = clock
        self._relay = relay
        self._open: dict[int, tuple[StreamCall, StreamReceiver[InferRequest], StreamSender[Any]]] = {}
        self.backend: LocalBackend | None = None
        self._bodies: dict[int, ChunkedResponse] = {}
        """Bodies of `handle` that wait to be read, by number."""
        self._numbers = itertools.count(1)

    def keep_body(self, response: ChunkedResponse) -> int:
        """Keep a body until it is read or dropped. Return its number."""
        number = next(self._numbers)
        self._bodies[number] = response
        return number

    def handle(self, frame: Frame, wire: Wire) -> None:
        kind, id, payload = frame
        if kind == FrameKind.OPEN:
            self._open_stream(id, orjson.loads(payload), wire)
            return
        if kind == FrameKind.DROP_BODY:
            self._bodies.pop(id, None)
            return
        stream = self._open.get(id)
        if stream is None:
            return
        call, receiver, sender = stream
        if kind == FrameKind.ITEMS:
            receiver.received(payload)
        elif kind == FrameKind.TAKEN:
            sender.acknowledge(decode_count(payload))
        elif kind == FrameKind.END:
            call.requests.close(decode_end(payload))
        elif kind == FrameKind.CANCEL:
            call.cancel()
            sender.unblock()

    def remove_ended(self) -> None:
        """Remove streams that have ended."""
        for id in [id for id, (_, _, sender) in self._open.items() if sender.ended]:
            del self._open[id]

    def _open_stream(self, id: int, values: dict[str, Any], wire: Wire) -> None:
        left_s = values["deadline_s"]
        deadline = None if left_s is None else self._clock.now() + left_s
        call = StreamCall(self._clock, deadline=deadline, id=values["id"])
        receiver = StreamReceiver(
            wire, id, call.requests, lambda data: unpack_requests(data, self._clock.now())
        )
        body = None if values["body"] is None else self._bodies.pop(values["body"])
        sender = StreamSender[Any](
            self._relay, id, call.responses, self._pack if body is None else pack_chunk
        )
        self._open[id] = (call, receiver, sender)
        sender.start()
        assert self.backend is not None, "the model is loaded"
        try:
            open_stream = self.backend.open_stream if body is None else body.open_stream
            open_stream(call)
        except Exception as error:  # noqa: BLE001 - reported to the client of the stream
            call.end(error)

    def _pack(self, item: InferResponse) -> bytes:
        try:
            return pack_response(item)
        except (TypeError, DataError) as error:
            raise ModelContractError(
                self._name, f"predict_stream yielded a value that cannot be sent to another process: {error}"
            ) from error


class _ChildProcess:
    """The parts of the process, put together."""

    def __init__(self, calls: CallSocket, wire_end: socket.socket, control_fd: int) -> None:
        self._calls = calls
        self._control = mmap.mmap(control_fd, CONTROL_BYTES)
        os.close(control_fd)
        message, _ = calls.receive()
        assert isinstance(message, StartMessage), "the first message is the start"
        self._boot = message
        _die_with_parent(self._boot.parent_pid)
        self._clock = SystemClock()
        self._relay = Relay()
        self._streams = _Streams(self._boot.name, self._clock, self._relay)
        self._lock = threading.Lock()
        self._current: int | None = None
        self._inputs: ArenaMapping | None = None
        self._outputs_arena = Arena()
        self._wire = Wire(
            wire_end,
            f"headrace-{self._boot.name}-wire",
            on_frames=self._on_frames,
            before_send=self._before_send,
            on_end=_exit_now,
        )
        self._relay.wire = self._wire
        logging.getLogger().addHandler(_WireHandler(self._relay))
        logging.getLogger().setLevel(self._boot.log_level)

    def run(self) -> int:
        """Load the model and serve calls until closed. Return the exit status."""
        boot = self._boot
        try:
            backend = LocalBackend(
                recipe_factory(boot.recipe, boot.name),
                boot.name,
                clock=self._clock,
                fingerprint=boot.fingerprint,
                version=boot.version,
                settings=boot.settings,
            )
        except BaseException as error:  # noqa: BLE001 - reported to the parent process
            _log.debug("model failed to load", extra={"model": boot.name}, exc_info=True)
            self._calls.send(ErrorMessage(error_to_wire(error)))
            self._wire.close()
            return 1
        self._streams.backend = backend
        backend.on_lost(
            lambda: self._wire.post(FrameKind.LOST, 0, str(backend.lost_reason).encode(errors="replace"))
        )
        self._calls.send(LoadedMessage.from_model(backend.metadata, backend.inputs, backend.sequences))
        try:
            self._serve_calls(backend)
        except EOFError:
            _exit_now()
        backend.close()
        self._wire.close()
        return 0

    def _serve_calls(self, backend: LocalBackend) -> None:
        while True:
            message, fd = self._calls.receive()
            if isinstance(message, EndSequencesMessage):
                reply = self._run(backend, message.number, lambda m=message: self._end_sequences(backend, m))
            elif isinstance(message, CallMessage):
                if fd is not None:
                    self._inputs = ArenaMapping(fd, message.arena_bytes)
                    os.close(fd)
                reply = self._run(backend, message.number, lambda m=message: self._call(backend, m))
            else:
                return
            if backend.lost and isinstance(reply, ErrorMessage):
                # The serving process kills this one, and gives its clients the reason.
                threading.Event().wait()
            # Only now do no more local variables of the call hold its arrays.
            del message
            keeps_inputs = self._inputs is not None and self._inputs.in_use
            if keeps_inputs:
                self._inputs = None
            reply = replace(reply, keeps_inputs=keeps_inputs, arena_bytes=self._outputs_arena.size)
            self._calls.send_packed(pack_message(reply), self._outputs_arena.take_fd())

    def _run(
        self, backend: LocalBackend, number: int, call: Callable[[], ResultMessage]
    ) -> ResultMessage | ErrorMessage:
        """Return the result of a call, or its error. It can be cancelled meanwhile."""
        with self._lock:
            self._current = number
        try:
            return call()
        except BaseException as error:  # noqa: BLE001 - whatever a model raises is reported to its client
            _log.debug("call failed", extra={"model": self._boot.name}, exc_info=True)
            return ErrorMessage(error_to_wire(error, backend.traceback_of(error)))
        finally:
            with self._lock:
                self._current = None

    def _end_sequences(self, backend: LocalBackend, message: EndSequencesMessage) -> ResultMessage:
        backend.end_sequences(message.endings)
        return ResultMessage()

    def _call(self, backend: LocalBackend, message: CallMessage) -> ResultMessage:
        began_s = self._clock.now()
        deadline = None if message.deadline_s is None else began_s + message.deadline_s
        call = _Call(message.number, deadline, self._clock, self._control)
        memory = self._inputs
        assert memory is not None, "the first call brings the arena"
        restores = split_blobs(
            message.lengths, read_arrays(memory, message.blobs, copy=False), len(message.orders)
        )
        inputs = CallInputs(
            (read_arrays(memory, message.arrays, copy=False),),
            message.rows,
            message.request_id,
            [order._replace(restore=data) for order, data in zip(message.orders, restores, strict=True)],
            fresh=True,
        )
        if message.requests:
            return self._handle(backend, message, inputs.parts[0], call, began_s)
        headers: list[ArrayHeader] = []
        lengths: Lengths | None = None
        outputs_count = 0

        def deliver(outputs: Outputs, checkpoints: Sequence[bytes | None]) -> None:
            # A step whose result cannot be sent must not count.
            nonlocal headers, lengths, outputs_count
            lengths, blobs = join_blobs(checkpoints)
            headers, outputs_count = self._write_arrays(outputs, blobs), len(outputs)

        result = backend.call(inputs, call, deliver)
        return ResultMessage(
            arrays=headers[:outputs_count],
            flags=result.flags,
            blobs=headers[outputs_count:],
            lengths=lengths,
            input_s=result.input_s,
            infer_s=result.infer_s,
            output_s=result.output_s,
            took_s=self._clock.now() - began_s,
        )

    def _handle(
        self,
        backend: LocalBackend,
        message: CallMessage,
        parts: Mapping[str, Array],
        call: _Call,
        began_s: float,
    ) -> ResultMessage:
        requests = unpack_opaque_requests(message.requests, parts, began_s)
        result = backend.call(CallInputs((), message.rows, requests=requests), call)
        arrays = write_arrays(self._outputs_arena, (pack_bodies(result.responses),))
        responses = [
            opaque_response_header(response.response, self._streams.keep_body(response))
            if isinstance(response, ChunkedResponse)
            else opaque_response_header(response, None)
            for response in result.responses
        ]
        return ResultMessage(
            arrays=arrays,
            infer_s=result.infer_s,
            output_s=result.output_s,
            responses=responses,
            took_s=self._clock.now() - began_s,
        )

    def _write_arrays(self, outputs: Outputs, extra: Mapping[str, Array] = _NOTHING) -> list[Any]:
        try:
            return write_arrays(self._outputs_arena, (outputs,), extra)
        except (TypeError, DataError) as error:
            raise ModelContractError(
                self._boot.name, f"it returned a value that cannot be sent to another process: {error}"
            ) from error

    # The wire's thread

    def _on_frames(self, frames: Sequence[Frame]) -> None:
        wire = self._relay.wire
        assert wire is not None
        for frame in frames:
            kind, id, _ = frame
            if kind != FrameKind.CANCEL_CALL:
                self._streams.handle(frame, wire)
                continue
            backend = self._streams.backend
            with self._lock:
                if self._current == id and backend is not None:
                    backend.cancel()

    def _before_send(self) -> None:
        self._relay.send_ready()
        self._streams.remove_ended()


def _die_with_parent(parent_pid: int) -> None:
    """Kill this process when the thread that started it ends, for any reason.

    Only Linux can do so. Elsewhere the end of the wire ends this process, unless code that holds the
    interpreter lock keeps the wire's thread from running.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        _exit_now()


def _exit_now() -> None:
    """Exit at once: the parent process has gone."""
    os._exit(1)


def main(arguments: Sequence[str]) -> int:
    """Run with the numbers of three inherited files: the call socket, the wire, the control page."""
    call_fd, wire_fd, control_fd = map(int, arguments)
    ends = [socket.socket(fileno=fd) for fd in (call_fd, wire_fd)]
    for end in ends:
        end.set_inheritable(False)
    with suppress(EOFError):
        return _ChildProcess(CallSocket(ends[0]), ends[1], control_fd).run()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
