"""The engine: a Predictor around a Model, for clients in threads and in event loops.

A request goes to an idle instance at once. While all instances are busy, it waits in one queue.
Every request ends with a response, an error or its own cancellation.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

from typing_extensions import override

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
from headrace.core.handle import HandleRequest, HandleResponse
from headrace.core.model import Model
from headrace.core.predictor import Predictor, PredictorStatistics
from headrace.core.sequence import SequenceInfo, SequenceLimits
from headrace.core.statistics import ModelStatistics, SequenceStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.engine.backend import Backend
from headrace.engine.backend_factory import BackendFactory
from headrace.engine.counters import sum_counters
from headrace.engine.inline_caller import NO_CALLBACK
from headrace.engine.input_conversion import convert_inputs
from headrace.engine.instance_worker import InstanceWorker
from headrace.engine.opaque import ChunkedResponse
from headrace.engine.pending_request import (
    FutureCallback,
    LoopCallback,
    PendingRequest,
    RequestTimes,
    cancelled_error,
    merge_key,
)
from headrace.engine.responses import ResponseBuilder
from headrace.engine.sequences.sequence_rows import count_steps
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.session import EngineSession, SessionState
from headrace.engine.settings import ServeSettings
from headrace.engine.streams import ResponseStream, StreamCall

RETRY_AFTER_MAX_S = 30.0
REQUEST_ROWS_MAX = 1 << 20
"""Limit of rows per `infer` request. Rows without values cost no bytes, so the body size does not
limit them.
"""

_NOT_NOW = "it is starting or stopping"
_HANDLE = "handle"
"""The key of opaque requests, which share calls with each other only."""


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

    With `serving`, requests that can share a call of the model share it. Without, each request has
    a call of its own, so that the input of the model depends on the client alone.

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
        sequences: Without `serving`: limits of a model with a `step` that replace the model's own.
        open_checkpoints: Opens the checkpoint store at every start, instead of the store that
            `serving` names. The engine closes the store when it has stopped.
        load_lock: Held while an instance loads in this process; default: a lock of this engine.
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
        load_lock: "threading.Lock | None" = None,
    ) -> None:
        if instances < 1:
            raise ConfigError(f"model {name}: instances must be 1 or more, not {instances}")
        settings = serving or ServeSettings(
            instances=instances, isolation="thread", warm_up=warm_up, sequences=sequences or {}
        )
        # One running and one waiting request per instance, and one for the instance that is free
        # first.
        limit = 2 * settings.instances + 1 if in_flight_max is None else in_flight_max
        if limit < 1:
            raise ConfigError(f"model {name}: in_flight_max must be 1 or more, not {limit}")
        self.name = name
        self.version = version
        self.settings = settings
        self._merge = serving is not None
        self._in_flight_max = limit
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
        self._session = self._new_session(0)

    def _new_session(self, instances: int) -> EngineSession:
        return EngineSession(
            self.name,
            self._clock,
            self._changed,
            instances,
            merge=self._merge,
            in_flight_max=self._in_flight_max,
            queue_rows_max=self.settings.queue_rows_max,
        )

    def _make_sequences(self, session: EngineSession, backend: Backend) -> SequenceSchedule:
        """Return the schedule of a model that has a `step`."""
        limits = backend.sequences
        # A request that `put` accepts must never exceed the limit of one sequence; `put` blocks
        # instead.
        limits = replace(limits, requests_max=max(limits.requests_max, self._in_flight_max))
        return SequenceSchedule(
            limits,
            self._clock,
            session.queue,
            model=self.name,
            inputs=backend.inputs,
            respond=ResponseBuilder.of(backend),
            instances=len(session.slots),
            merge=self._merge,
            deliver_results=session.deliver_results,
            store=self._open_store(limits),
        )

    def _open_store(self, limits: SequenceLimits) -> CheckpointStore | None:
        if self._open_checkpoints is not None:
            return self._open_checkpoints()
        address = self.settings.checkpoints
        if address is None:
            return None
        model = f"{self.name}/{self.version}" if self.version else self.name
        return open_store(address, model, keep_ms=max(KEEP_MS, limits.idle_ms))

    @property
    @override
    def metadata(self) -> ModelMetadata:
        """The model's metadata. Raises StoppedError before the first `start`."""
        backend = self._session.backend
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
        return self.running and all(slot.alive for slot in self._session.slots)

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
            session.start_threads(
                lambda slot: InstanceWorker(session, slot, self._backend_factory, self._make_sequences).run()
            )
            self._session = session
        try:
            self._wait_until_loaded(session)
        except BaseException:
            session.queue.drop()
            session.close_store()
            self._set_state(session, SessionState.STOPPED)
            raise

    def _wait_until_loaded(self, session: EngineSession) -> None:
        with self._changed:
            self._changed.wait_for(lambda: session.loaded == len(session.slots))
            if session.load_error is None and session.state is SessionState.LOADING:
                session.began_s = self._clock.now()
                self._set_state(session, SessionState.RUNNING)
                return
        session.queue.close()
        session.join_threads()
        raise session.load_error or StoppedError(f"model {self.name} was stopped while it loaded")

    def _set_state(self, session: EngineSession, state: SessionState) -> None:
        with self._changed:
            session.state = state
            self._changed.notify_all()

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
        if drain:
            session.wait_for_streams()
            session.queue.close()
        else:
            session.abort()
        session.stop_requested.set()
        session.join_threads()
        session.close_store()
        self._set_state(session, SessionState.STOPPED)

    # Clients in threads

    @override
    def submit(
        self, request: InferRequest, *, alone: bool = False, strict: bool = False
    ) -> Future[InferResponse]:
        """Queue a request; block while `in_flight_max` requests are unanswered.

        Raises StoppedError.

        With `alone` the request has a call of its own, also where requests of others share calls.
        It is for clients that compose batches and need predictions that are identical to the last
        bit. With `strict` the request succeeds or fails as a whole, as with `infer`: one bad row
        fails the request with RefusedRowsError if the model refused the row, and with PredictError
        if the model raised.
        """
        session, backend = self._running_session("start the engine first")
        future: Future[InferResponse] = Future()
        try:
            rows = self._check_rows(backend, request)
        except ModelInputError as error:
            future.set_exception(error)
            return future
        callback = FutureCallback(future)
        key = merge_key(request.inputs) if self._merge else None
        entry = PendingRequest(request, rows, self._clock.now(), callback, key=key, strict=strict)
        if alone or (strict and backend.metadata.whole_requests):
            entry.key = entry
        if session.inline is not None:
            callback.complete(session.inline.call(entry))
            return future
        try:
            session.queue.put(entry, future)
        except StoppedError:
            raise
        except HeadraceError as error:
            session.count_refused(entry, error)
            future.set_exception(error)
        return future

    def abandon(self, future: Future[InferResponse]) -> None:
        """Give up a future of `submit`. Any thread, at any time, any number of times.

        The future ends at once, unless it has ended or is about to: cancelled if its request had
        not begun, else with CancelledRequestError. A waiting request leaves the queue. If no client
        is left that wants the call in progress, the model can see it (`current_call`). A model in a
        process of its own then has `cancel_grace_s` to end the call; beyond, the process is killed
        and restarted. Other requests of the same call keep it alive, for `call_timeout_s` if that
        is set.
        """
        if future.cancel():
            return
        session = self._session
        entry = session.queue.abandon(future)
        if entry is None:
            return
        with session.counters_lock:
            session.counters.cancelled += 1
        FutureCallback(future).complete(cancelled_error(entry))
        session.cancel_unwanted_calls()

    # Clients in event loops

    async def infer(self, request: InferRequest, times: RequestTimes | None = None) -> InferResponse:
        """Return the response to a request, from an event loop.

        Never blocks and never waits for space.

        One bad row fails the request. Cancellation takes a waiting request out of the queue. Raises
        ModelInputError if the request does not fit the model, LimitError beyond REQUEST_ROWS_MAX
        rows, OverloadedError if too many rows wait, DeadlineError as soon as the deadline has
        passed, PredictError for an exception of the model, RefusedRowsError for rows that the model
        refused, and StoppedError. `times` are filled in, if given.
        """
        response = self.infer_inline(request, times)
        if response is not None:
            return response
        session, backend = self._running_session(_NOT_NOW)
        request, rows, now = self._prepare(session, backend, request)
        loop = asyncio.get_running_loop()
        callback = LoopCallback(loop)
        entry = PendingRequest(request, rows, now, callback, strict=True, times=times)
        entry.key = entry if backend.metadata.whole_requests else merge_key(request.inputs)
        if times is not None:
            times.arrived_s = now
        self._admit(session, entry)
        left_s = None if request.deadline is None else request.deadline - now
        return await self._wait_for_response(session, entry, callback, left_s)

    def infer_inline(self, request: InferRequest, times: RequestTimes | None = None) -> InferResponse | None:
        """Return the response of an inline model, on the client's thread, as `infer` does.

        Return None if the model is not called inline: call `infer` instead.
        """
        session = self._session
        inline = session.inline
        if inline is None:
            return None
        if times is None and session.state is SessionState.RUNNING:
            response = inline.call_fast(request)
            if response is not None:
                return response
        session, backend = self._running_session(_NOT_NOW)
        request, rows, now = self._prepare(session, backend, request)
        result = inline.call(PendingRequest(request, rows, now, NO_CALLBACK, strict=True, times=times))
        if isinstance(result, BaseException):
            raise result
        return cast("InferResponse", result)

    def _prepare(
        self, session: EngineSession, backend: Backend, request: InferRequest
    ) -> tuple[InferRequest, int, float]:
        """Return the request as its model takes it, its rows and the time.

        Raises if it cannot be called.
        """
        request = convert_inputs(request, backend.metadata, as_rows=not backend.metadata.whole_requests)
        rows = self._check_rows(backend, request)
        if rows > REQUEST_ROWS_MAX:
            raise LimitError(f"model {self.name}: a request has {rows} rows; the limit is {REQUEST_ROWS_MAX}")
        now = self._clock.now()
        self._check_deadline(session, request, now)
        return request, rows, now

    @staticmethod
    def _check_deadline(session: EngineSession, request: InferRequest | HandleRequest, now: float) -> None:
        if request.deadline is not None and now >= request.deadline:
            with session.counters_lock:
                session.counters.expired += 1
            raise session.deadline_error(request)

    async def handle(self, request: HandleRequest) -> tuple[HandleResponse, ResponseStream[bytes] | None]:
        """Return the response to an opaque request, from an event loop, and the chunks of its body.

        The chunks are None if the body is whole. Requests share calls by their number. Cancellation
        takes a waiting request out of the queue; always `aclose` the chunks. Raises UnsupportedError
        for a model without `handle`, and the errors of `infer`, also OverloadedError for a body of
        chunks while `streams_max` streams are open.
        """
        session, backend = self._running_session(_NOT_NOW)
        if not backend.metadata.can_handle:
            raise UnsupportedError(f"model {self.name} takes no opaque requests: it has no handle")
        now = self._clock.now()
        self._check_deadline(session, request, now)
        if session.inline is not None:
            entry = PendingRequest(request, 1, now, NO_CALLBACK, strict=True)
            result = session.inline.call(entry)
            if isinstance(result, BaseException):
                raise result
        else:
            callback = LoopCallback(asyncio.get_running_loop())
            entry = PendingRequest(request, 1, now, callback, key=_HANDLE, strict=True)
            self._admit(session, entry)
            left_s = None if request.deadline is None else request.deadline - now
            result = await self._wait_for_response(session, entry, callback, left_s)
        if isinstance(result, ChunkedResponse):
            return result.response, self._open_chunks(session, request, result)
        return cast("HandleResponse", result), None

    def _open_chunks(
        self, session: EngineSession, request: HandleRequest, response: ChunkedResponse
    ) -> ResponseStream[bytes]:
        call = StreamCall(self._clock, deadline=request.deadline, id=request.id)
        call.requests.close()
        slot = session.reserve_slot(call, self.settings.streams_max)
        try:
            response.open_stream(call)
        except BaseException:
            session.release_stream(slot, call)
            raise
        return ResponseStream[bytes](call, None, lambda call: session.release_stream(slot, call))

    async def _wait_for_response(
        self, session: EngineSession, entry: PendingRequest, callback: LoopCallback, left_s: float | None
    ) -> Any:
        """Return the response to a queued request; withdraw it on cancellation or at its deadline."""
        try:
            if left_s is None:
                return await callback.future
            async with asyncio.timeout(left_s):
                return await callback.future
        except (asyncio.CancelledError, GeneratorExit):
            if self._withdraw(session, entry, callback):
                with session.counters_lock:
                    session.counters.cancelled += 1
            raise
        except TimeoutError:
            if self._withdraw(session, entry, callback):
                with session.counters_lock:
                    session.counters.expired += 1
            raise session.deadline_error(entry.request) from None

    def _admit(self, session: EngineSession, entry: PendingRequest) -> None:
        limit = self.settings.queue_rows_max
        try:
            if session.queue.offer(entry):
                return
        except StoppedError:
            raise session.stopped_error("it is stopping, or has lost its instances") from None
        except SequenceError as error:
            session.count_refused(entry, error)
            raise
        with session.counters_lock:
            session.refused += 1
        _, rows, _, _ = session.queue.waiting()
        raise OverloadedError(
            f"model {self.name}: {rows} rows are waiting, the limit is {limit} (queue_rows_max): retry later",
            retry_after_s=self._retry_after_s(session, rows),
        )

    def _retry_after_s(self, session: EngineSession, rows: int) -> float:
        """Return the estimated seconds until the waiting rows are done, by the time per row so far."""
        done = sum(s.counters.rows + s.counters.failed_rows for s in session.slots)
        busy_s = sum(s.counters.busy_s for s in session.slots)
        row_s = busy_s / done if done else 0.01
        return min(max(rows * row_s / len(session.slots), 0.1), RETRY_AFTER_MAX_S)

    def _withdraw(self, session: EngineSession, entry: PendingRequest, callback: LoopCallback) -> bool:
        """Withdraw a request whose client has left.

        Return True if it had not ended, and been counted, before.
        """
        waited = session.queue.withdraw(entry)
        callback.discard()
        if entry.cancelled and not waited:
            session.cancel_unwanted_calls()
        return entry.cancelled

    def stream(
        self, first: InferRequest, more: AsyncIterator[InferRequest] | None = None
    ) -> ResponseStream[InferResponse]:
        """Open a stream, from an event loop. `first`, then the requests of `more`, go to the model.

        Raises UnsupportedError for a model that has no `predict_stream`, ModelInputError for a
        first request that does not fit the declared inputs, OverloadedError while `streams_max`
        streams are open, and StoppedError. An invalid later request, and an exception of `more`,
        end the stream with that error.
        """
        session, backend = self._running_session(_NOT_NOW)
        if not backend.metadata.can_stream:
            raise UnsupportedError(f"model {self.name} cannot stream: it has no predict_stream")
        first = _checked_request(first, backend)
        more_checked = None if more is None else _checked_requests(more, backend)
        loop = asyncio.get_running_loop()
        call = StreamCall(self._clock, deadline=first.deadline, id=first.id)
        call.requests.offer(first)
        slot = session.reserve_slot(call, self.settings.streams_max)
        try:
            if session.sequences is not None:
                session.open_step_stream(call, session.sequences, single=more is None)
            else:
                assert slot.backend is not None
                slot.backend.open_stream(call)
        except BaseException:
            session.release_stream(slot, call)
            raise
        with session.counters_lock:
            slot.counters.streams += 1
        feeder: asyncio.Task[None] | None = None
        if more_checked is None:
            call.requests.close()
        else:
            feeder = loop.create_task(_feed_stream(more_checked, call))
        return ResponseStream[InferResponse](call, feeder, lambda call: session.release_stream(slot, call))

    # Sequences

    def sequences(self, limit: int | None = None) -> tuple[SequenceInfo, ...]:
        """Return the live sequences that have an id, oldest first, up to a limit. Any thread.

        A model without a `step` has none.
        """
        sequences = self._session.sequences
        return () if sequences is None else sequences.sequences(limit)

    def cancel_sequence(self, id: str) -> bool:
        """End the sequence of this id and cancel its waiting requests. Return True if it was live.

        Any thread.
        """
        session = self._session
        if session.sequences is None or not session.sequences.cancel(id):
            return False
        session.cancel_unwanted_calls()
        return True

    # Checks and statistics

    def _running_session(self, why: str) -> tuple[EngineSession, Backend]:
        session = self._session
        backend = session.backend
        if session.state is not SessionState.RUNNING or backend is None:
            raise session.stopped_error(why)
        if session.lost_reason is not None:
            raise InstanceLostError(self.name, session.lost_reason)
        return session, backend

    def _check_rows(self, backend: Backend, request: InferRequest) -> int:
        if not backend.metadata.can_predict:
            raise ModelInputError(
                self.name,
                f"its class {backend.metadata.platform} has a predict_stream but no predict, which records, "
                "files and jobs need: write def predict(self, x), or serve the model and send the request "
                "as a stream",
            )
        if backend.metadata.is_stateful:
            return count_steps(request, backend.inputs)
        return backend.inputs.check(request)

    @override
    def statistics(self) -> PredictorStatistics:
        """Return the sums over the instances since `start`. A request counts once it has ended.

        An instance is starved from the end of a request until the arrival of its next request. The
        time since its last request counts only when the next one arrives, so that the figures of a
        finished run do not change.
        """
        by_instance = self.instance_statistics()
        return PredictorStatistics(
            instances=len(by_instance),
            calls=sum(s.calls for s in by_instance),
            rows=sum(s.rows for s in by_instance),
            failed_rows=sum(s.failed_rows for s in by_instance),
            retries=sum(s.retries for s in by_instance),
            busy_s=sum(s.busy_s for s in by_instance),
            starved_s=sum(s.starved_s for s in by_instance),
        )

    def instance_statistics(self) -> tuple[PredictorStatistics, ...]:
        """Return the statistics of each instance, in a fixed order."""
        return tuple(s.counters.snapshot() for s in self._session.slots)

    def model_statistics(self) -> ModelStatistics:
        """Return all counters since `start` and the current gauges. Any thread."""
        session = self._session
        requests, rows, oldest_s, running = session.queue.waiting()
        ended_s = max(
            (s.counters.ended_s for s in session.slots if s.counters.ended_s is not None), default=None
        )
        ago_s = 0.0 if ended_s is None else self._clock.now() - ended_s
        base = ModelStatistics(
            self.name,
            self.version or "",
            instances=len(session.slots),
            last_inference_ms=0 if ended_s is None else round((time.time() - ago_s) * 1000),
            cancelled=session.queue.cancelled,
            refused=session.refused,
            uptime_s=self._clock.now() - session.began_s if self.running else 0.0,
            waiting_requests=requests,
            waiting_rows=rows,
            oldest_waiting_s=oldest_s,
            in_flight=requests + running,
            open_streams=sum(len(s.streams) for s in session.slots),
            sequences=None if session.sequences is None else _sequence_statistics(session.sequences),
        )
        return sum_counters([*(s.counters for s in session.slots), session.counters], base)


