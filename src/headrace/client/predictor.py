"""A Predictor around an endpoint elsewhere: many requests under way, in one event loop of one thread.

Arrives: requests, from any thread. Leaves: futures. What goes over the wire is the dialect's (`oip_rest`,
`torchserve_rest`), what is asked again is `asking`'s.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from enum import Enum, auto
from typing import Protocol

from headrace.client.asking import Asker
from headrace.client.circuit import Circuit
from headrace.client.connection import Connection
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    DeadlineError,
    EndpointError,
    HeadraceError,
    ModelInputError,
    StoppedError,
)
from headrace.core.predictor import PredictorStatistics, settle
from headrace.core.retry import RetryPolicy
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata

_log = logging.getLogger("headrace.client")

FAILURES_MIN = 8
"""Failures in a row that open the circuit, or two for each request in flight where that is more."""


class Dialect(Protocol):
    """What is said to an endpoint, from one start to the next. Everything runs in one loop."""

    async def describe(self, asker: Asker) -> ModelMetadata:
        """The model's metadata; called once, first."""
        ...

    async def answer(self, asker: Asker, request: InferRequest, rows: int) -> InferResponse:
        """The answer to a request; refused rows are its failures. Many at once."""
        ...


class _State(Enum):
    STOPPED = auto()
    STARTING = auto()
    RUNNING = auto()
    STOPPING = auto()


