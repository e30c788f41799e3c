"""The engine: a Predictor around a Model, for callers in threads and in event loops.

A request goes to an idle instance at once; while all are busy it waits in one queue. Nothing is ever dropped
without an answer: a request ends with a response, an error, or its own cancellation.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from headrace.batching.adaptive import AdaptiveBatcher
from headrace.checkpoints.open import open_store
from headrace.checkpoints.store import KEEP_MS, CheckpointStore
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    HeadraceError,
    InstanceLostError,
    LimitError,
    ModelInputError,
    OverloadedError,
    SequenceError,
    StoppedError,
    UnsupportedError,
)
from headrace.core.model import Model
from headrace.core.predictor import PredictorStatistics
from headrace.core.sequence import SequenceInfo, SequenceLimits
from headrace.core.statistics import ModelStatistics, SequenceStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.engine.backend import Backend
from headrace.engine.channel import Channel
from headrace.engine.inline import NOWHERE
from headrace.engine.isolation import Placement
from headrace.engine.life import Life, State
from headrace.engine.settings import ServeSettings
from headrace.engine.steps.asks import rows_of
from headrace.engine.steps.channel import StepChannel
from headrace.engine.steps.respond import Responder
from headrace.engine.streams import AnswerStream, StreamCall
from headrace.engine.tally import total
from headrace.engine.texts import with_texts
from headrace.engine.ticket import FutureReply, LoopReply, RequestTimes, Ticket, gone, merge_key
from headrace.engine.worker import Worker

RETRY_AFTER_MAX_S = 30.0
REQUEST_ROWS_MAX = 1 << 20
"""Rows of one request that is asked: rows without values cost no bytes, so that the size of a body does not bound them."""

_NOT_NOW = "it is starting or stopping"


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
        sequences: Without `serving`, limits of a model with a `step` that are to be other than its own.
        open_checkpoints: Opens the store of checkpoints, at every start, in the place of what `serving` names; it is closed
            when the engine has stopped.
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
        sequences: Mapping[str, Any] | None = None,
        open_checkpoints: Callable[[], CheckpointStore] | None = None,
    ) -> None:
        if instances < 1:
            raise ConfigError(f"model {name}: instances must be 1 or more, not {instances}")
        settings = serving or ServeSettings(
            instances=instances, isolation="thread", warm_up=warm_up, sequences=sequences or {}
        )
        # One running and one waiting for each instance, and one for whichever instance is free first.
        most = 2 * settings.instances + 1 if in_flight_max is None else in_flight_max
        if most < 1:
            raise ConfigError(f"model {name}: in_flight_max must be 1 or more, not {most}")
        self.name = name
        self.version = version
        self.settings = settings
        self._merge = serving is not None
        self._in_flight_max = most
        self._open_checkpoints = open_checkpoints
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
        self._life = self._new_life(0)

    def _new_life(self, instances: int) -> Life:
        # Sizes are known when the model is loaded.
        batcher = AdaptiveBatcher[Ticket](rows_max=1, delay_s=0.0, merge=self._merge)
        channel = Channel(
            batcher,
            self._clock,
            in_flight_max=self._in_flight_max,
            queue_rows_max=self.settings.queue_rows_max,
        )
        return Life(self.name, self._clock, channel, self._changed, instances)

    def _step_channel(self, life: Life, backend: Backend) -> StepChannel:
        """Where requests wait for a model that has a `step`."""
        limits = backend.sequences
        # What `put` lets in must never be too much for one sequence: whoever puts waits instead.
        limits = replace(limits, requests_max=max(limits.requests_max, self._in_flight_max))
        return StepChannel(
            limits,
            self._clock,
            model=self.name,
            inputs=backend.inputs,
            respond=Responder(backend.check, self.name, backend.metadata.version),
            places=len(life.slots),
            merge=self._merge,
            in_flight_max=self._in_flight_max,
            queue_rows_max=self.settings.queue_rows_max,
            tell=life.tell,
            store=self._store(limits),
        )

    def _store(self, limits: SequenceLimits) -> CheckpointStore | None:
        if self._open_checkpoints is not None:
            return self._open_checkpoints()
        address = self.settings.checkpoints
        if address is None:
            return None
        model = f"{self.name}/{self.version}" if self.version else self.name
        return open_store(address, model, keep_ms=max(KEEP_MS, limits.idle_ms))

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
        return self._life.state is State.RUNNING

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
            self._changed.wait_for(lambda: self._life.state in (State.STOPPED, State.RUNNING))
            if self._life.state is State.RUNNING:
                return
            life = self._new_life(self.settings.instances)
            life.begin(lambda slot: Worker(life, slot, self._placement, self._step_channel).run())
            self._life = life
        try:
            self._wait_until_loaded(life)
        except BaseException:
            life.channel.drop()
            life.close_store()
            self._become(life, State.STOPPED)
            raise

    def _wait_until_loaded(self, life: Life) -> None:
        with self._changed:
            self._changed.wait_for(lambda: life.loaded == len(life.slots))
            if life.load_error is None and life.state is State.LOADING:
                life.began_s = self._clock.now()
                self._become(life, State.RUNNING)
                return
        life.channel.close()
        life.end()
        raise life.load_error or StoppedError(f"model {self.name} was stopped while it loaded")

    def _become(self, life: Life, state: State) -> None:
        with self._changed:
            life.state = state
            self._changed.notify_all()

    def stop(self, *, drain: bool = True) -> None:
        """Finish what was accepted, or fail it with StoppedError; then close the instances.

        Returns when their threads have ended, so it waits for a call in progress either way. Stopping without
        `drain` cuts short a stop that drains. Open streams are finished, or end with StoppedError, alike; finished they
        are once their callers have closed them. Not for a thread whose event loop has callers: they could not go on.
        """
        with self._changed:
            life = self._life
            if life.state is State.STOPPED:
                return
            life.state = State.STOPPING
        if drain:
            life.finish_streams()
            life.channel.close()
        else:
            life.cut_short()
        life.hurry.set()
        life.end()
        life.close_store()
        self._become(life, State.STOPPED)

    # Callers in threads

    def submit(
        self, request: InferRequest, *, alone: bool = False, strict: bool = False
    ) -> Future[InferResponse]:
        """Ask; blocks while `in_flight_max` requests are unanswered. Raises StoppedError when not running.

        `alone` has it called by itself, also where requests of others are joined: for whoever composes batches, and is to get
        the same predictions to the last bit whoever else asks. `strict` takes all or nothing, as `ask` does: one bad row
        fails the request, with RefusedRowsError where the model refused it, and PredictError where it raised.
        """
        life, backend = self._running_life("it must be started before it is asked")
        future: Future[InferResponse] = Future()
        try:
            rows = self._checked(backend, request)
        except ModelInputError as error:
            future.set_exception(error)
            return future
        reply = FutureReply(future)
        key = merge_key(request.inputs) if self._merge else None
        ticket = Ticket(request, rows, self._clock.now(), reply, key=key, strict=strict)
        if alone or (strict and backend.metadata.whole_requests):
            ticket.key = ticket
        if life.steps is not None:
            try:
                life.steps.put(ticket, future)
            except HeadraceError as error:
                if isinstance(error, StoppedError):
                    raise
                life.count_refused(ticket, error)
                future.set_exception(error)
        elif life.inline is None:
            life.channel.put(ticket, future)
        else:
            reply.give(life.inline.answer(ticket))
        return future

    def abandon(self, future: Future[InferResponse]) -> None:
        """Nobody wants the answer of this future of `submit` any more. Any thread, at any time, as often as one likes.

        The future ends at once, unless it has ended or is about to: cancelled when its request had not begun, else with
        CancelledRequestError. A request that waits leaves the queue. When nobody is left who wants the call that a request is in,
        the model is told (`current_call`); in a process of its own it then has `cancel_grace_s` to end it, and is killed
        and started again beyond. Whoever shares the call keeps it alive, for `call_timeout_s` where that is set.
        """
        if future.cancel():
            return
        life = self._life
        ticket = life.channel.abandon(future)
        if ticket is None:
            return
        with life.counting:
            life.tally.cancelled += 1
        FutureReply(future).give(gone(ticket))
        life.tell_gone()

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
        ticket.key = ticket if backend.metadata.whole_requests else merge_key(request.inputs)
        if times is not None:
            times.asked_s = now
        self._admit(life, ticket)
        left_s = None if request.deadline is None else request.deadline - now
        return await self._answer_of(life, ticket, reply, left_s)

    def ask_now(self, request: InferRequest, times: RequestTimes | None = None) -> InferResponse | None:
        """What `ask` comes to, of a model that is called inline, on the caller's thread; None: it takes waiting, so `ask`."""
        life = self._life
        inline = life.inline
        if inline is None:
            return None
        if times is None and life.state is State.RUNNING:
            response = inline.answer_plainly(request)
            if response is not None:
                return response
        life, backend = self._running_life(_NOT_NOW)
        request, rows, now = self._taken(life, backend, request)
        answer = inline.answer(Ticket(request, rows, now, NOWHERE, strict=True, times=times))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _taken(self, life: Life, backend: Backend, request: InferRequest) -> tuple[InferRequest, int, float]:
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
            raise life.late(request)
        return request, rows, now

    async def _answer_of(
        self, life: Life, ticket: Ticket, reply: LoopReply, left_s: float | None
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
            raise life.late(ticket.request) from None

    def _admit(self, life: Life, ticket: Ticket) -> None:
        most = self.settings.queue_rows_max
        try:
            if life.channel.offer(ticket):
                return
        except StoppedError:
            raise life.stopped("it is stopping, or has lost its instances") from None
        except SequenceError as error:
            life.count_refused(ticket, error)
            raise
        with life.counting:
            life.refused += 1
        _, rows, _, _ = life.channel.waiting()
        raise OverloadedError(
            f"model {self.name}: {rows} rows wait already, and at most {most} may (queue_rows_max): ask again later",
            retry_after_s=self._retry_after_s(life, rows),
        )

    def _retry_after_s(self, life: Life, rows: int) -> float:
        """How long the rows that wait will take, by how long rows took so far."""
        done = sum(s.tally.rows + s.tally.failed_rows for s in life.slots)
        busy_s = sum(s.tally.busy_s for s in life.slots)
        row_s = busy_s / done if done else 0.01
        return min(max(rows * row_s / len(life.slots), 0.1), RETRY_AFTER_MAX_S)

    def _withdraw(self, life: Life, ticket: Ticket, reply: LoopReply) -> bool:
        """Whoever asked has gone; whether the request had not ended, and been counted, before."""
        waited = life.channel.withdraw(ticket)
        reply.forget()
        if ticket.cancelled and not waited:
            life.tell_gone()
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
        more_fitting = None if more is None else _all_fitting(more, backend)
        loop = asyncio.get_running_loop()
        call = StreamCall(self._clock, deadline=first.deadline, id=first.id)
        call.requests.offer(first)
        slot = life.slot_for(call, self.settings.streams_max)
        try:
            if life.steps is not None:
                life.open_step_stream(call, life.steps, single=more is None)
            else:
                assert slot.backend is not None
                slot.backend.open_stream(call)
        except BaseException:
            life.stream_over(slot, call)
            raise
        with life.counting:
            slot.tally.streams += 1
        feeding: asyncio.Task[None] | None = None
        if more_fitting is None:
            call.requests.close()
        else:
            feeding = loop.create_task(_feed(more_fitting, call))
        return AnswerStream(call, feeding, lambda call: life.stream_over(slot, call))

    # Sequences

    def sequences(self, most: int | None = None) -> tuple[SequenceInfo, ...]:
        """The living sequences that have an id, the oldest first, at most so many; none, of a model without a `step`. Any thread."""
        steps = self._life.steps
        return () if steps is None else steps.sequences(most)

    def cancel_sequence(self, id: str) -> bool:
        """End the sequence of this id, with all that waits for it; whether it lived. Any thread."""
        life = self._life
        if life.steps is None or not life.steps.cancel(id):
            return False
        life.tell_gone()
        return True

    # Both

    def _running_life(self, why: str) -> tuple[Life, Backend]:
        life = self._life
        backend = life.backend
        if life.state is not State.RUNNING or backend is None:
            raise life.stopped(why)
        if life.lost is not None:
            raise InstanceLostError(self.name, life.lost)
        return life, backend

    def _checked(self, backend: Backend, request: InferRequest) -> int:
        if not backend.metadata.predicts:
            raise ModelInputError(self.name, "it only streams: it has a predict_stream, but no predict")
        if backend.metadata.steps:
            return rows_of(request, backend.inputs)
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
            sequences=None if life.steps is None else _sequence_statistics(life.steps),
        )
        return total([*(s.tally for s in life.slots), life.tally], base)


def _sequence_statistics(steps: StepChannel) -> SequenceStatistics:
    ends = {str(why): count for why, count in steps.ends().items()}
    return SequenceStatistics(steps.live, steps.limits.live_max, ends, steps.refused())


def _fitting(request: InferRequest, backend: Backend) -> InferRequest:
    """One request of a stream, as its model declares it. Raises ModelInputError."""
    if backend.inputs.declared and not backend.metadata.steps:
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
