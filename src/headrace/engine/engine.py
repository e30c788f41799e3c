"""The engine: a Predictor around a Model, for clients in threads and in event loops.

A request goes to an idle instance at once. While all instances are busy, it waits in one queue.
Every request ends with a response, an error or its own cancellation.
"""

import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from typing_extensions import override

from headrace.checkpoints import open_store
from headrace.checkpoints.store import KEEP_MS, CheckpointStore
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    ConfigError,
    StoppedError,
    UnsupportedError,
)
from headrace.core.model import HandleRequest, HandleResponse, Model
from headrace.core.predictor import Predictor, PredictorStatistics, RequestTimes
from headrace.core.sequence import SequenceInfo, SequenceLimits
from headrace.core.statistics import InstanceDeath, ModelStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.engine.admission import (
    ResponseStream,
    abandon,
    handle,
    infer,
    infer_inline,
    open_chunks,
    open_stream,
    running_backend,
    submit,
)
from headrace.engine.backend import Backend
from headrace.engine.backend_factory import BackendFactory
from headrace.engine.counters import predictor_statistics
from headrace.engine.instance_slot import InstanceSlot
from headrace.engine.instance_worker import InstanceWorker
from headrace.engine.live_traffic import LiveTraffic
from headrace.engine.outputs import ChunkedResponse, ResponseBuilder
from headrace.engine.resizing import set_instances, withdraw_inline
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.sequences.sequence_store import MonitoredStore
from headrace.engine.session import EngineSession, SessionState
from headrace.engine.settings import INSTANCES_MAX, ServeSettings


