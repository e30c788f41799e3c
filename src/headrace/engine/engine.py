"""The engine: a Predictor around a Model, for callers in threads and in event loops.

A request goes to an idle instance at once; while all are busy it waits in one queue. Nothing is ever dropped
without an answer: a request ends with a response, an error, or its own cancellation.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from enum import Enum, auto

from headrace.batching.adaptive import AdaptiveBatcher, LookAgain
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DeadlineError,
    InstanceLostError,
    LimitError,
    ModelInputError,
    OverloadedError,
    StoppedError,
    UnsupportedError,
)
from headrace.core.model import Model
from headrace.core.predictor import PredictorStatistics
from headrace.core.statistics import ModelStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.engine.backend import Backend
from headrace.engine.channel import Channel, ThreadTaker, Work
from headrace.engine.instance import Instance
from headrace.engine.isolation import Placement
from headrace.engine.reason import reason
from headrace.engine.revival import Revival
from headrace.engine.settings import ServeSettings
from headrace.engine.streams import AnswerStream, StreamCall
from headrace.engine.tally import Tally, total
from headrace.engine.texts import with_texts
from headrace.engine.ticket import (
    Answer,
    FutureReply,
    LoopReply,
    RequestTimes,
    Ticket,
    deliver,
    gone,
    merge_key,
)

_log = logging.getLogger("headrace.engine")

RETRY_AFTER_MAX_S = 30.0
REQUEST_ROWS_MAX = 1 << 20
"""Rows of one request that is asked: rows without values cost no bytes, so that the size of a body does not bound them."""

_NOT_NOW = "it is starting or stopping"


class _State(Enum):
    STOPPED = auto()
    LOADING = auto()
    RUNNING = auto()
    STOPPING = auto()


class _Slot:
    """One instance of a life: its backend once it is loaded, and its figures."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.backend: Backend | None = None
        self.instance: Instance | None = None
        self.streams: set[StreamCall] = set()
        """Changed under the engine's lock."""
        self.revival: Revival | None = None
        self.alive = False
        self.given_up = False


class _Life:
    """What one start makes and its stop ends: threads around a channel, and how their loading went."""

    def __init__(self, channel: Channel, instances: int) -> None:
        self.channel = channel
        self.slots = [_Slot() for _ in range(instances)]
        self.threads: list[threading.Thread] = []
        self.loaded = 0
        self.ended = 0
        self.load_error: BaseException | None = None
        self.inline: Instance | None = None
        self.lock = threading.Lock()
        """Held by the caller of an inline instance."""
        self.over = False
        """Whether the instances are being closed; set under `lock`."""
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
        return self.slots[0].backend if self.slots else None

    def begin(self, serve: "Callable[[_Life, _Slot], None]", name: str) -> None:
        """Start a thread for each instance; when one cannot be had, the others end by themselves."""
        try:
            for i, slot in enumerate(self.slots):
                thread = threading.Thread(target=serve, args=(self, slot), name=f"{name}-{i}", daemon=True)
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


