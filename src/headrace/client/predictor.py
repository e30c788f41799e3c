"""A Predictor of a remote endpoint: many requests in flight, in one event loop on one thread.

Any thread submits requests and receives futures. An `EndpointProtocol` (see
`endpoint`) defines the messages, and `retrying_client` the retries.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from enum import Enum, auto
from typing import Protocol

from typing_extensions import override

from headrace.client.connection_pool import HttpConnectionPool
from headrace.client.retry import CircuitBreaker
from headrace.client.retrying_client import RetryingClient
from headrace.core.clock import Clock, RetryPolicy, SystemClock
from headrace.core.errors import (
    DeadlineError,
    EndpointError,
    HeadraceError,
    ModelInputError,
    StoppedError,
)
from headrace.core.predictor import Predictor, PredictorStatistics, complete_future
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata

_log = logging.getLogger("headrace.client")

FAILURES_MIN = 8
"""Failures in a row that open the circuit, or twice the requests in flight if that is more."""


class EndpointProtocol(Protocol):
    """A protocol for one endpoint, from one start to the next. Methods run in one event loop."""

    async def fetch_metadata(self, client: RetryingClient) -> ModelMetadata:
        """Return the metadata of the model. Called once, before `infer`."""
        ...

    async def infer(self, client: RetryingClient, request: InferRequest, rows: int) -> InferResponse:
        """Return the response to a request; refused rows are its failures.

        Many calls run concurrently.
        """
        ...

    async def infer_whole(self, client: RetryingClient, request: InferRequest) -> InferResponse:
        """Return the response to a request that is sent as it is, if the protocol can.

        Raises RefusedRowsError for a refused request.
        """
        ...


class _State(Enum):
    STOPPED = auto()
    STARTING = auto()
    RUNNING = auto()
    STOPPING = auto()


class _Session:
    """The state between one start and its stop.

    Only the thread of the session writes it, except for the fields under the predictor's lock.
    """

    def __init__(self, protocol: EndpointProtocol) -> None:
        self.protocol = protocol
        self.thread: threading.Thread | None = None
        self.client: RetryingClient | None = None
        self.rows = 0
        self.failed_rows = 0
        self.metadata: ModelMetadata | None = None
        self.wake_up = asyncio.Event()
        self.tasks: set[asyncio.Task[InferResponse]] = set()
        self.statistics: PredictorStatistics | None = None
        """The final statistics, after the session has ended."""
        # These fields are under the predictor's lock.
        self.loop: asyncio.AbstractEventLoop | None = None
        self.in_flight = 0
        self.closing = False
        self.cancelling = False
        self.ended = False
        self.error: BaseException | None = None

    def current_statistics(self) -> PredictorStatistics:
        """Return the statistics so far."""
        client = self.client
        if client is None:
            return PredictorStatistics()
        busy_s, starved_s = client.busy_s()
        return PredictorStatistics(
            instances=1,
            calls=client.calls,
            rows=self.rows,
            failed_rows=self.failed_rows,
            retries=client.retries,
            busy_s=busy_s,
            starved_s=starved_s,
        )


class EndpointPredictor(Predictor):
    """A predictor of a remote endpoint. Create it with `endpoint_predictor`.

    It may be started again after `stop`. Futures complete, and their callbacks run, in the
    predictor's thread. A callback must be short and must not call `submit`.
    """

    def __init__(
        self,
        make_protocol: Callable[[], EndpointProtocol],
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
        """The address of the model, in one spelling for every form of the given URL."""
        self._model = model
        self._make_protocol = make_protocol
        self._in_flight_max = in_flight_max
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._headers = dict(headers)
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._state = _State.STOPPED
        self._session = _Session(self._make_protocol())

    def __repr__(self) -> str:
        """Return the URL, without the token."""
        return f"EndpointPredictor({self.url!r})"

    @property
    @override
    def metadata(self) -> ModelMetadata:
        """The metadata that the endpoint reports. Raises StoppedError before the first `start`."""
        metadata = self._session.metadata
        if metadata is None:
            raise StoppedError(f"the metadata of {self.url} is not known yet: start the predictor first")
        return metadata

    @property
    @override
    def in_flight_max(self) -> int:
        """The limit of unfinished requests, and of concurrent HTTP requests."""
        return self._in_flight_max

    @override
    def start(self) -> None:
        """Fetch the metadata of the model and become ready.

        Raises EndpointUnavailableError if the endpoint does not respond within `retry_s` seconds,
        EndpointRefusedError if it rejects the model or the credentials, and StoppedError if `stop`
        is called meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state in (_State.STOPPED, _State.RUNNING))
            if self._state is _State.RUNNING:
                return
            session = _Session(self._make_protocol())
            thread = session.thread = threading.Thread(
                target=self._run, args=(session,), name=f"headrace-endpoint-{self._model}", daemon=True
            )
            thread.start()
            self._state, self._session = _State.STARTING, session
        try:
            with self._changed:
                self._changed.wait_for(lambda: session.ended or session.metadata is not None)
                if not session.ended:
                    return
        except BaseException:
            self._close(session, drain=False)
            raise
        thread.join()
        if session.metadata is None:
            raise session.error or StoppedError(f"{self.url}: the predictor was stopped while it started")

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Finish the accepted requests, or fail them with StoppedError; then close the connections.

        Draining takes as long as the endpoint takes, with retries. A second call without `drain`
        ends it early.
        """
        self._close(self._session, drain=drain)

    def _close(self, session: _Session, *, drain: bool) -> None:
        with self._changed:
            if not session.ended and session.thread is not None:
                session.closing = True
                session.cancelling = session.cancelling or not drain
                if self._session is session:
                    self._state = _State.STOPPING
                if session.loop is not None:
                    session.loop.call_soon_threadsafe(session.wake_up.set)
                self._changed.notify_all()
            thread = session.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @override
    def submit(self, request: InferRequest, *, strict: bool = False) -> "Future[InferResponse]":
        """Submit a request. Blocks while `in_flight_max` requests are unfinished.

        Raises StoppedError if the predictor is not running.
        """
        future: Future[InferResponse] = Future()
        with self._changed:
            session = self._session
            if self._state is not _State.RUNNING:
                raise self._stopped("start it before submitting requests")
            try:
                # The first axes of a request that is sent as it is need not be rows.
                rows = None if strict else request.rows
            except ModelInputError as error:
                future.set_exception(ModelInputError(self._model, error.why))
                return future
            self._changed.wait_for(lambda: session.closing or session.in_flight < self._in_flight_max)
            if session.closing or session.loop is None:
                raise self._stopped("it was stopped")
            session.in_flight += 1
            session.loop.call_soon_threadsafe(self._start_request, session, request, rows, future)
        return future

    @override
    def statistics(self) -> PredictorStatistics:
        """Return the statistics since `start`.

        Calls are HTTP attempts. The endpoint is busy while at least one attempt is in flight.
        """
        session = self._session
        return session.statistics or session.current_statistics()

    # The methods below run in the thread of the session.

    def _run(self, session: _Session) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(session))
        except BaseException as raised:  # noqa: BLE001 - raised by the thread that calls `start`
            error = raised
        session.statistics = session.current_statistics()
        with self._changed:
            session.error = error
            session.ended = session.closing = True
            if self._session is session:
                self._state = _State.STOPPED
            self._changed.notify_all()

    async def _serve(self, session: _Session) -> None:
        """Run from start to stop, until no request is unfinished."""
        async with HttpConnectionPool(self._headers, connections_max=self._in_flight_max) as pool:
            circuit = CircuitBreaker(failures_max=max(FAILURES_MIN, 2 * self._in_flight_max))
            client = session.client = RetryingClient(
                pool,
                circuit,
                policy=RetryPolicy(self._retry_s),
                timeout_s=self._timeout_s,
                attempts_max=self._in_flight_max,
                clock=self._clock,
            )
            with self._changed:
                session.loop = asyncio.get_running_loop()
            try:
                await self._fetch_metadata(session, client)
                await self._wait_until_closing(session)
            finally:
                await self._drain(session)

    async def _fetch_metadata(self, session: _Session, client: RetryingClient) -> None:
        """Fetch the metadata and become ready, unless stopped before."""
        fetching = asyncio.ensure_future(session.protocol.fetch_metadata(client))
        closing = asyncio.ensure_future(self._wait_until_closing(session))
        try:
            await asyncio.wait((fetching, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            if not fetching.done():
                fetching.cancel()
                with suppress(asyncio.CancelledError):
                    await fetching
        if fetching.cancelled():
            return
        metadata = fetching.result()
        with self._changed:
            session.metadata = metadata
            if not session.closing and self._session is session:
                self._state = _State.RUNNING
            self._changed.notify_all()

    async def _wait_until_closing(self, session: _Session) -> None:
        while not session.closing:
            session.wake_up.clear()
            await session.wake_up.wait()

    async def _drain(self, session: _Session) -> None:
        """Wait until each accepted request has a response or an error."""
        with self._changed:
            session.closing = True
            self._changed.notify_all()
        cancelled = False
        while True:
            session.wake_up.clear()
            with self._changed:
                if not session.in_flight:
                    session.loop = None
                    return
                cancelling = session.cancelling
            if cancelling and not cancelled:
                cancelled = True
                for task in session.tasks:
                    task.cancel()
            await session.wake_up.wait()

    def _start_request(
        self, session: _Session, request: InferRequest, rows: int | None, future: "Future[InferResponse]"
    ) -> None:
        """Start a request of `rows` rows; None for a strict request, which counts as one row."""
        if not future.set_running_or_notify_cancel():
            self._release(session)
            return
        if session.cancelling:
            self._complete(session, future, self._stopped("it was stopped before this request began"))
            return
        task = asyncio.ensure_future(self._infer(session, request, rows))
        session.tasks.add(task)
        task.add_done_callback(lambda done: self._on_done(session, 1 if rows is None else rows, done, future))

    async def _infer(self, session: _Session, request: InferRequest, rows: int | None) -> InferResponse:
        """Return the response, within the deadline of the request."""
        if request.deadline is None:
            return await self._call(session, request, rows)
        name = f"request {request.id}" if request.id else "a request"
        deadline_error = DeadlineError(f"{self.url} did not respond to {name} before its deadline")
        remaining_s = request.deadline - self._clock.now()
        if remaining_s <= 0:
            raise deadline_error
        try:
            async with asyncio.timeout(remaining_s):
                return await self._call(session, request, rows)
        except TimeoutError as error:
            raise deadline_error from error

    async def _call(self, session: _Session, request: InferRequest, rows: int | None) -> InferResponse:
        assert session.client is not None
        if rows is None:
            return await session.protocol.infer_whole(session.client, request)
        return await session.protocol.infer(session.client, request, rows)

    def _on_done(
        self,
        session: _Session,
        rows: int,
        task: "asyncio.Task[InferResponse]",
        future: "Future[InferResponse]",
    ) -> None:
        """Complete the future of a request, also if its task never ran."""
        session.tasks.discard(task)
        if task.cancelled():
            self._complete(session, future, self._stopped("it was stopped while this request ran"))
        elif (error := task.exception()) is not None:
            self._complete(
                session, future, error if isinstance(error, HeadraceError) else self._unexpected(error)
            )
        else:
            response = task.result()
            session.rows += rows - len(response.failures)
            session.failed_rows += len(response.failures)
            self._complete(session, future, response)

    def _complete(
        self, session: _Session, future: "Future[InferResponse]", outcome: InferResponse | BaseException
    ) -> None:
        if (raised := complete_future(future, outcome)) is not None:
            _log.error("%s: a callback raised", self.url, exc_info=raised)
        self._release(session)

    def _release(self, session: _Session) -> None:
        with self._changed:
            session.in_flight -= 1
            self._changed.notify_all()
        session.wake_up.set()

    def _unexpected(self, error: BaseException) -> EndpointError:
        raised = EndpointError(self.url, f"the call raised {type(error).__name__}: {error}")
        raised.__cause__ = error
        return raised

    def _stopped(self, reason: str) -> StoppedError:
        return StoppedError(f"the predictor of {self.url} is not running: {reason}")