class Engine(Predictor):
    """A model served by one or more instances. `infer` and `stream` are for event loops.

    `make_model` is called once per instance, in the thread of the instance. There the model is
    loaded, warmed up, called and closed. The default warm-up is one row of zeros, if the sizes of
    the inputs are known. The engine can be started again after `stop`.

    A request of more than `max_batch_rows` rows is predicted in several calls of one instance. A
    batch on which the model raises (also MemoryError) is bisected, so that only the guilty rows
    fail. KeyboardInterrupt, SystemExit and the like fail the request with PredictError; the
    instance goes on. A request that does not fit the model's inputs fails with ModelInputError,
    without a call.

    Deadlines are checked before every call of the model and when a request is complete. An expired
    request is never begun. It fails with DeadlineError when the call in progress ends, at the
    latest; `infer` raises DeadlineError at once.

    With `serving` and `merge`, requests that can share a call of the model share it. Else each request
    has a call of its own, so that the input of the model depends on the client alone.

    Futures are set in the threads of instances, and their callbacks run there. A callback must be
    short and must not `submit`: it might wait for space that only its own thread can free.

    Args:
        make_model: A Model subclass, or a function that makes one.
        name: The model's name in responses, errors and logs.
        version: The model's version in responses.
        instances: Number of copies of the model, each with a thread; `serving` has its own.
        in_flight_max: Limit of unanswered `submit` requests; default: 2 per instance, plus 1.
        fingerprint: A text that changes with the model's file or code, for `metadata`.
        clock: The clock of deadlines, busy time and starved time.
        warm_up: Call `Model.warm_up`, or predict a row of zeros, before the instance is ready.
        serving: How requests of many clients are queued, batched and placed.
        merge: With `serving`: let requests share calls.
        sequences: Without `serving`: limits of a model with a `step` that replace the model's own.
        open_checkpoints: Opens the checkpoint store at every start, instead of the store that
            `serving` names. The engine closes the store when it has stopped.
        load_lock: Held while an instance loads in this process; default: a lock of this engine.
        finds_broken_model: Fail one of the first requests of `submit` with BrokenModelError, after
            few calls, if the model raises the same unexpected exception for all of its rows and for
            each of some rows alone. The client then decides. It may submit the request again, with
            the same id, until each bad row is found: once for each instance at most.
        traffic: The live traffic of this process: requests of `submit` keep to the share that it
            leaves, and the latency limit of `serving` is part of it.
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
        merge: bool = True,
        sequences: Mapping[str, Any] | None = None,
        open_checkpoints: Callable[[], CheckpointStore] | None = None,
        load_lock: "threading.Lock | None" = None,
        finds_broken_model: bool = False,
        traffic: LiveTraffic | None = None,
    ) -> None:
        if instances < 1:
            raise ConfigError(f"model {name}: instances must be 1 or more, not {instances}")
        settings = serving or ServeSettings(
            instances=instances, isolation="thread", warm_up=warm_up, sequences=sequences or {}
        )
        # One running and one waiting request per instance, and one for the instance that is free first.
        limit = 2 * settings.instances + 1 if in_flight_max is None else in_flight_max
        if limit < 1:
            raise ConfigError(f"model {name}: in_flight_max must be 1 or more, not {limit}")
        self.name = name
        self.version = version
        self.settings = settings
        self._merge = merge and serving is not None
        self._finds_broken_model = finds_broken_model
        self._in_flight_max = limit
        self._traffic = traffic
        self._open_checkpoints = open_checkpoints
        self._clock = clock or SystemClock()
        self._backend_factory = BackendFactory(
            make_model,
            name,
            version=version,
            fingerprint=fingerprint,
            settings=settings,
            clock=self._clock,
            load_lock=load_lock or threading.Lock(),
        )
        self._changed = threading.Condition()
        self._resizing = threading.Lock()
        """Held while the number of instances changes."""
        self._session = self._new_session(0)

    def _new_session(self, instances: int) -> EngineSession:
        limit_ms = self.settings.latency_limit_ms
        return EngineSession(
            self.name,
            self._clock,
            self._changed,
            instances,
            merge=self._merge,
            in_flight_max=self._in_flight_max,
            queue_rows_max=self.settings.queue_rows_max,
            finds_broken_model=self._finds_broken_model,
            traffic=self._traffic if instances else None,
            latency_limit_s=None if limit_ms is None else limit_ms / 1000,
        )

    @property
    @override
    def metadata(self) -> ModelMetadata:
        """The model's metadata. Raises StoppedError before the first `start`."""
        slots = self._session.slots
        backend = slots[0].backend if slots else None
        if backend is None:
            raise StoppedError(f"model {self.name} is not loaded: start the engine first")
        return backend.metadata

    @property
    @override
    def in_flight_max(self) -> int:
        """Limit of unanswered `submit` requests; `submit` blocks beyond it."""
        return self._in_flight_max

    @property
    def running(self) -> bool:
        """Return True while requests are accepted."""
        return self._session.state is SessionState.RUNNING

    @property
    def alive(self) -> bool:
        """Return True while requests are accepted and every instance is alive."""
        return self.running and all(slot.alive for slot in self._session.members)

    @property
    def lost_reason(self) -> str | None:
        """Return the reason why no instance is left, or None while one is alive or restarting."""
        return self._session.lost_reason

    @property
    def last_death(self) -> InstanceDeath | None:
        """The last death of an instance since the start that was not intended."""
        return self._session.last_death

    @property
    def ready(self) -> bool:
        """Return True while the engine is alive and its checkpoint store, if any, can be reached."""
        sequences = self._session.sequences
        store = None if sequences is None else sequences.store
        return self.alive and (store is None or bool(store.available))

    # Starting and stopping

    @override
    def start(self) -> None:
        """Make, load and warm up all instances. Returns when every instance is ready.

        Takes as long as loading takes. Raises ModelLoadError (or MissingExtraError) if an instance
        fails, and StoppedError if `stop` was called meanwhile. Then no instance is left running.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._session.state in (SessionState.STOPPED, SessionState.RUNNING)
            )
            if self._session.state is SessionState.RUNNING:
                return
            session = self._new_session(self.settings.instances)
            self._backend_factory.instances = self.settings.most_instances
            session.start_threads(partial(self._run_instance, session))
            self._session = session
        session.begin()

    def _run_instance(self, session: EngineSession, slot: InstanceSlot) -> None:
        make_sequences = partial(_make_sequences, self, self._open_checkpoints)
        InstanceWorker(session, slot, self._backend_factory, make_sequences).run()

    def set_instances(self, count: int, most: int = 1) -> None:
        """Change the number of instances until the next `start`, while requests go on; none fails.

        Returns when added instances serve. A removed instance takes no more requests. It ends when its
        requests, its streams and the sequences whose states it holds have ended; sequences with
        checkpoints move to other instances. A model that was called inline is called in threads from
        then on, if it gets several instances, or may get up to `most` later.

        Raises ConfigError for a number that the model cannot have, StoppedError while the engine does
        not run, InstanceLostError once no instance is left, and ModelLoadError (or MissingExtraError)
        if an instance does not load; then the number stays as it was.
        """
        if not 1 <= count <= INSTANCES_MAX:
            raise ConfigError(f"model {self.name}: instances must be 1 to {INSTANCES_MAX}, not {count}")
        factory = self._backend_factory
        with self._resizing:
            most = max(count, most)
            factory.check_instances(most)
            before, factory.instances = factory.instances, most
            session = self._session
            try:
                set_instances(session, count, partial(self._run_instance, session))
            except BaseException:
                factory.instances = before
                raise
            if most > 1:
                withdraw_inline(session)

    def instance_counts(self) -> tuple[int, int, int]:
        """Return the numbers of instances that serve or load, of ready and of draining ones. Any thread."""
        slots = list(self._session.slots)
        loading = sum(not slot.is_loaded and not slot.is_member for slot in slots)
        members = [slot for slot in slots if slot.is_member]
        ready = sum(slot.alive for slot in members)
        return len(members) + loading, ready, sum(slot.is_draining for slot in slots)

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Finish the accepted requests, or fail them with StoppedError; then close the instances.

        Returns when the threads of the instances have ended, so it waits for a call in progress
        either way. A stop without `drain` cuts short a stop that drains. Open streams are finished,
        or end with StoppedError, alike; a stream is finished once its client has closed it. Do not
        call it in a thread whose event loop has clients of this engine: they could not proceed.
        """
        with self._changed:
            session = self._session
            if session.state is SessionState.STOPPED:
                return
            session.state = SessionState.STOPPING
        session.end(drain=drain)

    # Clients in threads

    @override
    def submit(
        self,
        request: InferRequest,
        *,
        alone: bool = False,
        strict: bool = False,
        times: RequestTimes | None = None,
    ) -> Future[InferResponse]:
        """Queue a request; block while `in_flight_max` requests are unanswered. Raises StoppedError.

        It goes after all waiting requests of `infer`, in calls of its own, and keeps to the share of the
        time that live requests leave.

        With `alone` the request has a call of its own, also where requests of others share calls.
        It is for clients that compose batches and need predictions that are identical to the last
        bit. With `strict` the request succeeds or fails as a whole, as with `infer`: one bad row
        fails the request with RefusedRowsError if the model refused the row, and with PredictError
        if the model raised. `times` are filled in, if given.
        """
        session = self._session
        backend = running_backend(session, "start the engine first")
        return submit(session, backend, request, merge=self._merge, alone=alone, strict=strict, times=times)

    def abandon(self, future: Future[InferResponse]) -> None:
        """Give up a future of `submit`. Any thread, at any time, any number of times.

        The future ends at once, unless it has ended or is about to: cancelled if its request had
        not begun, else with CancelledRequestError. A waiting request leaves the queue. If no client
        is left that wants the call in progress, the model can see it (`current_call`). A model in a
        process of its own then has `cancel_grace_s` to end the call; beyond, the process is killed
        and restarted. Other requests of the same call keep it alive, for `call_timeout_s` if that
        is set.
        """
        abandon(self._session, future)

    # Clients in event loops

    async def infer(self, request: InferRequest, times: RequestTimes | None = None) -> InferResponse:
        """Return the response to a request, from an event loop. Never blocks or waits for space.

        One bad row fails the request. Cancellation takes a waiting request out of the queue. Raises
        ModelInputError if the request does not fit the model, LimitError beyond 1,048,576
        rows, OverloadedError if too many rows wait, DeadlineError as soon as the deadline has
        passed, PredictError for an exception of the model, RefusedRowsError for rows that the model
        refused, and StoppedError. `times` are filled in, if given.
        """
        session = self._session
        if session.inline is not None and (response := self.infer_inline(request, times)) is not None:
            return response
        return await infer(session, running_backend(session), request, times)

    def infer_inline(self, request: InferRequest, times: RequestTimes | None = None) -> InferResponse | None:
        """Return the response of an inline model, on the client's thread, as `infer` does.

        Return None if the model is not called inline, or its instance is lost: call `infer` instead.
        """
        session = self._session
        inline = session.inline
        if inline is None:
            return None
        if times is None and session.state is SessionState.RUNNING:
            response = inline.call_fast(request)
            if response is not None:
                return response
        return infer_inline(session, running_backend(session), inline, request, times)

    async def handle(self, request: HandleRequest) -> tuple[HandleResponse, ResponseStream[bytes] | None]:
        """Return the response to an opaque request, from an event loop, and the chunks of its body.

        The chunks are None if the body is whole. Requests share calls by their number. Cancellation
        takes a waiting request out of the queue; always `aclose` the chunks. Raises UnsupportedError
        for a model without `handle`, and the errors of `infer`, also OverloadedError for a body of
        chunks while `streams_max` streams are open.
        """
        session = self._session
        backend = running_backend(session)
        if not backend.metadata.can_handle:
            raise UnsupportedError(f"model {self.name} takes no opaque requests: it has no handle")
        result = await handle(session, request)
        if isinstance(result, ChunkedResponse):
            return result.response, open_chunks(session, request, result, self.settings.streams_max)
        return result, None

    def stream(
        self, first: InferRequest, more: AsyncIterator[InferRequest] | None = None
    ) -> ResponseStream[InferResponse]:
        """Open a stream, from an event loop. `first`, then the requests of `more`, go to the model.

        Raises UnsupportedError for a model that has no `predict_stream`, ModelInputError for a
        first request that does not fit the declared inputs, OverloadedError while `streams_max`
        streams are open, and StoppedError. An invalid later request, and an exception of `more`,
        end the stream with that error.
        """
        session = self._session
        backend = running_backend(session)
        if not backend.metadata.can_stream:
            raise UnsupportedError(f"model {self.name} cannot stream: it has no predict_stream")
        return open_stream(session, backend, first, more, self.settings.streams_max)

    # Sequences

    def sequences(self, limit: int | None = None) -> tuple[SequenceInfo, ...]:
        """Return the live sequences that have an id, oldest first, up to a limit. Any thread.

        A model without a `step` has none.
        """
        sequences = self._session.sequences
        return () if sequences is None else sequences.sequences(limit)

    def cancel_sequence(self, id: str, namespace: str = "") -> bool:
        """End a sequence and cancel its waiting requests, in any thread. Return True if it was live."""
        session = self._session
        if session.sequences is None or not session.sequences.cancel(id, namespace):
            return False
        session.cancel_unwanted_calls()
        return True

    # Checks and statistics

    @override
    def statistics(self) -> PredictorStatistics:
        """Return the sums over the instances since `start`. A request counts once it has ended.

        An instance is starved from the end of a request until the arrival of its next request. The
        time since its last request counts only when the next one arrives, so that the figures of a
        finished run do not change.
        """
        session = self._session
        return predictor_statistics([slot.counters for slot in session.slots], instances=len(session.members))

    def model_statistics(self) -> ModelStatistics:
        """Return all counters since `start` and the current gauges. Any thread."""
        return self._session.statistics(self.version)