def _sequence_statistics(sequences: SequenceSchedule) -> SequenceStatistics:
    ends = {str(why): count for why, count in sequences.ends().items()}
    return SequenceStatistics(sequences.live, sequences.limits.live_max, ends, sequences.refused())


def _checked_request(request: InferRequest, backend: Backend) -> InferRequest:
    """Return one request of a stream with the declared types of its inputs. Raises ModelInputError."""
    if backend.inputs.declared and not backend.metadata.is_stateful:
        backend.inputs.check_names(request)
    return convert_inputs(request, backend.metadata, as_rows=backend.metadata.is_stateful)


async def _checked_requests(
    requests: AsyncIterator[InferRequest], backend: Backend
) -> AsyncIterator[InferRequest]:
    async for request in requests:
        yield _checked_request(request, backend)


async def _feed_stream(requests: AsyncIterator[InferRequest], call: StreamCall) -> None:
    """Feed the requests of a stream to its model."""
    error: BaseException | None = None
    try:
        async for request in requests:
            await call.requests.aput(request)
    except CancelledRequestError:
        return
    except asyncio.CancelledError:
        # Not all requests were sent: the model must not take this for their end.
        error = CancelledRequestError("the client has closed the stream")
        raise
    except BaseException as raised:  # noqa: BLE001 - raised in the generator of the model
        error = raised
    finally:
        call.requests.close(error)
