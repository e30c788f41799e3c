"""A stream whose messages are requests for steps: they are asked as they come, and each step's outputs go out at once."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from headrace.core.clock import Clock
from headrace.core.errors import CancelledRequestError, OverloadedError, SequenceError
from headrace.core.sequence import SequenceAsk, SequenceLimits
from headrace.core.tensor import InferRequest, InferResponse
from headrace.engine.inputs import ModelInputs
from headrace.engine.outputs import Outputs
from headrace.engine.steps.asks import controlled, rows_of
from headrace.engine.steps.channel import StepChannel
from headrace.engine.steps.gathered import told
from headrace.engine.steps.part import Part
from headrace.engine.streams import StreamCall
from headrace.engine.ticket import Answer, Ticket, merge_key


class StepStream:
    """Asks what one stream brings, and hands on what comes of it.

    Messages of a stream that name no sequence are of one sequence of the stream's own, which begins with the first of them, and
    ends with the stream; where the stream is a `single` request, that is a sequence by itself. At most `requests_max` of its
    messages (see `SequenceLimits`) are asked at once; the others wait in the stream.
    """

    def __init__(
        self,
        call: StreamCall,
        channel: StepChannel,
        clock: Clock,
        *,
        inputs: ModelInputs,
        limits: SequenceLimits,
        single: bool,
        gone: Callable[[], None],
    ) -> None:
        self._call = call
        self._channel = channel
        self._clock = clock
        self._inputs = inputs
        self._requests_max = limits.requests_max
        self._single = single
        self._gone = gone
        self._lock = threading.Lock()
        self._arrived: deque[InferRequest] = deque()
        self._pending: dict[Ticket, str | None] = {}
        """What was asked and is not answered, with the stream's own sequence that it is of."""
        self._own: str | None = None
        """The sequence of the messages that name none, once it has begun."""
        self._over = False
        self._ending = False
        """Whether all messages were asked."""
        self._pumping = False
        self._again = False
        self._held: list[Callable[[], None]] = []
        """Whom to tell that there is room: each is a sequence that waits for it."""

    def open(self) -> None:
        """Ask the first message, which is there already. Raises what keeps it from being asked."""
        request = self._call.requests.take()[0]
        self._ask(request)
        self._call.on_cancel(self._stop)
        self._pump()

    # Messages

    def _pump(self) -> None:
        """Ask what has come, as far as there is room. Any thread; one does it at a time."""
        with self._lock:
            self._again = True
            if self._pumping:
                return
            self._pumping = True
        while True:
            with self._lock:
                if not self._again:
                    self._pumping = False
                    return
                self._again = False
            try:
                self._ask_some()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the stream's caller hears of it
                self._fail(error)

    def _ask_some(self) -> None:
        requests = self._call.requests
        while not self._over and not self._ending and len(self._pending) < self._requests_max:
            if not self._arrived:
                self._arrived.extend(requests.take())
            if self._arrived:
                self._ask(self._arrived.popleft())
            elif requests.ended:
                self._all_asked()
            elif requests.when_item(self._pump):
                return

    def _all_asked(self) -> None:
        if self._call.requests.error is not None:
            raise self._call.requests.error
        self._end_own()
        self._ending = True
        self._end_if_done()

    def _end_own(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            # Its model may have ended it before.
            with suppress(SequenceError):
                self._offer(InferRequest((), parameters={"sequence_id": own, "sequence_end": True}), own)

    def _ask(self, request: InferRequest) -> None:
        self._offer(*self._of_own(request))

    def _offer(self, request: InferRequest, own: str | None) -> None:
        rows = rows_of(request, self._inputs)
        reply = _StreamReply(self)
        now = self._clock.now()
        ticket = Ticket(request, rows, now, reply, key=merge_key(request.inputs), strict=True)
        reply.ticket = ticket
        with self._lock:
            self._pending[ticket] = own
        taken = False
        try:
            taken = self._channel.offer(ticket, lambda parts: _Message(self, parts))
        finally:
            if not taken:
                with self._lock:
                    self._pending.pop(ticket, None)
        if not taken:
            raise OverloadedError(
                f"too many rows wait already for model {self._inputs.model} (queue_rows_max): ask again later",
                retry_after_s=1.0,
            )
        if self._over:
            # Whoever ended it may not have seen this one.
            self._withdraw({ticket: own})

    def _of_own(self, request: InferRequest) -> tuple[InferRequest, str | None]:
        """A message with the name of its sequence; and that name, where it is of the stream's own."""
        if self._single:
            return request, None
        ask = SequenceAsk.of(request.parameters)
        if ask.id or controlled(request, self._inputs):
            return request, None
        if ask.start:
            self._end_own()
        begins = self._own is None
        own = self._own = self._own or uuid4().hex
        if ask.end:
            self._own = None
        named = {**request.parameters, "sequence_id": own, "sequence_start": begins}
        return replace(request, parameters=named), own

    # What comes of them

    def give(self, part: Part, outputs: Outputs, wakes: list[Callable[[], None]]) -> bool:
        """See `Sink`: one step's outputs are an item."""
        if self._over:
            raise CancelledRequestError("the stream has ended")
        response = self._channel.respond([outputs], part.ticket.request, (), told(part))
        return self._call.answers.offer_quietly(response, wakes)

    def when_room(self, wake: Callable[[], None]) -> bool:
        """See `Sink`; of several sequences that wait for room none is forgotten."""
        with self._lock:
            self._held.append(wake)
        if self._call.answers.when_room(self._room):
            return True
        with self._lock:
            if wake in self._held:
                self._held.remove(wake)
        return False

    def _room(self) -> None:
        with self._lock:
            held, self._held = self._held, []
        for wake in held:
            wake()

    def answered(self, ticket: Ticket, answer: Answer) -> None:
        """Nothing more comes of one message."""
        own = self._pending.get(ticket)
        # One that was to end the stream's own sequence, which its model had ended before, asked for nothing else.
        needless = isinstance(answer, SequenceError) and own is not None and not ticket.rows
        if isinstance(answer, BaseException) and not needless:
            self._fail(answer, ticket)
            return
        with self._lock:
            self._pending.pop(ticket, None)
        self._end_if_done()
        self._pump()

    def _end_if_done(self) -> None:
        with self._lock:
            if self._over or not self._ending or self._pending:
                return
            self._over = True
        self._call.end()

    def _fail(self, error: BaseException, ticket: Ticket | None = None) -> None:
        if self._leave(ticket):
            self._call.end(error)

    def _stop(self) -> None:
        """Its caller has gone."""
        if self._leave():
            self._call.end(CancelledRequestError("the stream was cancelled"))
            self._gone()

    def _leave(self, answered: Ticket | None = None) -> bool:
        """Nothing more is asked, and what was asked is not wanted any more, but for what is answered; whether it was so before."""
        with self._lock:
            if self._over:
                return False
            self._over = True
            pending, own = self._pending, self._own
            # At once: without it, the stream might look done.
            if answered is not None:
                pending.pop(answered, None)
            self._pending = {}
        self._withdraw(pending)
        if own is not None:
            self._channel.cancel(own)
        return True

    def _withdraw(self, pending: Mapping[Ticket, str | None]) -> None:
        for ticket, own in pending.items():
            self._channel.withdraw(ticket)
            if own is not None:
                self._channel.cancel(own)


class _Message:
    """One message's outputs. Implements `headrace.engine.steps.part.Sink`."""

    def __init__(self, stream: StepStream, parts: int) -> None:
        self._stream = stream
        self._open = parts
        self._error: BaseException | None = None
        self._seen: set[Part] = set()
        self._lock = threading.Lock()

    def give(self, part: Part, row: int, outputs: Outputs, wakes: list[Callable[[], None]]) -> bool:
        """See `Sink`."""
        del row
        if part.over:
            raise CancelledRequestError("its sequence ended meanwhile")
        self._seen.add(part)
        return self._stream.give(part, outputs, wakes)

    def failed(self, part: Part, row: int, why: str) -> bool:
        """See `Sink`: a message is answered whole, or not."""
        del part, row, why
        return False

    def over(self, part: Part, error: BaseException | None) -> Answer | None:
        """See `Sink`."""
        with self._lock:
            if part.over:
                return None
            part.over = True
            self._open -= 1
            self._error = self._error or error
            if self._open:
                return None
        return self._error or InferResponse((), id=part.ticket.request.id)

    def when_room(self, wake: Callable[[], None]) -> bool:
        """See `Sink`."""
        return self._stream.when_room(wake)

    def rewind(self, part: Part) -> bool:
        """See `Sink`: what was handed on cannot be taken back."""
        return part not in self._seen


class _StreamReply:
    """Tells a stream that one of its messages was answered. Implements `headrace.engine.ticket.Reply`."""

    loop = None

    def __init__(self, stream: StepStream) -> None:
        self._stream = stream
        self.ticket: Ticket | None = None

    def begin(self) -> bool:
        """See `Reply`."""
        return True

    def give(self, answer: Answer) -> None:
        """See `Reply`."""
        assert self.ticket is not None
        self._stream.answered(self.ticket, answer)
