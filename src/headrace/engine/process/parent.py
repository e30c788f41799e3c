"""A model in a process of its own: its crashes, memory and GIL affect no other model.

Arrays travel in shared memory (`headrace.engine.process.shared_arrays`), messages through a socket
(`headrace.engine.process.messages`), streams and cancellations through another
(`headrace.engine.process.wire`). Nothing is pickled.
"""

import itertools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from math import inf

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, DataError, InstanceLostError, ModelInputError, StoppedError
from headrace.core.model import Call, ModelRecipe, current_call
from headrace.core.model_traceback import ModelTraceback
from headrace.core.sequence import SequenceLimits
from headrace.core.tensor import Array, ModelMetadata
from headrace.engine.backend import Backend, CallInputs, CallResult, InputParts
from headrace.engine.inputs import ModelInputs
from headrace.engine.outputs import OutputCheck
from headrace.engine.process.contained_process import KillTimer
from headrace.engine.process.messages import (
    CallMessage,
    EndSequencesMessage,
    ErrorMessage,
    ResultMessage,
    StartMessage,
    join_blobs,
    pack_message,
    split_blobs,
)
from headrace.engine.process.model_process import ModelProcess
from headrace.engine.process.request_codec import (
    error_from_wire,
    pack_opaque_requests,
    unpack_opaque_responses,
)
from headrace.engine.process.shared_arrays import ArenaMapping, ArrayHeader, read_arrays, write_arrays
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import SequenceEnding
from headrace.engine.streams import StreamCall
from headrace.engine.tracebacks import remote_traceback

_log = logging.getLogger("headrace.engine")
_DEFAULTS = ServeSettings()


