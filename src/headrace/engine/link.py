"""One process of an instance, seen from the process that serves: started, talked to, watched, ended.

Arrives: a `Bootstrap`. Leaves: a loaded model's metadata, an end of the call socket, streams, and word of its death.
"""

import itertools
import logging
import mmap
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from headrace.core.clock import Clock
from headrace.core.errors import (
    DataError,
    DeathCause,
    InstanceLostError,
    ModelInputError,
    ModelLoadError,
    StoppedError,
)
from headrace.core.tensor import InferRequest, InferResponse
from headrace.engine.bootstrap import CALL_NUMBER, CONTROL_BYTES, Bootstrap
from headrace.engine.call_socket import CallSocket
from headrace.engine.contained import ContainedProcess
from headrace.engine.death import Death
from headrace.engine.relay import Inlet, Outlet, Relay, count_of, end_of, log_of
from headrace.engine.settings import ServeSettings
from headrace.engine.shared_arrays import Arena, Memory
from headrace.engine.stream_codec import pack_request, plain, unpack_responses
from headrace.engine.streams import StreamCall
from headrace.engine.told import error_of
from headrace.engine.wire import Frame, Kind, Wire

CLOSE_S: Final = 10.0
"""How long a model may take to close before its process is asked to end."""
TERMINATE_S: Final = 2.0
"""How long the process may take to end before it is killed."""
_REAP_S: Final = 5.0
"""How long a process whose sockets have closed may take to be gone."""
# The same modules must be found there before any of them is imported.
_START: Final = (
    "import sys; sys.path[:] = sys.argv[4:]; del sys.argv[4:]; import runpy; "
    "runpy.run_module('headrace.engine.child', run_name='__main__', alter_sys=True)"
)

_log = logging.getLogger("headrace.engine")


