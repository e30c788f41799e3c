"""The process of an instance, seen from the serving process: started, called, watched and closed.

Takes a `StartMessage`; gives the metadata of the loaded model, its call socket and its streams, and
reports its death.
"""

import itertools
import logging
import mmap
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

import orjson

from headrace.core.clock import Clock
from headrace.core.errors import (
    DataError,
    DeathCause,
    InstanceLostError,
    ModelInputError,
    ModelLoadError,
    StoppedError,
)
from headrace.core.model import HandleResponse
from headrace.core.tensor import InferRequest
from headrace.engine.outputs import ChunkedResponse
from headrace.engine.process.contained_process import ContainedProcess, ProcessExit
from headrace.engine.process.messages import (
    CALL_NUMBER,
    CONTROL_BYTES,
    CallSocket,
    CloseMessage,
    ErrorMessage,
    LoadedMessage,
    StartMessage,
)
from headrace.engine.process.request_codec import (
    error_from_wire,
    pack_request,
    unpack_chunks,
    unpack_responses,
)
from headrace.engine.process.shared_arrays import Arena, ArenaMapping, open_unnamed_memory
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
from headrace.engine.settings import ServeSettings
from headrace.engine.streams import StreamCall

CLOSE_S: Final = 10.0
"""Seconds that a model may take to close before its process gets SIGTERM."""
TERMINATE_S: Final = 2.0
"""Seconds that the process may take after SIGTERM before it is killed."""
_REAP_S: Final = 5.0
"""Seconds that a process may take to exit after its sockets have closed."""
# The child must find the same modules before it imports any of them.
_START: Final = (
    "import sys; sys.path[:] = sys.argv[4:]; del sys.argv[4:]; import runpy; "
    "runpy.run_module('headrace.engine.process.child', run_name='__main__', alter_sys=True)"
)

_log = logging.getLogger("headrace.engine")


