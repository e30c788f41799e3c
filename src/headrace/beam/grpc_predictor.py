"""A Predictor of one model of a server over gRPC. Nothing is asked again here: whoever holds it retries, as Beam does."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock, Semaphore

from headrace.batching.bisect import Bisection
from headrace.client.oip_grpc import EndpointRefusedError
from headrace.client.outputs import joined, part_of, require_rows
from headrace.client.refusals import RefusalGuard
from headrace.client.server import ModelAddress, ModelServer
from headrace.core.errors import ModelInputError, StoppedError
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor
from headrace.engine.loop_thread import LoopThread


class GrpcPredictor:
    """Implements `headrace.core.Predictor`. A request whose rows are refused is halved until each row has its verdict.

    Args:
        open_server: Makes the server to ask, for each start.
        model: Which of its models.
        in_flight_max: The most requests unanswered at once; `submit` blocks beyond.
    """

    def __init__(
        self, open_server: Callable[[], ModelServer], model: ModelAddress, *, in_flight_max: int = 16
    ) -> None:
        self._open_server = open_server
        self._model = model
        self._in_flight_max = in_flight_max
        self._room = Semaphore(in_flight_max)
        self._starting = Lock()
        self._changing = Lock()
        self._asking: _Asking | None = None
        self._metadata: ModelMetadata | None = None
        self._rows = 0
        self._failed_rows = 0

    @property
    def metadata(self) -> ModelMetadata:
        """See `Predictor`."""
        if self._metadata is None:
            raise StoppedError(
                f"model {self._model.name} was not asked for its metadata yet: start the predictor first"
            )
        return self._metadata

    @property
    def in_flight_max(self) -> int:
        """See `Predictor`."""
        return self._in_flight_max

    def start(self) -> None:
        """Ask for the model's metadata. Raises EndpointUnavailableError, EndpointRefusedError."""
        with self._starting:
            if self._asking is not None:
                return
            asking = _Asking(self._open_server(), self._model)
            try:
                self._metadata = asking.begin()
            except BaseException:
                asking.end(drain=False)
                raise
            self._asking = asking

    def stop(self, *, drain: bool = True) -> None:
        """Finish what was accepted, or fail it with StoppedError; then close the connection. Waits for a start under way."""
        with self._starting:
            with self._changing:
                asking, self._asking = self._asking, None
            if asking is not None:
                asking.end(drain=drain)

    def submit(self, request: InferRequest) -> Future[InferResponse]:
        """Ask; blocks while `in_flight_max` requests are unanswered. Raises StoppedError when not running."""
        future: Future[InferResponse] = Future()
        try:
            rows = request.rows
        except ModelInputError as error:
            future.set_exception(ModelInputError(self._model.name, error.why))
            return future
        self._room.acquire()
        # Nothing is asked of a loop that has ended, or is about to.
        with self._changing:
            if self._asking is None:
                self._room.release()
                raise StoppedError(
                    f"model {self._model.name} is not being asked: the predictor is not running"
                )
            future = self._asking.ask(request, rows)
        future.add_done_callback(lambda done: self._answered(rows, done))
        return future

    def _answered(self, rows: int, done: Future[InferResponse]) -> None:
        self._room.release()
        if not done.cancelled() and done.exception() is None:
            failed = len(done.result().failures)
            self._failed_rows += failed
            self._rows += rows - failed

    def statistics(self) -> PredictorStatistics:
        """Rows alone are counted."""
        return PredictorStatistics(instances=1, rows=self._rows, failed_rows=self._failed_rows)


class _Asking:
    """A connection and its thread, from one start to the next stop."""

    def __init__(self, server: ModelServer, model: ModelAddress) -> None:
        self._server = server
        self._model = model
        self._guard = RefusalGuard(server.url)
        self._tasks: set[asyncio.Task[InferResponse]] = set()
        self._loop = LoopThread(f"headrace-grpc-{model.name}")

    def begin(self) -> ModelMetadata:
        return self._loop.submit(self._begin).result()

    async def _begin(self) -> ModelMetadata:
        await self._server.__aenter__()
        return await self._server.metadata(self._model)

    def end(self, *, drain: bool) -> None:
        self._loop.submit(lambda: self._end(drain=drain)).result()
        self._loop.stop()

    async def _end(self, *, drain: bool) -> None:
        for task in self._tasks:
            if not drain:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.__aexit__(None, None, None)

    def ask(self, request: InferRequest, rows: int) -> Future[InferResponse]:
        return self._loop.submit(lambda: self._asked(request, rows))

    async def _asked(self, request: InferRequest, rows: int) -> InferResponse:
        task = asyncio.ensure_future(self._answer(request, rows))
        self._tasks.add(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise StoppedError(
                    f"{self._server.url} is not being asked: the predictor was stopped"
                ) from None
            task.cancel()
            raise
        finally:
            self._tasks.discard(task)

    async def _answer(self, request: InferRequest, rows: int) -> InferResponse:
        """Ask once; if the rows are refused, halve them."""
        search = Bisection(rows)
        kept: list[Sequence[Tensor]] = []
        last: InferResponse | None = None
        while (indices := search.next()) is not None:
            part = request if len(indices) == rows else part_of(request, indices)
            try:
                last = await self._server.infer(self._model, part, binary=True)
            except EndpointRefusedError as error:
                if not error.may_be_about_rows:
                    raise
                if len(indices) == 1:
                    self._guard.refused(error.why, None)
                search.failed(error.why)
                continue
            require_rows(request, last.outputs, len(indices), self._model.name)
            self._guard.answered(len(indices))
            kept.append(last.outputs)
            search.succeeded()
        if last is None:
            return InferResponse((), self._model.name, id=request.id, failures=search.failures)
        outputs = joined(self._model.name, request.id, kept)
        return InferResponse(
            outputs, last.model_name, last.model_version, request.id, last.parameters, search.failures
        )
