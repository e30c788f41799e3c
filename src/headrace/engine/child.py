"""The process of one instance: makes its model by name, loads it, and answers until it is told to close.

Calls are answered in the main thread, one at a time; streams and cancellations come through the wire's thread. It ends
with the process that started it, however that one ends.
"""

import ctypes
import logging
import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import orjson

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import DataError, ModelContractError
from headrace.core.tensor import Array, InferRequest, InferResponse
from headrace.engine.backend import Called, LocalBackend
from headrace.engine.bootstrap import CALL_NUMBER, CONTROL_BYTES, Bootstrap, loaded_values
from headrace.engine.call_socket import CallSocket, pack
from headrace.engine.outputs import Outputs
from headrace.engine.recipe import maker
from headrace.engine.relay import Inlet, Outlet, Relay, count_of, end_of
from headrace.engine.shared_arrays import Arena, Memory, read_arrays, write_arrays
from headrace.engine.step_codec import endings_of, joined, orders_of, parted
from headrace.engine.stepper import Stepped
from headrace.engine.stream_codec import pack_response, unpack_requests
from headrace.engine.streams import StreamCall
from headrace.engine.told import told
from headrace.engine.wire import Frame, Kind, Wire

_PR_SET_PDEATHSIG: Final = 1
_BACKLOG_FRAMES_MAX: Final = 10_000
"""Beyond so many frames that wait, log records are dropped: the log must not fill the memory."""

_NOTHING: Final[Mapping[str, Array]] = {}

_log = logging.getLogger("headrace.engine")


class _WireHandler(logging.Handler):
    """Hands the log's records to the process that serves."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        wire = self._relay.wire
        if wire is None or wire.backlog > _BACKLOG_FRAMES_MAX:
            return
        try:
            text = self.format(record).encode(errors="replace").decode()
            wire.post(Kind.LOG, 0, orjson.dumps([record.name, record.levelno, text]))
        except Exception:  # noqa: BLE001 - the idiom of logging: no record may break who writes it
            self.handleError(record)


class _Call:
    """A call of `predict` or `step`, as its model can ask about it (`headrace.core.call.Call`)."""

    def __init__(self, number: int, deadline: float | None, clock: Clock, control: mmap.mmap) -> None:
        self._number = number
        self._deadline = deadline
        self._clock = clock
        self._control = control

    @property
    def deadline_s(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._clock.now()

    @property
    def cancelled(self) -> bool:
        late = self._deadline is not None and self._clock.now() >= self._deadline
        return late or CALL_NUMBER.unpack_from(self._control)[0] == self._number


class _Streams:
    """The streams that are open here: frames to a model's streams and back."""

    def __init__(self, name: str, clock: Clock, relay: Relay) -> None:
        self._name = name
        self._clock = clock
        self._relay = relay
        self._open: dict[int, tuple[StreamCall, Inlet[InferRequest], Outlet[InferResponse]]] = {}
        self.backend: LocalBackend | None = None

    def handle(self, frame: Frame, wire: Wire) -> None:
        kind, id, payload = frame
        if kind == Kind.OPEN:
            self._begin(id, orjson.loads(payload), wire)
            return
        found = self._open.get(id)
        if found is None:
            return
        call, inlet, outlet = found
        if kind == Kind.ITEMS:
            inlet.received(payload)
        elif kind == Kind.TAKEN:
            outlet.taken(count_of(payload))
        elif kind == Kind.END:
            call.requests.close(end_of(payload))
        elif kind == Kind.CANCEL:
            call.cancel()
            outlet.free()

    def forget(self) -> None:
        """Drop what is over."""
        for id in [id for id, (_, _, outlet) in self._open.items() if outlet.over]:
            del self._open[id]

    def _begin(self, id: int, values: dict[str, Any], wire: Wire) -> None:
        left_s = values["deadline_s"]
        deadline = None if left_s is None else self._clock.now() + left_s
        call = StreamCall(self._clock, deadline=deadline, id=values["id"])
        inlet = Inlet(wire, id, call.requests, lambda data: unpack_requests(data, self._clock.now()))
        outlet = Outlet(self._relay, id, call.answers, self._pack)
        self._open[id] = (call, inlet, outlet)
        outlet.begin()
        assert self.backend is not None, "streams come once it has loaded"
        try:
            self.backend.open_stream(call)
        except Exception as error:  # noqa: BLE001 - its caller hears of it
            call.end(error)

    def _pack(self, item: InferResponse) -> bytes:
        try:
            return pack_response(item)
        except (TypeError, DataError) as error:
            raise ModelContractError(
                self._name, f"predict_stream yielded what goes to no other process: {error}"
            ) from error


