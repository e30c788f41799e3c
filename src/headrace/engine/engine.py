"""The engine: a Predictor around a Model, with instances in threads.

A request goes to an idle instance at once; while all are busy it waits in one queue. Nothing is ever dropped
without an answer: a request ends with a response, an error, or its own cancellation.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    ConfigError,
    DeadlineError,
    HeadraceError,
    ModelInputError,
    PredictError,
    StoppedError,
)
from headrace.core.model import Model
from headrace.core.predictor import PredictorStatistics, settle
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.engine.channel import Channel, Ticket
from headrace.engine.inputs import ModelInputs
from headrace.engine.instance import Instance, reason

_log = logging.getLogger("headrace.engine")


class _State(Enum):
    STOPPED = auto()
    LOADING = auto()
    RUNNING = auto()
    STOPPING = auto()


@dataclass(slots=True)
class _Tally:
    """One instance's figures so far; written by its own thread, read by any."""

    calls: int = 0
    rows: int = 0
    failed_rows: int = 0
    retries: int = 0
    busy_s: float = 0.0
    starved_s: float = 0.0
    ended_s: float | None = None
    """When its last request ended."""

    def snapshot(self) -> PredictorStatistics:
        return PredictorStatistics(
            instances=1,
            calls=self.calls,
            rows=self.rows,
            failed_rows=self.failed_rows,
            retries=self.retries,
            busy_s=self.busy_s,
            starved_s=self.starved_s,
        )