class ProcessBackend(Backend):
    """A model in a process of its own, which ends with the thread that makes this backend.

    The inputs of `predict` lie in memory that the model may write into. An array that the model
    keeps stays unchanged, since the next call gets other memory. Outputs are copied.

    InstanceLostError is raised by a call during which the process dies, or is killed beyond
    `call_timeout_s`, or beyond `cancel_grace_s` of an unwanted call. The streams of the process end
    with the same error, and the processes that it started are killed. An exception of the model
    arrives as its type and text: headrace's own errors and MemoryError as themselves, others as
    `RemoteError`.
    """

    inputs: ModelInputs
    check: OutputCheck
    rows_max: int
    metadata: ModelMetadata
    sequences: SequenceLimits

    def __init__(
        self,
        recipe: ModelRecipe,
        name: str,
        *,
        clock: Clock | None = None,
        fingerprint: str = "",
        version: str | None = None,
        settings: ServeSettings = _DEFAULTS,
    ) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._timeout_s = settings.call_timeout_s
        grace_s = settings.cancel_grace_s
        self._grace_s = None if grace_s == inf else grace_s
        self._boot = StartMessage(
            recipe=recipe,
            name=name,
            version=version,
            fingerprint=fingerprint,
            settings=settings,
            log_level=min(
                logging.getLogger(logger).getEffectiveLevel() for logger in (None, "headrace.engine")
            ),
            parent_pid=os.getpid(),
        )
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._current_call: tuple[int, Call] | None = None
        self._kill_timer: KillTimer | None = None
        """The timer of the call in progress, once no client wants it."""
        self._on_lost: Callable[[], None] | None = None
        self._closed = False
        self._process: ModelProcess | None = None
        self._start()

    def _start(self) -> None:
        process = ModelProcess(self._boot, self._clock, self._on_process_lost)
        loaded = process.loaded
        self.metadata, self.inputs, self.sequences = loaded.metadata, loaded.inputs, loaded.sequences
        if self.metadata.whole_requests:
            process.close()
            raise ConfigError(
                f"model {self._name} takes whole requests (predict_request) and cannot run in a process; "
                "set isolation to thread"
            )
        self.check = OutputCheck(self._name, self.metadata.outputs)
        self.rows_max = self.metadata.max_batch_rows
        process.calls.end.settimeout(self._timeout_s)
        self._process = process

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        process = self._process
        return None if process is None else process.pid

    # Calls

    @override
    def call(self, inputs: CallInputs, call: Call) -> CallResult:
        """Call the model in its process, which also has the states of its sequences.

        Raises ModelInputError also for values that cannot be sent, such as parameters that are not
        plain JSON values.
        """
        process = self._live_process()
        began_s = self._clock.now()
        lengths, blobs = join_blobs([order.restore for order in inputs.orders])
        requests, parts = pack_opaque_requests(inputs.requests, began_s)
        headers = self._write_arrays(process, inputs.parts or (parts,), blobs)
        count = len(headers) - len(blobs)
        message = CallMessage(
            next(self._numbers),
            process.arena.size,
            call.deadline_s,
            inputs.rows,
            inputs.request_id,
            headers[:count],
            [order._replace(restore=None) for order in inputs.orders],
            headers[count:],
            lengths,
            requests,
        )
        sent_s = self._clock.now()
        result = self._exchange(process, message, call)
        received_s = self._clock.now()
        returned = process.returned
        assert returned is not None, "the first result brings the arena"
        outputs = read_arrays(returned, result.arrays, copy=not requests)
        responses = [
            process.with_chunks(response, header.chunked)
            for response, header in zip(
                unpack_opaque_responses(result.responses, outputs), result.responses, strict=True
            )
        ]
        checkpoints = split_blobs(
            result.lengths, read_arrays(returned, result.blobs, copy=False), len(inputs.orders)
        )
        # Half of the time that neither side accounts for is the way there, half the way back.
        transfer_s = max(0.0, received_s - sent_s - result.took_s) / 2
        return CallResult(
            {} if requests else outputs,
            sent_s - began_s + transfer_s + result.input_s,
            result.infer_s,
            self._clock.now() - received_s + transfer_s + result.output_s,
            result.flags,
            checkpoints,
            responses,
        )

    @override
    def end_sequences(self, endings: Sequence[SequenceEnding]) -> None:
        message = EndSequencesMessage(next(self._numbers), endings)
        self._exchange(self._live_process(), message, current_call())

    def _live_process(self) -> ModelProcess:
        process = self._process
        if process is None:
            raise InstanceLostError(self._name, "its process died and is being restarted: retry later")
        if process.lost:
            raise process.exit_error()
        return process

    def _write_arrays(
        self, process: ModelProcess, parts: InputParts, extra: Mapping[str, Array]
    ) -> list[ArrayHeader]:
        try:
            return write_arrays(process.arena, parts, extra)
        except (TypeError, DataError) as error:
            raise self._not_sendable_error(error) from error

    def _not_sendable_error(self, error: Exception) -> ModelInputError:
        return ModelInputError(self._name, f"the request cannot be sent to its process: {error}")

    def _exchange(
        self, process: ModelProcess, message: CallMessage | EndSequencesMessage, call: Call
    ) -> ResultMessage:
        """Send a message and return its result. Raises the error of the model."""
        try:
            data = pack_message(message)
        except TypeError as error:
            raise self._not_sendable_error(error) from error
        with self._lock:
            self._current_call = (message.number, call)
        try:
            process.calls.send_packed(data, process.arena.take_fd())
            if call.cancelled:
                # The client left before `cancel` could see this call.
                self.cancel()
            reply, fd = process.calls.receive()
        except TimeoutError:
            process.kill(
                "timeout",
                f"a call took longer than call_timeout_s ({self._timeout_s} s), so its process was killed",
            )
            raise process.exit_error() from None
        except EOFError:
            raise process.exit_error() from None
        finally:
            with self._lock:
                self._current_call = None
                kill_timer, self._kill_timer = self._kill_timer, None
            if kill_timer is not None:
                kill_timer.cancel()
        assert isinstance(reply, (ResultMessage, ErrorMessage)), "a process sends nothing else"
        if fd is not None:
            try:
                process.returned = ArenaMapping(fd, reply.arena_bytes)
            finally:
                os.close(fd)
        if reply.keeps_inputs:
            process.arena.drop()
        if isinstance(reply, ErrorMessage):
            raise error_from_wire(reply.error)
        return reply

    @override
    def traceback_of(self, error: BaseException) -> ModelTraceback | None:
        return remote_traceback(error)

    @override
    def cancel(self) -> None:
        """Mark the call as cancelled for `current_call()`, and cancel an asynchronous `predict`."""
        with self._lock:
            process, current = self._process, self._current_call
            # Another call may have begun since the caller of `cancel` looked.
            if process is None or current is None or not current[1].cancelled:
                return
            process.cancel(current[0])
            if self._kill_timer is None and self._grace_s is not None:
                self._kill_timer = self._start_kill_timer(process, current[0], self._grace_s)

    def _start_kill_timer(self, process: ModelProcess, number: int, grace_s: float) -> KillTimer | None:
        name = f"headrace-{self._name}-grace"
        try:
            return KillTimer(self._clock, grace_s, name, lambda: self._kill_unwanted(process, number))
        except RuntimeError as error:
            # No thread is available. The call goes on; the next client that leaves tries again.
            _log.warning(
                "the kill timer of a cancelled call cannot be started: %s", error, extra={"model": self._name}
            )
            return None

    def _kill_unwanted(self, process: ModelProcess, number: int) -> None:
        """Kill the process if its unwanted call has not ended within `cancel_grace_s`."""
        # Under the lock, so that no other call begins and dies with the process.
        with self._lock:
            if self._current_call is None or self._current_call[0] != number:
                return
            process.kill(
                "killed",
                f"its call was cancelled and had not ended {self._grace_s} s later (cancel_grace_s), "
                "so its process was killed",
            )

    # Streams

    @override
    def open_stream(self, stream: StreamCall) -> None:
        """Open a stream. Raises InstanceLostError while there is no process."""
        if self._closed:
            raise StoppedError(f"model {self._name} is stopping")
        self._live_process().open_stream(stream)

    # Restart and close

    @property
    @override
    def lost(self) -> bool:
        return not self._closed and (self._process is None or self._process.lost)

    @property
    @override
    def loss(self) -> InstanceLostError | None:
        process = self._process
        return process.exit_error() if self.lost and process is not None else None

    @override
    def on_lost(self, hook: Callable[[], None]) -> None:
        self._on_lost = hook
        if self.lost:
            hook()

    def _on_process_lost(self) -> None:
        hook = self._on_lost
        if hook is not None:
            hook()

    @override
    def restart(self) -> None:
        """Start the process again, in one attempt. Raises StoppedError once closed."""
        if self._closed:
            raise StoppedError(f"model {self._name} is closed")
        process, self._process = self._process, None
        if process is not None:
            process.close()
        self._start()

    @override
    def close(self) -> None:
        """Give the model CLOSE_S to close, then end its process."""
        self._closed = True
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()