class _Life:
    """What one start makes and its stop ends. Its thread alone writes, but for what is under the predictor's lock."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.thread: threading.Thread | None = None
        self.asker: Asker | None = None
        self.rows = 0
        self.failed_rows = 0
        self.metadata: ModelMetadata | None = None
        self.woken = asyncio.Event()
        self.tasks: set[asyncio.Task[InferResponse]] = set()
        self.statistics: PredictorStatistics | None = None
        """Once it is over."""
        # Under the lock:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.unanswered = 0
        self.closing = False
        self.dropped = False
        self.over = False
        self.error: BaseException | None = None


class EndpointPredictor:
    """Implements `headrace.core.Predictor`; see there for what is guaranteed. Make it with `endpoint_predictor`.

    May be started again after `stop`. Futures are set, and their callbacks run, in the predictor's thread: a callback
    must be short, and must not `submit`.
    """

    def __init__(
        self,
        make_dialect: Callable[[], Dialect],
        *,
        url: str,
        model: str,
        in_flight_max: int,
        timeout_s: float,
        retry_s: float,
        headers: Mapping[str, str],
        clock: Clock | None = None,
    ) -> None:
        self.url = url
        """The model's address, in one spelling whatever the given URL's form."""
        self._model = model
        self._make_dialect = make_dialect
        self._in_flight_max = in_flight_max
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._headers = dict(headers)
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._state = _State.STOPPED
        self._life = _Life(self._make_dialect())

    def __repr__(self) -> str:
        """Without the token."""
        return f"EndpointPredictor({self.url!r})"

    @property
    def metadata(self) -> ModelMetadata:
        """The model's, as the endpoint tells it; StoppedError before the first `start`."""
        metadata = self._life.metadata
        if metadata is None:
            raise StoppedError(f"{self.url} was not asked for its metadata yet: start the predictor first")
        return metadata

    @property
    def in_flight_max(self) -> int:
        """The most requests unanswered at once (`submit` blocks beyond), and the most HTTP requests under way."""
        return self._in_flight_max

    def start(self) -> None:
        """Ask the endpoint about its model; returns when it answered.

        Raises EndpointUnavailableError when it does not within `retry_s`, EndpointRefusedError when it does not know
        the model or the credentials, and StoppedError when `stop` was called meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state in (_State.STOPPED, _State.RUNNING))
            if self._state is _State.RUNNING:
                return
            life = _Life(self._make_dialect())
            thread = life.thread = threading.Thread(
                target=self._run, args=(life,), name=f"headrace-endpoint-{self._model}", daemon=True
            )
            thread.start()
            self._state, self._life = _State.STARTING, life
        try:
            with self._changed:
                self._changed.wait_for(lambda: life.over or life.metadata is not None)
                if not life.over:
                    return
        except BaseException:
            self._end(life, drain=False)
            raise
        thread.join()
        if life.metadata is None:
            raise life.error or StoppedError(f"{self.url}: stopped while it was started")

    def stop(self, *, drain: bool = True) -> None:
        """Finish what was accepted, or fail it with StoppedError; then close the connections.

        Draining takes as long as the endpoint takes, retries included; stopping without `drain` cuts it short.
        """
        self._end(self._life, drain=drain)

    def _end(self, life: _Life, *, drain: bool) -> None:
        with self._changed:
            if not life.over and life.thread is not None:
                life.closing = True
                life.dropped = life.dropped or not drain
                if self._life is life:
                    self._state = _State.STOPPING
                if life.loop is not None:
                    life.loop.call_soon_threadsafe(life.woken.set)
                self._changed.notify_all()
            thread = life.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def submit(self, request: InferRequest) -> "Future[InferResponse]":
        """Ask; blocks while `in_flight_max` requests are unanswered. Raises StoppedError when not running."""
        future: Future[InferResponse] = Future()
        with self._changed:
            life = self._life
            if self._state is not _State.RUNNING:
                raise self._stopped("it must be started before it is asked")
            try:
                rows = request.rows
            except ModelInputError as error:
                future.set_exception(ModelInputError(self._model, error.why))
                return future
            self._changed.wait_for(lambda: life.closing or life.unanswered < self._in_flight_max)
            if life.closing or life.loop is None:
                raise self._stopped("it was stopped")
            life.unanswered += 1
            life.loop.call_soon_threadsafe(self._begin, life, request, rows, future)
        return future

    def statistics(self) -> PredictorStatistics:
        """Since `start`. Calls are HTTP attempts; the endpoint is busy while at least one is under way."""
        life = self._life
        return life.statistics or self._statistics(life)

    def _statistics(self, life: _Life) -> PredictorStatistics:
        asker = life.asker
        if asker is None:
            return PredictorStatistics()
        busy_s, starved_s = asker.busy_s()
        return PredictorStatistics(
            instances=1,
            calls=asker.calls,
            rows=life.rows,
            failed_rows=life.failed_rows,
            retries=asker.retries,
            busy_s=busy_s,
            starved_s=starved_s,
        )

    # The loop's thread

    def _run(self, life: _Life) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner() as runner:
                runner.run(self._live(life))
        except BaseException as raised:  # noqa: BLE001 - handed to the thread that starts
            error = raised
        life.statistics = self._statistics(life)
        with self._changed:
            life.error = error
            life.over = life.closing = True
            if self._life is life:
                self._state = _State.STOPPED
            self._changed.notify_all()

    async def _live(self, life: _Life) -> None:
        """From start to stop; ends when no request is unanswered."""
        async with Connection(self._headers, connections_max=self._in_flight_max) as connection:
            circuit = Circuit(failures_max=max(FAILURES_MIN, 2 * self._in_flight_max))
            asker = life.asker = Asker(
                connection,
                circuit,
                policy=RetryPolicy(self._retry_s),
                timeout_s=self._timeout_s,
                attempts_max=self._in_flight_max,
                clock=self._clock,
            )
            with self._changed:
                life.loop = asyncio.get_running_loop()
            try:
                await self._describe(life, asker)
                await self._until_closing(life)
            finally:
                await self._wind_up(life)

    async def _describe(self, life: _Life, asker: Asker) -> None:
        """Ask for the metadata and be ready, unless stopped before that."""
        describing = asyncio.ensure_future(life.dialect.describe(asker))
        closing = asyncio.ensure_future(self._until_closing(life))
        try:
            await asyncio.wait((describing, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            if not describing.done():
                describing.cancel()
                with suppress(asyncio.CancelledError):
                    await describing
        if describing.cancelled():
            return
        metadata = describing.result()
        with self._changed:
            life.metadata = metadata
            if not life.closing and self._life is life:
                self._state = _State.RUNNING
            self._changed.notify_all()

    async def _until_closing(self, life: _Life) -> None:
        while not life.closing:
            life.woken.clear()
            await life.woken.wait()

    async def _wind_up(self, life: _Life) -> None:
        """Until all that was accepted has an answer, or an error."""
        with self._changed:
            life.closing = True
            self._changed.notify_all()
        cancelled = False
        while True:
            life.woken.clear()
            with self._changed:
                if not life.unanswered:
                    life.loop = None
                    return
                dropped = life.dropped
            if dropped and not cancelled:
                cancelled = True
                for task in life.tasks:
                    task.cancel()
            await life.woken.wait()

    def _begin(self, life: _Life, request: InferRequest, rows: int, future: "Future[InferResponse]") -> None:
        if not future.set_running_or_notify_cancel():
            self._release(life)
            return
        if life.dropped:
            self._settle(life, future, self._stopped("before this request began"))
            return
        task = asyncio.ensure_future(self._answer(life, request, rows))
        life.tasks.add(task)
        task.add_done_callback(lambda done: self._answered(life, rows, done, future))

    async def _answer(self, life: _Life, request: InferRequest, rows: int) -> InferResponse:
        """The dialect's answer, within the request's deadline."""
        assert life.asker is not None
        if request.deadline is None:
            return await life.dialect.answer(life.asker, request, rows)
        name = f"request {request.id}" if request.id else "a request"
        late = DeadlineError(f"{self.url} did not answer {name} before its deadline")
        left_s = request.deadline - self._clock.now()
        if left_s <= 0:
            raise late
        try:
            async with asyncio.timeout(left_s):
                return await life.dialect.answer(life.asker, request, rows)
        except TimeoutError as error:
            raise late from error

    def _answered(
        self,
        life: _Life,
        rows: int,
        task: "asyncio.Task[InferResponse]",
        future: "Future[InferResponse]",
    ) -> None:
        """Whatever became of a request, its future gets it; also when its task never ran."""
        life.tasks.discard(task)
        if task.cancelled():
            self._settle(life, future, self._stopped("while this request ran"))
        elif (error := task.exception()) is not None:
            self._settle(life, future, error if isinstance(error, HeadraceError) else self._unexpected(error))
        else:
            response = task.result()
            life.rows += rows - len(response.failures)
            life.failed_rows += len(response.failures)
            self._settle(life, future, response)

    def _settle(
        self, life: _Life, future: "Future[InferResponse]", answer: InferResponse | BaseException
    ) -> None:
        if (raised := settle(future, answer)) is not None:
            _log.error("%s: a callback raised", self.url, exc_info=raised)
        self._release(life)

    def _release(self, life: _Life) -> None:
        with self._changed:
            life.unanswered -= 1
            self._changed.notify_all()
        life.woken.set()

    def _unexpected(self, error: BaseException) -> EndpointError:
        raised = EndpointError(self.url, f"asking it raised {type(error).__name__}: {error}")
        raised.__cause__ = error
        return raised

    def _stopped(self, when: str) -> StoppedError:
        return StoppedError(f"{self.url} is not being asked: {when}")