class Link:
    """A process with a loaded model. Make it in a thread that outlives it: the process ends with that thread.

    `on_lost` is called once, in a thread of the link's own, when the process dies without having been told to. Raises
    what kept the model from loading.
    """

    def __init__(self, boot: Bootstrap, clock: Clock, on_lost: Callable[[], None]) -> None:
        self._name = boot.name
        self._clock = clock
        self._on_lost = on_lost
        self._closing = False
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._open: dict[int, tuple[StreamCall, Outlet[InferRequest], Inlet[InferResponse]]] = {}
        self.lost = False
        """Whether the process is there no more."""
        self.arena = Arena()
        self.returned: Memory | None = None
        self._relay = Relay()
        with ExitStack() as undo:
            wire_end = self._spawn(boot.settings)
            self._wire = Wire(
                wire_end,
                f"headrace-{self._name}-wire",
                on_frames=self._handle,
                gather=self._relay.gather,
                on_end=self._ended,
                watch=self._process.pidfd,
            )
            self._relay.wire = self._wire
            undo.callback(self._end_all, 0.0)
            self.loaded = self._load(boot)
            undo.pop_all()

    def _spawn(self, settings: ServeSettings) -> socket.socket:
        calls, their_calls = socket.socketpair()
        wire, their_wire = socket.socketpair()
        control_fd = os.memfd_create("headrace-control", os.MFD_CLOEXEC)
        os.ftruncate(control_fd, CONTROL_BYTES)
        self.control = mmap.mmap(control_fd, CONTROL_BYTES)
        try:
            fds = (their_calls.fileno(), their_wire.fileno(), control_fd)
            self.calls = CallSocket(calls)
            command = [sys.executable, "-c", _START, *map(str, fds), *sys.path]
            self._process = ContainedProcess(command, fds, self._name, settings)
        except BaseException:
            for one in (calls, wire, self.control):
                one.close()
            raise
        finally:
            their_calls.close()
            their_wire.close()
            os.close(control_fd)
        return wire

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def _load(self, boot: Bootstrap) -> Mapping[str, Any]:
        try:
            self.calls.send(boot.values())
            values, _ = self.calls.receive()
        except EOFError:
            raise ModelLoadError(self._name, f"while it loaded, {self._death().why}") from None
        if "error" in values:
            raise error_of(values["error"])
        return values

    # Calls

    def cancel(self, number: int) -> None:
        """Nobody waits for this call any more. Any thread."""
        CALL_NUMBER.pack_into(self.control, 0, number)
        self._wire.post(Kind.CANCEL_CALL, number)

    def kill(self, cause: DeathCause, why: str) -> None:
        """End the process at once, and all that it started; `why` is what its callers are told. Any thread."""
        self._process.kill(cause, why)

    def lost_error(self) -> InstanceLostError:
        """What those who had asked are told, once the process is gone."""
        death = self._death()
        self.lost = True
        return death.error(self._name)

    def _death(self) -> Death:
        if not self._process.wait(_REAP_S):
            self._process.kill("killed", "its process closed its sockets and lived on, so it was killed")
            self._process.wait(None)
        return self._process.death()

    # Streams

    def open_stream(self, call: StreamCall) -> None:
        """Begin a stream. Raises InstanceLostError when the process is gone, StoppedError when it is closing."""
        id = next(self._ids)
        outlet = Outlet(self._relay, id, call.requests, self._pack)
        inlet = Inlet(self._wire, id, call.answers, unpack_responses)
        with self._lock:
            if self._closing:
                raise StoppedError(f"model {self._name} is stopping")
            if self.lost:
                raise InstanceLostError(
                    self._name, "its process died and is being started again: ask again later"
                )
            self._open[id] = (call, outlet, inlet)
        self._wire.post(Kind.OPEN, id, plain({"id": call.id, "deadline_s": call.deadline_s}))
        outlet.begin()
        call.on_cancel(lambda: self._wire.post(Kind.CANCEL, id))

    def _pack(self, item: InferRequest) -> bytes:
        try:
            return pack_request(item, self._clock.now())
        except (TypeError, DataError) as error:
            raise ModelInputError(self._name, f"a request cannot go to its process: {error}") from error

    # The wire's thread

    def _handle(self, frames: Sequence[Frame]) -> None:
        for kind, id, payload in frames:
            if kind == Kind.LOG:
                self._log(*log_of(payload))
                continue
            found = self._open.get(id)
            if found is None:
                continue
            call, outlet, inlet = found
            if kind == Kind.ITEMS:
                inlet.received(payload)
            elif kind == Kind.TAKEN:
                outlet.taken(count_of(payload))
            elif kind == Kind.END:
                self._open.pop(id, None)
                outlet.over = True
                call.end(end_of(payload))

    def _log(self, name: Any, level: Any, text: Any) -> None:
        logger = logging.getLogger(name)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", text, extra={"model": self._name, "pid": self._process.pid})

    def _ended(self) -> None:
        """The process is gone, or closed its end."""
        with self._lock:
            self.lost = True
            closing = self._closing
        self.calls.shut()
        error = StoppedError(f"model {self._name} is stopped") if closing else self.lost_error()
        if not closing:
            # First: whoever hears of the death from a stream must not take the instance for alive.
            self._on_lost()
        self._end_streams(error)

    def _end_streams(self, error: BaseException) -> None:
        while self._open:
            with suppress(KeyError):
                _, (call, outlet, _) = self._open.popitem()
                outlet.over = True
                call.end(error)

    # Its end

    def close(self) -> None:
        """Let the model close, then the process end; each is given its time. Nothing is left of it. Any thread, once."""
        with self._lock:
            self._closing = True
        with suppress(EOFError):
            self.calls.limit(CLOSE_S)
            self.calls.send({"close": True})
        self._end_all(CLOSE_S)

    def _end_all(self, patience_s: float) -> None:
        with self._lock:
            self._closing = True
        process = self._process
        if not process.wait(patience_s):
            if patience_s:
                _log.warning(
                    "a model did not close in time, its process is ended", extra={"model": self._name}
                )
            process.terminate()
            if not process.wait(TERMINATE_S):
                process.kill("killed", "it did not end when it was told to")
        process.wait(None)
        self._wire.close()
        self._end_streams(StoppedError(f"model {self._name} is stopped"))
        self.calls.close()
        self.arena.drop()
        self.returned = None
        self.control.close()
        process.release()