class Engine:
    """Implements `headrace.core.Predictor`; see there for what is guaranteed. `ask` and `stream` are for event loops.

    `make_model` is called once per instance, in the instance's own thread, where the model is loaded, warmed up
    (with a row of zeros, where it leaves that to us and its inputs' sizes are known), called and closed. May be
    started again after `stop`.

    A request of more than `max_batch_rows` rows is answered in several calls of one instance. A batch on which the
    model raises (also MemoryError) is bisected, so that only guilty rows fail; KeyboardInterrupt, SystemExit and
    the like fail the request with PredictError and leave the instance running. Requests that do not fit the
    model's inputs fail with ModelInputError, without a call.

    Deadlines are looked at before every call of the model and when the request is answered: one that has
    passed is never begun, and fails with DeadlineError no later than the call in progress ends; `ask` raises it at once.

    With `serving`, requests that can share a call of the model do; without, each is called by itself, so that what a
    model is given depends on the caller alone.

    Futures are set, and their callbacks run, in instances' threads: a callback must be short, and must not
    `submit` (it might wait for room that only its own thread can make).

    Args:
        make_model: A Model subclass, or a function that makes one.
        name: The model's name in responses, errors and logs.
        version: Its version in responses.
        instances: How many copies of the model, each with a thread; `serving` has its own.
        in_flight_max: The most `submit` requests unanswered at once; by default 2 per instance and one more.
        fingerprint: What changes with the model's file or code, for `metadata`.
        clock: Tells deadlines, busy and starved time.
        warm_up: Whether to call `Model.warm_up`, or a row of zeros, before the instance is ready.
        serving: How requests of many callers are queued, joined and placed.
    """

    def __init__(
        self,
        make_model: Callable[[], Model],
        *,
        name: str,
        version: str | None = None,
        instances: int = 1,
        in_flight_max: int | None = None,
        fingerprint: str = "",
        clock: Clock | None = None,
        warm_up: bool = True,
        serving: ServeSettings | None = None,
    ) -> None:
        if instances < 1:
            raise ConfigError(f"model {name}: instances must be 1 or more, not {instances}")
        settings = serving or ServeSettings(instances=instances, isolation="thread", warm_up=warm_up)
        # One running and one waiting for each instance, and one for whichever instance is free first.
        most = 2 * settings.instances + 1 if in_flight_max is None else in_flight_max
        if most < 1:
            raise ConfigError(f"model {name}: in_flight_max must be 1 or more, not {most}")
        self.name = name
        self.version = version
        self.settings = settings
        self._merge = serving is not None
        self._in_flight_max = most
        self._clock = clock or SystemClock()
        self._placement = Placement(
            make_model,
            name,
            version=version,
            fingerprint=fingerprint,
            settings=settings,
            clock=self._clock,
        )
        self._changed = threading.Condition()
        self._state = _State.STOPPED
        self._life = _Life(self._channel(1, 0.0), 0)

    def _channel(self, rows_max: int, delay_ms: float) -> Channel:
        batcher = AdaptiveBatcher[Ticket](rows_max=rows_max, delay_s=delay_ms / 1000, merge=self._merge)
        return Channel(
            batcher,
            self._clock,
            in_flight_max=self._in_flight_max,
            queue_rows_max=self.settings.queue_rows_max,
        )

    @property
    def metadata(self) -> ModelMetadata:
        """The model's; StoppedError before the first `start`."""
        backend = self._life.backend
        if backend is None:
            raise StoppedError(f"model {self.name} is not loaded: start the engine first")
        return backend.metadata

    @property
    def in_flight_max(self) -> int:
        """The most requests of `submit` that are unanswered at once; it blocks beyond."""
        return self._in_flight_max

    @property
    def running(self) -> bool:
        """Whether it takes requests."""
        return self._state is _State.RUNNING

    @property
    def alive(self) -> bool:
        """Whether it takes requests and every instance is there to answer them."""
        return self.running and all(slot.alive for slot in self._life.slots)

    # Life

    def start(self) -> None:
        """Make, load and warm up all instances; returns when every one is ready.

        Takes as long as loading takes. Raises ModelLoadError (or MissingExtraError) when one fails, and StoppedError when
        `stop` was called meanwhile; then no instance is left running.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state in (_State.STOPPED, _State.RUNNING))
            if self._state is _State.RUNNING:
                return
            life = _Life(self._channel(1, 0.0), self.settings.instances)
            life.begin(self._serve, f"headrace-{self.name}")
            self._state, self._life = _State.LOADING, life
        try:
            self._wait_until_loaded(life)
        except BaseException:
            life.channel.drop()
            self._become_stopped(life)
            raise

    def _wait_until_loaded(self, life: _Life) -> None:
        with self._changed:
            self._changed.wait_for(lambda: life.loaded == len(life.slots))
            stopped = self._life is not life or self._state is not _State.LOADING
            if life.load_error is None and not stopped:
                life.began_s = self._clock.now()
                self._state = _State.RUNNING
                self._changed.notify_all()
                return
        life.channel.close()
        life.end()
        raise life.load_error or StoppedError(f"model {self.name} was stopped while it loaded")

    def stop(self, *, drain: bool = True) -> None:
        """Finish what was accepted, or fail it with StoppedError; then close the instances.

        Returns when their threads have ended, so it waits for a call in progress either way. Stopping without
        `drain` cuts short a stop that drains. Open streams are finished, or end with StoppedError, alike; finished they
        are once their callers have closed them. Not for a thread whose event loop has callers: they could not go on.
        """
        with self._changed:
            life = self._life
            if self._state is _State.STOPPED:
                return
            self._state = _State.STOPPING
        if drain:
            self._finish_streams(life)
            life.channel.close()
        else:
            self._cut_short(life)
        life.hurry.set()
        life.end()
        self._become_stopped(life)

    def _cut_short(self, life: _Life) -> None:
        with self._changed:
            streams = [stream for slot in life.slots for stream in slot.streams]
        for stream in streams:
            stream.cancel(self._stopped("while this stream was open"))
        self._drop(life, self._stopped("before this request began"))
        with self._changed:
            # A stop that waits for streams to be finished need not.
            self._changed.notify_all()

    def _drop(self, life: _Life, error: BaseException) -> None:
        """Fail all that waits, and all that comes."""
        tickets = life.channel.drop()
        life.channel.settle(tickets)
        now = self._clock.now()
        with life.counting:
            for ticket in tickets:
                if ticket.ended:
                    life.tally.failed(now - ticket.asked_s, rows=ticket.rows)
        deliver([(ticket, error) for ticket in tickets])

    def _finish_streams(self, life: _Life) -> None:
        with self._changed:
            self._changed.wait_for(lambda: life.channel.dropped or not any(s.streams for s in life.slots))

    def _become_stopped(self, life: _Life) -> None:
        with self._changed:
            # Another life may have begun since: that one is not ours to end.
            if self._life is life:
                self._state = _State.STOPPED
            self._changed.notify_all()

    # Callers in threads

    def submit(self, request: InferRequest) -> Future[InferResponse]:
        """Ask; blocks while `in_flight_max` requests are unanswered. Raises StoppedError when not running."""
        life, backend = self._running_life("it must be started before it is asked")
        future: Future[InferResponse] = Future()
        try:
            rows = self._checked(backend, request)
        except ModelInputError as error:
            future.set_exception(error)
            return future
        reply = FutureReply(future)
        key = merge_key(request) if self._merge else None
        ticket = Ticket(request, rows, self._clock.now(), reply, key=key)
        if life.inline is None:
            life.channel.put(ticket, future)
        else:
            reply.give(self._answer_inline(life, life.inline, ticket))
        return future

    # Callers in event loops

    async def ask(self, request: InferRequest, times: RequestTimes | None = None) -> InferResponse:
        """Ask, from an event loop; never blocks, never waits for room. One bad row fails the request.

        Cancelling takes a waiting request out of the queue. Raises ModelInputError for what does not fit the model,
        LimitError for more than REQUEST_ROWS_MAX rows, OverloadedError when too many rows wait, DeadlineError as soon as the deadline has passed, PredictError for
        what the model raised, RefusedRowsError for rows that it refused, StoppedError. `times`, where given, are filled in.
        """
        answered = self.ask_now(request, times)
        if answered is not None:
            return answered
        life, backend = self._running_life(_NOT_NOW)
        request, rows, now = self._taken(life, backend, request)
        loop = asyncio.get_running_loop()
        reply = LoopReply(loop)
        ticket = Ticket(request, rows, now, reply, strict=True, times=times)
        ticket.key = ticket if backend.metadata.whole_requests else merge_key(request)
        if times is not None:
            times.asked_s = now
        self._admit(life, ticket)
        left_s = None if request.deadline is None else request.deadline - now
        return await self._answer_of(life, ticket, reply, left_s)

    def ask_now(self, request: InferRequest, times: RequestTimes | None = None) -> InferResponse | None:
        """What `ask` comes to, of a model that is called inline, on the caller's thread; None: it takes waiting, so `ask`."""
        life, backend = self._running_life(_NOT_NOW)
        if life.inline is None:
            return None
        request, rows, now = self._taken(life, backend, request)
        ticket = Ticket(request, rows, now, _NOWHERE, strict=True, times=times)
        answer = self._answer_inline(life, life.inline, ticket)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _taken(self, life: _Life, backend: Backend, request: InferRequest) -> tuple[InferRequest, int, float]:
        """A request as its model wants it, its rows, and the time; raises what keeps it from being asked."""
        rows = self._checked(backend, request)
        request = with_texts(request, backend.metadata.bytes_as, self.name)
        if rows > REQUEST_ROWS_MAX:
            raise LimitError(
                f"model {self.name}: a request of {rows} rows; at most {REQUEST_ROWS_MAX} are taken"
            )
        now = self._clock.now()
        if request.deadline is not None and now >= request.deadline:
            with life.counting:
                life.tally.expired += 1
            raise self._late(request)
        return request, rows, now

    async def _answer_of(
        self, life: _Life, ticket: Ticket, reply: LoopReply, left_s: float | None
    ) -> InferResponse:
        """What a queued ticket comes to; it is withdrawn when its caller goes or its time is over."""
        try:
            if left_s is None:
                return await reply.future
            async with asyncio.timeout(left_s):
                return await reply.future
        except (asyncio.CancelledError, GeneratorExit):
            if self._withdraw(life, ticket, reply):
                with life.counting:
                    life.tally.cancelled += 1
            raise
        except TimeoutError:
            if self._withdraw(life, ticket, reply):
                with life.counting:
                    life.tally.expired += 1
            raise self._late(ticket.request) from None

    def _admit(self, life: _Life, ticket: Ticket) -> None:
        most = self.settings.queue_rows_max
        try:
            if life.channel.offer(ticket):
                return
        except StoppedError:
            raise self._stopped("it is stopping, or has lost its instances") from None
        with life.counting:
            life.refused += 1
        _, rows, _, _ = life.channel.waiting()
        raise OverloadedError(
            f"model {self.name}: {rows} rows wait already, and at most {most} may (queue_rows_max): ask again later",
            retry_after_s=self._retry_after_s(life, rows),
        )

    def _retry_after_s(self, life: _Life, rows: int) -> float:
        """How long the rows that wait will take, by how long rows took so far."""
        done = sum(s.tally.rows + s.tally.failed_rows for s in life.slots)
        busy_s = sum(s.tally.busy_s for s in life.slots)
        row_s = busy_s / done if done else 0.01
        return min(max(rows * row_s / len(life.slots), 0.1), RETRY_AFTER_MAX_S)

    def _withdraw(self, life: _Life, ticket: Ticket, reply: LoopReply) -> bool:
        """Whoever asked has gone; whether the request had not ended, and been counted, before."""
        waited = life.channel.withdraw(ticket)
        reply.forget()
        if ticket.cancelled and not waited:
            for slot in life.slots:
                if slot.instance is not None:
                    slot.instance.gone()
        return ticket.cancelled

    def stream(self, first: InferRequest, more: AsyncIterator[InferRequest] | None = None) -> AnswerStream:
        """Open a stream, from an event loop: `first`, then what `more` gives, go to the model as they come.

        Raises UnsupportedError for a model that has no `predict_stream`, ModelInputError for a first request that does not fit
        the inputs that the model declares, OverloadedError when `streams_max` are open,
        StoppedError. What is wrong with a later request, and what its source raises, ends the stream with that error.
        """
        life, backend = self._running_life(_NOT_NOW)
        if not backend.metadata.streams:
            raise UnsupportedError(f"model {self.name} does not stream: it has no predict_stream")
        first = _fitting(first, backend)
        more = None if more is None else _all_fitting(more, backend)
        loop = asyncio.get_running_loop()
        call = StreamCall(self._clock, deadline=first.deadline, id=first.id)
        call.requests.offer(first)
        slot = self._slot_for(life, call)
        try:
            assert slot.backend is not None
            slot.backend.open_stream(call)
        except BaseException:
            self._stream_over(life, slot, call)
            raise
        with life.counting:
            slot.tally.streams += 1
        feeding: asyncio.Task[None] | None = None
        if more is None:
            call.requests.close()
        else:
            feeding = loop.create_task(_feed(more, call))
        return AnswerStream(call, feeding, lambda call: self._stream_over(life, slot, call))

    def _slot_for(self, life: _Life, call: StreamCall) -> _Slot:
        """The instance with the fewest streams, which has this one from now on."""
        most = self.settings.streams_max
        with self._changed:
            # Asked once more: from here on a stop waits for this stream, or cancels it.
            if self._life is not life or self._state is not _State.RUNNING:
                raise self._stopped("it is stopping")
            slot = min(life.slots, key=lambda s: (not s.alive, len(s.streams)))
            if sum(len(s.streams) for s in life.slots) < most:
                slot.streams.add(call)
                return slot
        with life.counting:
            life.refused += 1
        raise OverloadedError(
            f"model {self.name} has {most} open streams, and no more may be (streams_max): ask again later",
            retry_after_s=1.0,
        )

    def _stream_over(self, life: _Life, slot: _Slot, call: StreamCall) -> None:
        with life.counting:
            slot.tally.stream_items += call.items
        with self._changed:
            slot.streams.discard(call)
            self._changed.notify_all()

    # Both

    def _running_life(self, why: str) -> tuple[_Life, Backend]:
        life = self._life
        backend = life.backend
        if self._state is not _State.RUNNING or backend is None:
            raise self._stopped(why)
        if life.lost is not None:
            raise InstanceLostError(self.name, life.lost)
        return life, backend

    def _checked(self, backend: Backend, request: InferRequest) -> int:
        if not backend.metadata.predicts:
            raise ModelInputError(self.name, "it only streams: it has a predict_stream, but no predict")
        return backend.inputs.check(request)

    def statistics(self) -> PredictorStatistics:
        """Sums over the instances since `start`; a request counts once it has ended.

        An instance is starved from the end of a request until the arrival of its next; the time since its last
        request is not counted until one arrives, so that a finished run's figures stand.
        """
        every = self.instance_statistics()
        return PredictorStatistics(
            instances=len(every),
            calls=sum(s.calls for s in every),
            rows=sum(s.rows for s in every),
            failed_rows=sum(s.failed_rows for s in every),
            retries=sum(s.retries for s in every),
            busy_s=sum(s.busy_s for s in every),
            starved_s=sum(s.starved_s for s in every),
        )

    def instance_statistics(self) -> tuple[PredictorStatistics, ...]:
        """Each instance's own figures, in a fixed order."""
        return tuple(s.tally.snapshot() for s in self._life.slots)

    def model_statistics(self) -> ModelStatistics:
        """All that is counted, since `start`, and how things stand; safe from any thread."""
        life = self._life
        requests, rows, oldest_s, running = life.channel.waiting()
        ended_s = max((s.tally.ended_s for s in life.slots if s.tally.ended_s is not None), default=None)
        ago_s = 0.0 if ended_s is None else self._clock.now() - ended_s
        base = ModelStatistics(
            self.name,
            self.version or "",
            instances=len(life.slots),
            last_inference_ms=0 if ended_s is None else round((time.time() - ago_s) * 1000),
            cancelled=life.channel.cancelled,
            refused=life.refused,
            uptime_s=self._clock.now() - life.began_s if self.running else 0.0,
            waiting_requests=requests,
            waiting_rows=rows,
            oldest_waiting_s=oldest_s,
            in_flight=requests + running,
            open_streams=sum(len(s.streams) for s in life.slots),
        )
        return total([*(s.tally for s in life.slots), life.tally], base)

    # Instances' threads

    def _serve(self, life: _Life, slot: _Slot) -> None:
        """An instance's thread: load, then answer until stopped."""
        try:
            self._load(life, slot)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that starts
            if slot.backend is not None:
                slot.backend.close()
            self._report_loaded(life, error)
            return
        self._report_loaded(life, None)
        assert slot.backend is not None
        try:
            self._answer_until_closed(life, slot, slot.backend)
        finally:
            slot.alive = False
            with life.lock:
                life.over = life.inline is not None
            slot.backend.close()
            with self._changed:
                life.ended += 1
                last = life.ended == len(life.slots)
            if last:
                # What an instance gave back when the others had ended already.
                self._drop(life, self._stopped("before this request began"))

    def _load(self, life: _Life, slot: _Slot) -> None:
        slot.backend = backend = self._placement.load()
        slot.instance = Instance(backend, self.name, self._clock, slot.tally)
        slot.revival = Revival(backend, self.name, self._clock)
        metadata = backend.metadata
        life.channel.resize(rows_max=metadata.max_batch_rows, delay_s=metadata.max_batch_delay_ms / 1000)
        if self._placement.inline(backend):
            life.inline = slot.instance
        slot.revival = Revival(backend, self.name, self._clock)
        slot.alive = True

    def _answer_until_closed(self, life: _Life, slot: _Slot, backend: Backend) -> None:
        taker = ThreadTaker()

        def lost() -> None:
            slot.alive = False
            taker.wake()

        backend.on_lost(lost)
        while (work := life.channel.take(taker, lambda: backend.lost)) is not None:
            died = isinstance(work, LookAgain) or not self._answer(life, slot, work)
            if died and not self._revived(life, slot):
                return

    def _report_loaded(self, life: _Life, error: BaseException | None) -> None:
        with self._changed:
            life.load_error = life.load_error or error
            life.loaded += 1
            self._changed.notify_all()

    def _answer(self, life: _Life, slot: _Slot, work: Work) -> bool:
        """Answer a batch; False when the instance died meanwhile."""
        tickets = [t for t in work.items if t.reply.begin()]
        try:
            if tickets:
                deliver(self._answered(life, slot, tickets, work.reason))
                assert slot.revival is not None
                slot.revival.proved()
        except InstanceLostError as lost:
            self._recover(life, slot, tickets, lost)
            return False
        finally:
            life.channel.ended(work)
        return True

    def _answered(
        self, life: _Life, slot: _Slot, tickets: Sequence[Ticket], why: str
    ) -> list[tuple[Ticket, Answer]]:
        assert slot.instance is not None
        tally = slot.tally
        began_s = self._clock.now()
        if tally.ended_s is not None:
            tally.starved_s += max(0.0, tickets[0].asked_s - tally.ended_s)
        try:
            answered = slot.instance.answer_all(tickets, lambda t: self._go_on(life, t))
        finally:
            tally.ended_s = ended_s = self._clock.now()
            tally.busy_s += ended_s - began_s
        tally.closed[why] = tally.closed.get(why, 0) + 1
        life.channel.settle([ticket for ticket, _ in answered])
        for ticket, answer in answered:
            self._count(tally, ticket, answer, began_s, ended_s)
        return answered

    def _count(self, tally: Tally, ticket: Ticket, answer: Answer, began_s: float, ended_s: float) -> None:
        tally.waited(began_s - ticket.asked_s)
        times = ticket.times
        if times is not None:
            times.asked_s, times.began_s, times.ended_s = ticket.asked_s, began_s, ended_s
        if not ticket.ended:
            return  # counted when it was withdrawn
        if isinstance(answer, InferResponse):
            failed_rows = len(answer.failures)
            tally.answered(ended_s - ticket.asked_s, rows=ticket.rows - failed_rows, failed_rows=failed_rows)
        elif isinstance(answer, DeadlineError):
            tally.expired += 1
        elif isinstance(answer, CancelledRequestError):
            tally.cancelled += 1
        else:
            tally.failed(ended_s - ticket.asked_s, rows=ticket.rows)

    def _recover(self, life: _Life, slot: _Slot, tickets: Sequence[Ticket], lost: InstanceLostError) -> None:
        """The instance died: what it had is asked once more, each request by itself."""
        again: list[Ticket] = []
        over: list[Ticket] = []
        for ticket in tickets:
            ticket.deaths += 1
            if ticket.deaths < 2:
                ticket.key = ticket  # shares a call with nobody: one of these may be what killed it
                again.append(ticket)
            else:
                over.append(ticket)
        self._lose(life, slot, over, lost)
        slot.alive = False
        life.channel.again(again)

    def _revived(self, life: _Life, slot: _Slot) -> bool:
        """Start an instance again whose process died; False when it is given up, or nobody wants it any more."""
        assert slot.revival is not None

        def wanted() -> bool:
            return not life.channel.dropped and (not life.hurry.is_set() or life.channel.waiting()[0] > 0)

        try:
            slot.revival.revive(life.hurry, wanted)
        except StoppedError:
            return False
        except BaseException as error:  # noqa: BLE001 - it is given up; what waits has other instances, or hears of it
            self._give_up(life, slot, error)
            return False
        slot.tally.restarts += 1
        slot.alive = True
        return True

    def _lose(self, life: _Life, slot: _Slot, tickets: Sequence[Ticket], lost: InstanceLostError) -> None:
        life.channel.settle(tickets)
        now = self._clock.now()
        for ticket in tickets:
            self._count(slot.tally, ticket, lost, now, now)
        deliver([(ticket, lost) for ticket in tickets])

    def _give_up(self, life: _Life, slot: _Slot, error: BaseException) -> None:
        """An instance takes nothing any more; without a last one nothing can be answered."""
        _log.error("an instance could not be started again", extra={"model": self.name}, exc_info=error)
        with self._changed:
            slot.given_up = True
            last = all(s.given_up for s in life.slots)
        if last:
            life.lost = f"its process died and could not be started again: {reason(error)}"
            self._drop(life, InstanceLostError(self.name, life.lost))

    def _answer_inline(self, life: _Life, instance: Instance, ticket: Ticket) -> Answer:
        """Call the model at once, on the caller's thread."""
        slot = life.slots[0]
        tally = slot.tally
        with life.lock:
            if life.over:
                return self._stopped("it is stopping")
            began_s = self._clock.now()
            ((_, answer),) = instance.answer_all((ticket,), lambda t: self._go_on(life, t))
            tally.ended_s = ended_s = self._clock.now()
            tally.busy_s += ended_s - began_s
            ticket.ended = True
            self._count(tally, ticket, answer, began_s, ended_s)
        return answer

    def _go_on(self, life: _Life, ticket: Ticket) -> None:
        """Raise when the request need not be answered any more."""
        if life.channel.dropped:
            raise self._stopped("while this request ran")
        if ticket.cancelled:
            raise gone(ticket)
        deadline = ticket.request.deadline
        if deadline is not None and self._clock.now() >= deadline:
            raise self._late(ticket.request)

    def _late(self, request: InferRequest) -> DeadlineError:
        name = f"request {request.id}" if request.id else "a request"
        return DeadlineError(f"model {self.name} did not answer {name} before its deadline")

    def _stopped(self, when: str) -> StoppedError:
        return StoppedError(f"model {self.name} is not running: {when}")