def _make_sequences(
    engine: Engine,
    open_checkpoints: Callable[[], CheckpointStore] | None,
    session: EngineSession,
    backend: Backend,
) -> SequenceSchedule:
    """Return the schedule of a model that has a `step`."""
    limits = backend.sequences
    # A request that `put` accepts must never exceed the limit of one sequence; `put` blocks instead.
    limits = replace(limits, requests_max=max(limits.requests_max, engine.in_flight_max))
    store = (open_checkpoints or partial(_open_store, engine, limits))()
    return SequenceSchedule(
        limits,
        session.clock,
        session.queue,
        model=engine.name,
        inputs=backend.inputs,
        respond=ResponseBuilder(backend.check, backend.metadata),
        instances=len(session.slots),
        merge=session.merge,
        deliver_results=session.deliver_results,
        store=None if store is None else MonitoredStore(store, session.clock, model=engine.name),
        # A store in this process would grow without a limit.
        evicts_saved=open_checkpoints is not None or engine.settings.checkpoints != "memory:",
    )


def _open_store(engine: Engine, limits: SequenceLimits) -> CheckpointStore | None:
    """Open the checkpoint store that the settings of an engine name, if any."""
    address = engine.settings.checkpoints
    if address is None:
        return None
    model = f"{engine.name}/{engine.version}" if engine.version else engine.name
    return open_store(address, model, keep_ms=max(KEEP_MS, limits.idle_ms))