class ModelProcess:
    """A process with a loaded model. It ends with the thread that makes it.

    `on_lost` is called in the wire's thread when the process dies without `close`, and before, when
    it reports that it cannot call the model any more. Raises the error of loading.
    """

    def __init__(self, boot: StartMessage, clock: Clock, on_lost: Callable[[], None]) -> None:
        self._name = boot.name
        self._clock = clock
        self._on_lost = on_lost
        self._closing = False
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._open: dict[int, tuple[StreamCall, StreamSender[InferRequest], StreamReceiver[Any]]] = {}
        self.lost = False
        """True once the process has exited."""
        self.arena = Arena()
        self.returned: ArenaMapping | None = None
        self._relay = Relay()
        with ExitStack() as undo:
            wire_end = self._spawn(boot.settings)
            self._wire = Wire(
                wire_end,
                f"headrace-{self._name}-wire",
                on_frames=self._on_frames,
                before_send=self._relay.send_ready,
                on_end=self._on_wire_end,
                watch=self._process.exit_fd,
            )
            self._relay.wire = self._wire
            undo.callback(self._shut_down, 0.0)
            self.loaded = self._load(boot)
            undo.pop_all()

    def _spawn(self, settings: ServeSettings) -> socket.socket:
        calls, child_calls = socket.socketpair()
        wire, child_wire = socket.socketpair()
        control_fd = open_unnamed_memory("control", CONTROL_BYTES)
        self.control = mmap.mmap(control_fd, CONTROL_BYTES)
        try:
            fds = (child_calls.fileno(), child_wire.fileno(), control_fd)
            self.calls = CallSocket(calls)
            command = [sys.executable, "-c", _START, *map(str, fds), *sys.path]
            self._process = ContainedProcess(command, fds, self._name, settings)
        except BaseException:
            for one in (calls, wire, self.control):
                one.close()
            raise
        finally:
            child_calls.close()
            child_wire.close()
            os.close(control_fd)
        return wire

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _load(self, boot: StartMessage) -> LoadedMessage:
        try:
            self.calls.send(boot)
            reply, _ = self.calls.receive()
        except EOFError:
            raise ModelLoadError(self._name, f"while loading, {self._wait_for_exit().reason}") from None
        if isinstance(reply, ErrorMessage):
            raise error_from_wire(reply.error)
        assert isinstance(reply, LoadedMessage), "a process sends nothing else"
        return reply

    # Calls

    def cancel(self, number: int) -> None:
        """Cancel a call. Any thread."""
        CALL_NUMBER.pack_into(self.control, 0, number)
        self._wire.post(FrameKind.CANCEL_CALL, number)

    def kill(self, cause: DeathCause, why: str) -> None:
        """Kill the process and all that it started; `why` is reported to its clients. Any thread."""
        self._process.kill(cause, why)

    def exit_error(self) -> InstanceLostError:
        """Return the error to report to the clients of a process that has gone."""
        exit_info = self._wait_for_exit()
        self.lost = True
        return exit_info.error(self._name)

    def _wait_for_exit(self) -> ProcessExit:
        if not self._process.wait(_REAP_S):
            self._process.kill("killed", "its process closed its sockets but did not exit, so it was killed")
            self._process.wait(None)
        return self._process.exit_info()

    # Streams

    def with_chunks(self, response: HandleResponse, number: int | None) -> HandleResponse | ChunkedResponse:
        """Return a response with the body of this number in the process, if it has one."""
        if number is None:
            return response
        chunked = ChunkedResponse(response, lambda stream: self._open_body(stream, number, dropping))
        # If the client has left, the stream is never opened.
        dropping = weakref.finalize(chunked, self._wire.post, FrameKind.DROP_BODY, number)
        dropping.atexit = False
        return chunked

    def _open_body(self, call: StreamCall, number: int, dropping: "weakref.finalize[Any, Any]") -> None:
        dropping.detach()
        self.open_stream(call, body=number)

    def open_stream(self, call: StreamCall, *, body: int | None = None) -> None:
        """Begin a stream: of the model, or of the body with this number.

        Raises InstanceLostError if the process is gone, StoppedError while closing.
        """
        id = next(self._ids)
        sender = StreamSender(self._relay, id, call.requests, self._pack)
        unpack = unpack_responses if body is None else unpack_chunks
        receiver = StreamReceiver[Any](self._wire, id, call.responses, unpack)
        with self._lock:
            if self._closing:
                raise StoppedError(f"model {self._name} is stopping")
            if self.lost:
                raise InstanceLostError(self._name, "its process died and is being restarted: retry later")
            self._open[id] = (call, sender, receiver)
        self._wire.post(
            FrameKind.OPEN, id, orjson.dumps({"id": call.id, "deadline_s": call.deadline_s, "body": body})
        )
        sender.start()
        call.on_cancel(lambda: self._wire.post(FrameKind.CANCEL, id))

    def _pack(self, item: InferRequest) -> bytes:
        try:
            return pack_request(item, self._clock.now())
        except (TypeError, DataError) as error:
            raise ModelInputError(
                self._name, f"the request cannot be sent to its process: {error}"
            ) from error

    # The wire's thread

    def _on_frames(self, frames: Sequence[Frame]) -> None:
        for kind, id, payload in frames:
            if kind == FrameKind.LOG:
                self._log(*orjson.loads(payload))
                continue
            if kind == FrameKind.LOST:
                self.kill("unrecoverable", bytes(payload).decode())
                # Before the streams end, as in `_on_wire_end`.
                self._on_lost()
                continue
            stream = self._open.get(id)
            if stream is None:
                continue
            call, sender, receiver = stream
            if kind == FrameKind.ITEMS:
                receiver.received(payload)
            elif kind == FrameKind.TAKEN:
                sender.acknowledge(decode_count(payload))
            elif kind == FrameKind.END:
                self._open.pop(id, None)
                sender.ended = True
                call.end(decode_end(payload))

    def _log(self, name: Any, level: Any, text: Any, traceback: Any) -> None:
        logger = logging.getLogger(name)
        if logger.isEnabledFor(level):
            extra = {"model": self._name, "pid": self._process.pid}
            logger.log(level, "%s", text, extra=extra | ({"traceback": traceback} if traceback else {}))

    def _on_wire_end(self) -> None:
        """Handle the exit of the process, or the end of its socket."""
        with self._lock:
            self.lost = True
            closing = self._closing
        self.calls.shutdown()
        error = StoppedError(f"model {self._name} is stopped") if closing else self.exit_error()
        if not closing:
            # First, so that a client that sees its stream fail does not find the instance alive.
            self._on_lost()
        self._end_streams(error)

    def _end_streams(self, error: BaseException) -> None:
        while self._open:
            with suppress(KeyError):
                _, (call, sender, _) = self._open.popitem()
                sender.ended = True
                call.end(error)

    # Closing

    def close(self) -> None:
        """Close the model, end the process and free its resources. Any thread, once.

        Model and process each have a time limit.
        """
        with self._lock:
            self._closing = True
        with suppress(EOFError):
            self.calls.end.settimeout(CLOSE_S)
            self.calls.send(CloseMessage())
        self._shut_down(CLOSE_S)

    def _shut_down(self, timeout_s: float) -> None:
        with self._lock:
            self._closing = True
        process = self._process
        if not process.wait(timeout_s):
            if timeout_s:
                _log.warning(
                    "a model did not close in time: its process is terminated", extra={"model": self._name}
                )
            process.terminate()
            if not process.wait(TERMINATE_S):
                process.kill("killed", "it did not exit after SIGTERM")
        process.wait(None)
        self._wire.close()
        self._end_streams(StoppedError(f"model {self._name} is stopped"))
        self.calls.end.close()
        self.arena.drop()
        self.returned = None
        self.control.close()
        process.release()
