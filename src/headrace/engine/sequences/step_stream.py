"""Streams of a model with a `step`: each message is a request, each step's outputs are an item."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import uuid4

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import CancelledRequestError, OverloadedError, SequenceError
from headrace.core.model_traceback import ModelTraceback
from headrace.core.sequence import SequenceControl
from headrace.core.tensor import InferRequest, InferResponse
from headrace.engine.inputs import ModelInputs
from headrace.engine.outputs import Outputs
from headrace.engine.pending_request import PendingRequest, RequestResult, ResponseCallback, merge_key
from headrace.engine.request_queue import RequestQueue
from headrace.engine.sequences.row_request import OutputCollector, RowRequest
from headrace.engine.sequences.sequence_rows import count_steps, has_control_tensors, sequence_parameters
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.streams import StreamCall


class StepStream:
    """The messages of one stream, queued as requests, and the outputs of their steps.

    Messages that name no sequence belong to a sequence of the stream's own, which starts with the
    first of them and ends with the stream. A stream of a `single` request has no such sequence. Up
    to `requests_max` messages (see `SequenceLimits`) are queued; the others wait in the stream.
    """

    def __init__(
        self,
        call: StreamCall,
        queue: RequestQueue,
        schedule: SequenceSchedule,
        clock: Clock,
        *,
        inputs: ModelInputs,
        single: bool,
        on_client_left: Callable[[], None],
    ) -> None:
        self._call = call
        self._queue = queue
        self._schedule = schedule
        self._clock = clock
        self._inputs = inputs
        self._requests_max = schedule.limits.requests_max
        self._single = single
        self._on_client_left = on_client_left
        self._lock = threading.Lock()
        self._unsent: deque[InferRequest] = deque()
        self._pending: dict[PendingRequest, str | None] = {}
        """Messages without a result, and the stream's own sequence if a message belongs to it."""
        self._own_sequence: str | None = None
        """The id of the sequence of messages that name none, once it has begun."""
        self._namespace = ""
        """The namespace of that sequence: the one of all messages."""
        self._ended = False
        self._ending = False
        """True once all messages were sent."""
        self._pumping = False
        self._pump_again = False
        self._space_waiters: list[Callable[[], None]] = []
        """Callbacks of the sequences that wait for space."""

    def open(self) -> None:
        """Queue the first message, which has arrived already. Raises the error that refuses it."""
        request = self._call.requests.take()[0]
        self._namespace = request.namespace
        self._offer(*self._assign_sequence(request))
        self._call.on_cancel(self._stop)
        self._pump()

    # Messages

    def _pump(self) -> None:
        """Queue the messages that have arrived, up to the limit. Any thread; one at a time does it."""
        with self._lock:
            self._pump_again = True
            if self._pumping:
                return
            self._pumping = True
        while True:
            with self._lock:
                if not self._pump_again:
                    self._pumping = False
                    return
                self._pump_again = False
            try:
                self._send_available()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the stream's caller hears of it
                self._fail(error)

    def _send_available(self) -> None:
        requests = self._call.requests
        while not self._ended and not self._ending and len(self._pending) < self._requests_max:
            if not self._unsent:
                self._unsent.extend(requests.take())
            if self._unsent:
                self._offer(*self._assign_sequence(self._unsent.popleft()))
            elif requests.ended:
                self._finish_sending()
            elif requests.when_item(self._pump):
                return

    def _finish_sending(self) -> None:
        if self._call.requests.error is not None:
            raise self._call.requests.error
        self._end_own_sequence()
        self._ending = True
        self._end_if_done()

    def _end_own_sequence(self) -> None:
        own_sequence, self._own_sequence = self._own_sequence, None
        if own_sequence is not None:
            # Its model may have ended it already.
            with suppress(SequenceError):
                self._offer(
                    InferRequest(
                        (),
                        parameters={"sequence_id": own_sequence, "sequence_end": True},
                        namespace=self._namespace,
                    ),
                    own_sequence,
                )

    def _offer(self, request: InferRequest, own_sequence: str | None) -> None:
        rows = count_steps(request, self._inputs)
        callback = _StreamCallback(self)
        now = self._clock.now()
        entry = PendingRequest(request, rows, now, callback, key=merge_key(request.inputs), strict=True)
        callback.entry = entry
        with self._lock:
            self._pending[entry] = own_sequence
        taken = False
        try:
            taken = self._queue.offer(entry)
        finally:
            if not taken:
                with self._lock:
                    self._pending.pop(entry, None)
        if not taken:
            raise OverloadedError(
                f"model {self._inputs.model}: too many rows are waiting (queue_rows_max): retry later",
                retry_after_s=1.0,
            )
        if self._ended:
            # The thread that ended the stream may have missed this message.
            self._withdraw({entry: own_sequence})

    def _assign_sequence(self, request: InferRequest) -> tuple[InferRequest, str | None]:
        """Return a message with the id of its sequence, and the id if it is the stream's own."""
        if self._single:
            return request, None
        control = SequenceControl.from_parameters(request.parameters)
        if control.id or has_control_tensors(request, self._inputs):
            return request, None
        if control.start:
            self._end_own_sequence()
        starts_sequence = self._own_sequence is None
        own_sequence = self._own_sequence = self._own_sequence or uuid4().hex
        if control.end:
            self._own_sequence = None
        named = {**request.parameters, "sequence_id": own_sequence, "sequence_start": starts_sequence}
        return replace(request, parameters=named), own_sequence

    # Results

    def add_output(self, row_request: RowRequest, outputs: Outputs, wakes: list[Callable[[], None]]) -> bool:
        """Send the outputs of one step as an item of the stream."""
        if self._ended:
            raise CancelledRequestError("the stream has ended")
        response = self._schedule.respond(
            [outputs], row_request.entry.request, (), sequence_parameters(row_request)
        )
        return self._call.responses.offer_deferred(response, wakes)

    def when_space(self, wake: Callable[[], None]) -> bool:
        """Call `wake` once the stream has space. Every waiting sequence is woken."""
        with self._lock:
            self._space_waiters.append(wake)
        if self._call.responses.when_space(self._on_space):
            return True
        with self._lock:
            if wake in self._space_waiters:
                self._space_waiters.remove(wake)
        return False

    def _on_space(self) -> None:
        with self._lock:
            waiters, self._space_waiters = self._space_waiters, []
        for wake in waiters:
            wake()

    def entry_finished(self, entry: PendingRequest, result: RequestResult) -> None:
        """Handle the result of one message."""
        own_sequence = self._pending.get(entry)
        # It only had to end the stream's own sequence, which the model had ended before.
        is_needless = isinstance(result, SequenceError) and own_sequence is not None and not entry.rows
        if isinstance(result, BaseException) and not is_needless:
            self._fail(result, entry)
            return
        with self._lock:
            self._pending.pop(entry, None)
        self._end_if_done()
        self._pump()

    def _end_if_done(self) -> None:
        with self._lock:
            if self._ended or not self._ending or self._pending:
                return
            self._ended = True
        self._call.end()

    def _fail(self, error: BaseException, entry: PendingRequest | None = None) -> None:
        if self._detach(entry):
            self._call.end(error)

    def _stop(self) -> None:
        """Handle the departure of the client."""
        if self._detach():
            self._call.end(CancelledRequestError("the stream was cancelled"))
            self._on_client_left()

    def _detach(self, finished: PendingRequest | None = None) -> bool:
        """End the stream: queue no more messages and withdraw the others.

        Return False if it had ended.
        """
        with self._lock:
            if self._ended:
                return False
            self._ended = True
            pending, own_sequence = self._pending, self._own_sequence
            # Removed under the lock: the stream could look complete otherwise.
            if finished is not None:
                pending.pop(finished, None)
            self._pending = {}
        self._withdraw(pending)
        if own_sequence is not None:
            self._schedule.cancel(own_sequence, self._namespace)
        return True

    def _withdraw(self, pending: Mapping[PendingRequest, str | None]) -> None:
        for entry, own_sequence in pending.items():
            self._queue.withdraw(entry)
            if own_sequence is not None:
                self._schedule.cancel(own_sequence, self._namespace)