class _Nowhere:
    """The reply of a request whose caller is handed the answer."""

    loop = None

    def begin(self) -> bool:
        return True

    def give(self, answer: Answer) -> None:
        del answer


_NOWHERE = _Nowhere()


def _fitting(request: InferRequest, backend: Backend) -> InferRequest:
    """One request of a stream, as its model declares it. Raises ModelInputError."""
    if backend.inputs.declared:
        backend.inputs.check_names(request)
    return with_texts(request, backend.metadata.bytes_as, backend.metadata.name)


async def _all_fitting(
    requests: AsyncIterator[InferRequest], backend: Backend
) -> AsyncIterator[InferRequest]:
    async for request in requests:
        yield _fitting(request, backend)


async def _feed(requests: AsyncIterator[InferRequest], call: StreamCall) -> None:
    """Requests of a stream, on their way to its model."""
    error: BaseException | None = None
    try:
        async for request in requests:
            await call.requests.aput(request)
    except CancelledRequestError:
        return
    except asyncio.CancelledError:
        # These were not all requests: that must not look like their end.
        error = CancelledRequestError("whoever asked has gone")
        raise
    except BaseException as raised:  # noqa: BLE001 - the model's generator meets it where it waits for a request
        error = raised
    finally:
        call.requests.close(error)