class _Child:
    """The process's parts, put together."""

    def __init__(self, calls: CallSocket, wire_end: socket.socket, control_fd: int) -> None:
        self._calls = calls
        self._control = mmap.mmap(control_fd, CONTROL_BYTES)
        os.close(control_fd)
        values, _ = calls.receive()
        self._boot = Bootstrap.of(values)
        _end_with(self._boot.parent_pid)
        self._clock = SystemClock()
        self._relay = Relay()
        self._streams = _Streams(self._boot.name, self._clock, self._relay)
        self._lock = threading.Lock()
        self._current: int | None = None
        self._given: Memory | None = None
        self._returned = Arena()
        self._wire = Wire(
            wire_end,
            f"headrace-{self._boot.name}-wire",
            on_frames=self._handle,
            gather=self._gather,
            on_end=_vanish,
        )
        self._relay.wire = self._wire
        logging.getLogger().addHandler(_WireHandler(self._relay))
        logging.getLogger().setLevel(self._boot.log_level)

    def run(self) -> int:
        """Load, then answer until told to close; the status to exit with."""
        boot = self._boot
        try:
            backend = LocalBackend(
                maker(boot.recipe, boot.name),
                boot.name,
                clock=self._clock,
                fingerprint=boot.fingerprint,
                version=boot.version,
                settings=boot.settings,
            )
        except BaseException as error:  # noqa: BLE001 - handed to the process that starts
            _log.debug("model failed to load", extra={"model": boot.name}, exc_info=True)
            self._calls.send({"error": told(error)})
            self._wire.close()
            return 1
        self._streams.backend = backend
        self._calls.send(loaded_values(backend.metadata, backend.inputs, backend.sequences))
        try:
            self._answer_all(backend)
        except EOFError:
            _vanish()
        backend.close()
        self._wire.close()
        return 0

    def _answer_all(self, backend: LocalBackend) -> None:
        while True:
            message, fd = self._calls.receive()
            if fd is not None:
                self._given = Memory(fd, message["arena"])
                os.close(fd)
            if "call" not in message:
                return
            reply = self._answered(backend, message)
            # Only now is nothing of the call left that would hold on to its arrays by itself.
            reply["kept"] = self._given is not None and self._given.kept
            if reply["kept"]:
                self._given = None
            reply["arena"] = self._returned.size
            self._calls.send_packed(pack(reply), self._returned.new_fd())

    def _answered(self, backend: LocalBackend, message: dict[str, Any]) -> dict[str, Any]:
        number = message["call"]
        with self._lock:
            self._current = number
        try:
            return self._called(backend, message, number)
        except BaseException as error:  # noqa: BLE001 - whatever a model raises, its caller is told
            _log.debug("call failed", extra={"model": self._boot.name}, exc_info=True)
            return {"error": told(error)}
        finally:
            with self._lock:
                self._current = None

    def _called(self, backend: LocalBackend, message: dict[str, Any], number: int) -> dict[str, Any]:
        if "endings" in message:
            backend.end_sequences(endings_of(message["endings"]))
            return {}
        began_s = self._clock.now()
        left_s = message["deadline_s"]
        deadline = None if left_s is None else began_s + left_s
        call = _Call(number, deadline, self._clock, self._control)
        assert self._given is not None, "arrays come with the first call"
        given = read_arrays(self._given, message["arrays"], copy=False)
        answer = self._stepped if "orders" in message else self._predicted
        reply, called = answer(backend, message, given, call)
        reply["input_s"], reply["infer_s"], reply["output_s"] = (
            called.input_s,
            called.infer_s,
            called.output_s,
        )
        reply["took_s"] = self._clock.now() - began_s
        return reply

    def _predicted(
        self, backend: LocalBackend, message: dict[str, Any], given: Mapping[str, Array], call: _Call
    ) -> tuple[dict[str, Any], Called]:
        called = backend.call((given,), message["rows"], message["request"], call, fresh=True)
        checked_s = self._clock.now()
        reply = {"arrays": self._written(called.outputs)}
        return reply, replace(called, output_s=called.output_s + self._clock.now() - checked_s)

    def _stepped(
        self, backend: LocalBackend, message: dict[str, Any], given: Mapping[str, Array], call: _Call
    ) -> tuple[dict[str, Any], Stepped]:
        told, memory = message["orders"], self._given
        assert memory is not None, "arrays come with the first call"
        checkpoints = read_arrays(memory, message["beside"], copy=False)
        orders = orders_of(told, parted(message["lengths"], checkpoints, len(told)))
        del checkpoints
        reply: dict[str, Any] = {}

        def deliver(outputs: Outputs, saved: Sequence[bytes | None]) -> None:
            # What cannot go there has not happened here.
            reply["lengths"], beside = joined(saved)
            placed = self._written(outputs, beside)
            reply["arrays"], reply["beside"] = placed[: len(outputs)], placed[len(outputs) :]

        stepped = backend.step((given,), orders, call, fresh=True, deliver=deliver)
        reply["said"] = stepped.said
        return reply, stepped

    def _written(self, outputs: Outputs, beside: Mapping[str, Array] = _NOTHING) -> list[Any]:
        try:
            return write_arrays(self._returned, (outputs,), beside)
        except (TypeError, DataError) as error:
            raise ModelContractError(
                self._boot.name, f"it returned what goes to no other process: {error}"
            ) from error

    # The wire's thread

    def _handle(self, frames: Sequence[Frame]) -> None:
        wire = self._relay.wire
        assert wire is not None
        for frame in frames:
            kind, id, _ = frame
            if kind != Kind.CANCEL_CALL:
                self._streams.handle(frame, wire)
                continue
            backend = self._streams.backend
            with self._lock:
                if self._current == id and backend is not None:
                    backend.cancel()

    def _gather(self) -> None:
        self._relay.gather()
        self._streams.forget()


def _end_with(parent_pid: int) -> None:
    """Be killed when the thread that started this process ends, also by a signal that it cannot catch."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        _vanish()


def _vanish() -> None:
    """Whoever started this process has gone: there is nobody to answer, and nothing to be finished."""
    os._exit(1)


def main(arguments: Sequence[str]) -> int:
    """Run with the numbers of three inherited files: the call socket, the wire's, and the control page."""
    call_fd, wire_fd, control_fd = map(int, arguments)
    ends = [socket.socket(fileno=fd) for fd in (call_fd, wire_fd)]
    for end in ends:
        end.set_inheritable(False)
    with suppress(EOFError):
        return _Child(CallSocket(ends[0]), ends[1], control_fd).run()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
