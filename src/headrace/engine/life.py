"""One life of an engine, from a start to the stop after it: what callers and instances' threads share."""

import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto

from headrace.core.clock import Clock
from headrace.core.errors import (
    DeadlineError,
    HeadraceError,
    OverloadedError,
    SequenceError,
    SequenceFullError,
    StoppedError,
    TooManySequencesError,
)
from headrace.core.tensor import InferRequest
from headrace.engine.backend import Backend
from headrace.engine.channel import Channel
from headrace.engine.inline import Inline
from headrace.engine.instance import Instance
from headrace.engine.intake import Intake
from headrace.engine.revival import Revival
from headrace.engine.steps.channel import StepChannel
from headrace.engine.steps.stream import StepStream
from headrace.engine.streams import StreamCall
from headrace.engine.tally import Tally
from headrace.engine.ticket import Answer, Ticket, deliver, gone


class State(Enum):
    """Where a life is."""

    LOADING = auto()
    RUNNING = auto()
    STOPPING = auto()
    STOPPED = auto()


class Slot:
    """One instance of a life: its backend once it is loaded, and its figures."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.backend: Backend | None = None
        self.instance: Instance | None = None
        self.gone: Callable[[], None] = lambda: None
        """What to call when somebody has left who may have waited for the call in progress."""
        self.streams: set[StreamCall] = set()
        """Changed under `Life.changed`."""
        self.revival: Revival | None = None
        self.alive = False
        self.given_up = False


class Life:
    """What one start makes and its stop ends: threads around a channel, and how their loading went.

    `changed` is held where the state, the streams and what loading came to are changed, and told then.
    """

    def __init__(
        self, name: str, clock: Clock, channel: Channel, changed: threading.Condition, instances: int
    ) -> None:
        self.name = name
        self.clock = clock
        self.batches = channel
        self.steps: StepChannel | None = None
        """Where requests wait for a model with a `step`; known once it is loaded."""
        self.changed = changed
        self.state = State.LOADING if instances else State.STOPPED
        self.slots = [Slot() for _ in range(instances)]
        self.threads: list[threading.Thread] = []
        self.loaded = 0
        self.ended = 0
        self.load_error: BaseException | None = None
        self.inline: Inline | None = None
        """Where the one instance is called by whoever asks."""
        self.hurry = threading.Event()
        """Set when it ends: nobody waits long for an instance to come back."""
        self.lost: str | None = None
        """Why no instance is left: all died, and none could be started again."""
        self.began_s = 0.0
        self.counting = threading.Lock()
        """Held where the next two are changed: callers of several threads do that."""
        self.tally = Tally()
        """Requests that ended without an instance: withdrawn, or dropped."""
        self.refused = 0

    @property
    def backend(self) -> Backend | None:
        """Any of its instances' backends; None before one is loaded."""
        return self.slots[0].backend if self.slots else None

    @property
    def channel(self) -> Intake:
        """Where requests wait."""
        return self.steps or self.batches

    def use_steps(self, make: Callable[[], StepChannel]) -> None:
        """The model answers step by step: from now on requests wait there."""
        with self.changed:
            if self.steps is None:
                self.steps = make()
                self.batches.hand_over(self.steps)

    def close_store(self) -> None:
        """No instance is left that would keep a sequence's state."""
        if self.steps is None:
            return
        if self.steps.dismissals is not None:
            self.steps.dismissals.close()
        if self.steps.store is not None:
            self.steps.store.close()

    # Threads

    def begin(self, run: Callable[[Slot], None]) -> None:
        """Start a thread for each instance; when one cannot be had, the others end by themselves."""
        try:
            for i, slot in enumerate(self.slots):
                thread = threading.Thread(
                    target=run, args=(slot,), name=f"headrace-{self.name}-{i}", daemon=True
                )
                thread.start()
                self.threads.append(thread)
        except BaseException:
            self.channel.close()
            raise

    def end(self) -> None:
        """Wait for the threads, but not for the one that asks."""
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join()

    def report_loaded(self, error: BaseException | None) -> None:
        """One instance is ready, or failed to become so."""
        with self.changed:
            self.load_error = self.load_error or error
            self.loaded += 1
            self.changed.notify_all()

    # Requests

    def go_on(self, ticket: Ticket) -> None:
        """Raise when the request need not be answered any more."""
        if self.channel.dropped:
            raise self.stopped("while this request ran")
        if ticket.cancelled:
            raise gone(ticket)
        deadline = ticket.request.deadline
        if deadline is not None and self.clock.now() >= deadline:
            raise self.late(ticket.request)

    def tell_gone(self) -> None:
        """A caller of a request that had begun has gone: the call that nobody is left for is cancelled."""
        for slot in self.slots:
            slot.gone()

    def drop(self, error: BaseException) -> None:
        """Fail all that waits, and all that comes."""
        self.tell([(ticket, error) for ticket in self.channel.drop()])

    def tell(self, answered: Sequence[tuple[Ticket, Answer]]) -> None:
        """Settle, count and deliver answers that no instance gave. Any thread."""
        self.channel.settle([ticket for ticket, _ in answered])
        now = self.clock.now()
        with self.counting:
            for ticket, answer in answered:
                if not ticket.ended:
                    continue
                if isinstance(answer, BaseException):
                    self.tally.failed(now - ticket.asked_s, rows=ticket.rows)
                else:
                    self.tally.answered(now - ticket.asked_s, rows=0, failed_rows=0)
        deliver(answered)
        if any(isinstance(answer, SequenceError) for _, answer in answered):
            # A step may be done for a sequence that ended meanwhile.
            self.tell_gone()

    def count_refused(self, ticket: Ticket, error: HeadraceError) -> None:
        """A request that its sequence did not take: there was no room for it, or there is no such sequence."""
        with self.counting:
            if isinstance(error, (SequenceFullError, TooManySequencesError)):
                self.refused += 1
            else:
                self.tally.failed(0.0, rows=ticket.rows)

    def late(self, request: InferRequest) -> DeadlineError:
        """What a request comes to whose deadline has passed."""
        name = f"request {request.id}" if request.id else "a request"
        return DeadlineError(f"model {self.name} did not answer {name} before its deadline")

    def stopped(self, when: str) -> StoppedError:
        """What a request comes to that this life does not answer."""
        return StoppedError(f"model {self.name} is not running: {when}")

    # Streams

    def slot_for(self, call: StreamCall, streams_max: int) -> Slot:
        """The instance with the fewest streams, which has this one from now on.

        Raises StoppedError, and OverloadedError when `streams_max` are open.
        """
        with self.changed:
            # From here on a stop waits for this stream, or cancels it.
            if self.state is not State.RUNNING:
                raise self.stopped("it is stopping")
            slot = min(self.slots, key=lambda s: (not s.alive, len(s.streams)))
            if sum(len(s.streams) for s in self.slots) < streams_max:
                slot.streams.add(call)
                return slot
        with self.counting:
            self.refused += 1
        raise OverloadedError(
            f"model {self.name} has {streams_max} open streams, and no more may be (streams_max): ask again later",
            retry_after_s=1.0,
        )

    def stream_over(self, slot: Slot, call: StreamCall) -> None:
        """A stream has ended, and was left by its caller."""
        with self.counting:
            slot.tally.stream_items += call.items
        with self.changed:
            slot.streams.discard(call)
            self.changed.notify_all()

    def open_step_stream(self, call: StreamCall, steps: StepChannel, *, single: bool) -> None:
        """Begin a stream of a model that has a `step`. Raises what keeps its first message from being asked."""
        backend = self.backend
        assert backend is not None
        StepStream(
            call,
            steps,
            self.clock,
            inputs=backend.inputs,
            limits=steps.limits,
            single=single,
            gone=self.tell_gone,
        ).open()

    def finish_streams(self) -> None:
        """Wait until no stream is open, or `cut_short` is called."""
        with self.changed:
            self.changed.wait_for(lambda: self.channel.dropped or not any(s.streams for s in self.slots))

    def cut_short(self) -> None:
        """End what is open and fail what waits."""
        with self.changed:
            streams = [stream for slot in self.slots for stream in slot.streams]
        for stream in streams:
            stream.cancel(self.stopped("while this stream was open"))
        self.drop(self.stopped("before this request began"))
        with self.changed:
            # A stop that waits for streams to be finished need not.
            self.changed.notify_all()