class _MessageCollector(OutputCollector):
    """A collector that sends the outputs of one message as items of the stream."""

    def __init__(self, stream: StepStream, count: int) -> None:
        self._stream = stream
        self._open_count = count
        self._error: BaseException | None = None
        self._streamed: set[RowRequest] = set()
        self._lock = threading.Lock()

    @override
    def add_output(
        self, row_request: RowRequest, row: int, outputs: Outputs, wakes: list[Callable[[], None]]
    ) -> bool:
        del row
        if row_request.is_closed:
            raise CancelledRequestError("its sequence has ended")
        self._streamed.add(row_request)
        return self._stream.add_output(row_request, outputs, wakes)

    @override
    def add_failure(
        self, row_request: RowRequest, row: int, why: str, traceback: ModelTraceback | None = None
    ) -> bool:
        """Return False: a message succeeds or fails as a whole."""
        del row_request, row, why, traceback
        return False

    @override
    def close(self, row_request: RowRequest, error: BaseException | None) -> RequestResult | None:
        with self._lock:
            if row_request.is_closed:
                return None
            row_request.is_closed = True
            self._open_count -= 1
            self._error = self._error or error
            if self._open_count:
                return None
        return self._error or InferResponse((), id=row_request.entry.request.id)

    @override
    def when_space(self, wake: Callable[[], None]) -> bool:
        return self._stream.when_space(wake)

    @override
    def rewind(self, row_request: RowRequest) -> bool:
        """Return False if an output was streamed already: it cannot be taken back."""
        return row_request not in self._streamed


class _StreamCallback(ResponseCallback):
    """A callback that reports the result of a message to its stream."""

    loop = None

    def __init__(self, stream: StepStream) -> None:
        self._stream = stream
        self.entry: PendingRequest | None = None
        self.make_collector = partial(_MessageCollector, stream)

    @override
    def start(self) -> bool:
        return True

    @override
    def complete(self, result: RequestResult) -> None:
        assert self.entry is not None
        self._stream.entry_finished(self.entry, result)