class _Life:
    """What one start makes and its stop ends: threads around a channel, and how their loading went."""

    def __init__(self, in_flight_max: int, instances: int) -> None:
        self.channel = Channel(in_flight_max)
        self.tallies = [_Tally() for _ in range(instances)]
        self.threads: list[threading.Thread] = []
        self.loaded = 0
        self.load_error: BaseException | None = None
        self.metadata: ModelMetadata | None = None
        self.inputs: ModelInputs | None = None

    def begin(self, serve: "Callable[[_Life, _Tally], None]", name: str) -> None:
        """Start a thread for each instance; when one cannot be had, the others end by themselves."""
        try:
            for i, tally in enumerate(self.tallies):
                thread = threading.Thread(target=serve, args=(self, tally), name=f"{name}-{i}", daemon=True)
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
    """Implements `headrace.core.Predictor`; see there for what is guaranteed.

    `make_model` is called once per instance, in the instance's own thread, where the model is loaded, warmed up
    (with a row of zeros, where it leaves that to us and its inputs' sizes are known), called and closed. May be
    started again after `stop`.

    A request of more than `max_batch_rows` rows is answered in several calls of one instance. A batch on which the
    model raises (also MemoryError) is bisected, so that only guilty rows fail; KeyboardInterrupt, SystemExit and
    the like fail the request with PredictError and leave the instance running. Requests that do not fit the
    model's inputs fail with ModelInputError, without a call.

    Deadlines are looked at before every call of the model and when the request is answered: one that has
    passed is never begun, and fails with DeadlineError no later than the call in progress ends.

    Futures are set, and their callbacks run, in instances' threads: a callback must be short, and must not
    `submit` (it might wait for room that only its own thread can make).

    Args:
        make_model: A Model subclass, or a function that makes one.
        name: The model's name in responses, errors and logs.
        instances: How many copies of the model, each with a thread.
        in_flight_max: The most requests unanswered at once; by default 2 per instance and one more.
        fingerprint: What changes with the model's file or code, for `metadata`.
        clock: Tells deadlines, busy and starved time.
        warm_up: Whether to call `Model.warm_up`, or a row of zeros, before the instance is ready.
    """

    def __init__(
        self,
        make_model: Callable[[], Model],
        *,
        name: str,
        instances: int = 1,
        in_flight_max: int | None = None,
        fingerprint: str = "",
        clock: Clock | None = None,
        warm_up: bool = True,
    ) -> None:
        # One running and one waiting for each instance, and one for whichever instance is free first.
        most = 2 * instances + 1 if in_flight_max is None else in_flight_max
        if instances < 1 or most < 1:
            raise ConfigError(
                f"model {name}: instances and in_flight_max must be 1 or more, not {instances} and {most}"
            )
        self.name = name
        self._make_model = make_model
        self._instances = instances
        self._in_flight_max = most
        self._fingerprint = fingerprint
        self._clock = clock or SystemClock()
        self._warm_up = warm_up
        self._changed = threading.Condition()
        self._state = _State.STOPPED
        self._life = _Life(most, 0)

    @property
    def metadata(self) -> ModelMetadata:
        """The model's; StoppedError before the first `start`."""
        metadata = self._life.metadata
        if metadata is None:
            raise StoppedError(f"model {self.name} is not loaded: start the engine first")
        return metadata

    @property
    def in_flight_max(self) -> int:
        """The most requests unanswered at once; `submit` blocks beyond."""
        return self._in_flight_max

    def start(self) -> None:
        """Make, load and warm up all instances; returns when every one is ready.

        Takes as long as loading takes. Raises ModelLoadError (or MissingExtraError) when one fails, and StoppedError when
        `stop` was called meanwhile; then no instance is left running.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state in (_State.STOPPED, _State.RUNNING))
            if self._state is _State.RUNNING:
                return
            life = _Life(self._in_flight_max, self._instances)
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
            self._changed.wait_for(lambda: life.loaded == self._instances)
            stopped = self._life is not life or self._state is not _State.LOADING
            if life.load_error is None and not stopped:
                self._state = _State.RUNNING
                self._changed.notify_all()
                return
        life.channel.close()
        life.end()
        raise life.load_error or StoppedError(f"model {self.name} was stopped while it loaded")

    def stop(self, *, drain: bool = True) -> None:
        """Finish what was accepted, or fail it with StoppedError; then close the instances.

        Returns when their threads have ended, so it waits for a call in progress either way. Stopping without
        `drain` cuts short a stop that drains.
        """
        with self._changed:
            life = self._life
            if self._state is _State.STOPPED:
                return
            self._state = _State.STOPPING
        life.channel.close()
        if not drain:
            for ticket in life.channel.drop():
                self._fail_waiting(ticket)
        life.end()
        self._become_stopped(life)

    def _fail_waiting(self, ticket: Ticket) -> None:
        if ticket.future.set_running_or_notify_cancel():
            self._settle(ticket, self._stopped("before this request began"))

    def _become_stopped(self, life: _Life) -> None:
        with self._changed:
            # Another life may have begun since: that one is not ours to end.
            if self._life is life:
                self._state = _State.STOPPED
            self._changed.notify_all()

    def submit(self, request: InferRequest) -> Future[InferResponse]:
        """Ask; blocks while `in_flight_max` requests are unanswered. Raises StoppedError when not running."""
        life = self._life
        if self._state is not _State.RUNNING or life.inputs is None:
            raise self._stopped("it must be started before it is asked")
        future: Future[InferResponse] = Future()
        try:
            rows = life.inputs.check(request)
        except ModelInputError as error:
            future.set_exception(error)
            return future
        life.channel.put(Ticket(request, rows, self._clock.now(), future))
        return future

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
        return tuple(t.snapshot() for t in self._life.tallies)

    # Instances' threads

    def _serve(self, life: _Life, tally: _Tally) -> None:
        """An instance's thread: load, then answer until stopped."""
        try:
            instance = Instance(self._make_model, self.name, warm_up=self._warm_up)
            metadata = instance.metadata(self._fingerprint)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that starts
            self._report_loaded(life, error)
            return
        life.metadata, life.inputs = metadata, instance.inputs
        self._report_loaded(life, None)
        try:
            while (ticket := life.channel.take()) is not None:
                self._answer(life, instance, ticket, tally)
        finally:
            instance.close()

    def _report_loaded(self, life: _Life, error: BaseException | None) -> None:
        with self._changed:
            life.load_error = life.load_error or error
            life.loaded += 1
            self._changed.notify_all()

    def _answer(self, life: _Life, instance: Instance, ticket: Ticket, tally: _Tally) -> None:
        if not ticket.future.set_running_or_notify_cancel():
            return
        began_s = self._clock.now()
        if tally.ended_s is not None:
            tally.starved_s += max(0.0, ticket.asked_s - tally.ended_s)
        answer: InferResponse | BaseException
        try:
            answer = instance.answer(ticket.request, ticket.rows, lambda: self._go_on(life, ticket))
            self._go_on(life, ticket)
        except HeadraceError as error:
            answer = error
        except BaseException as error:  # noqa: BLE001 - SystemExit in a model must not kill its thread
            answer = PredictError(self.name, reason(error))
            answer.__cause__ = error
        tally.ended_s = self._clock.now()
        tally.busy_s += tally.ended_s - began_s
        tally.calls, tally.retries = instance.calls, instance.retries
        if isinstance(answer, InferResponse):
            tally.rows += ticket.rows - len(answer.failures)
            tally.failed_rows += len(answer.failures)
        self._settle(ticket, answer)

    def _settle(self, ticket: Ticket, answer: InferResponse | BaseException) -> None:
        if (raised := settle(ticket.future, answer)) is not None:
            _log.error("a callback raised", extra={"model": self.name}, exc_info=raised)

    def _go_on(self, life: _Life, ticket: Ticket) -> None:
        """Raise when the request need not be answered any more."""
        if life.channel.dropped:
            raise self._stopped("while this request ran")
        deadline = ticket.request.deadline
        if deadline is not None and self._clock.now() >= deadline:
            name = f"request {ticket.request.id}" if ticket.request.id else "a request"
            raise DeadlineError(f"model {self.name} did not answer {name} before its deadline")

    def _stopped(self, when: str) -> StoppedError:
        return StoppedError(f"model {self.name} is not running: {when}")
