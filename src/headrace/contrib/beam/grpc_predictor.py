"""A Predictor of one model of a server over gRPC. It does not retry: its user does, such as Beam."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock, Semaphore

from typing_extensions import override

from headrace.batching.bisect import Bisection
from headrace.client.model_server import ModelAddress, ModelServerClient
from headrace.client.model_server_grpc import EndpointRefusedError
from headrace.client.outputs import join_outputs, require_rows, select_rows
from headrace.client.refusals import RefusalGuard
from headrace.core.errors import ModelInputError, StoppedError
from headrace.core.predictor import Predictor, PredictorStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor
from headrace.engine.model_methods import LoopThread


class GrpcPredictor(Predictor):
    """A Predictor over gRPC.

    A request with refused rows is bisected until the state of every row is known.

    Args:
        open_server: Makes the client of the server, for each start.
        model: The model on the server.
        in_flight_max: The limit of requests in flight. `submit` blocks beyond.
    """

    def __init__(
        self, open_server: Callable[[], ModelServerClient], model: ModelAddress, *, in_flight_max: int = 16
    ) -> None:
        self._open_server = open_server
        self._model = model
        self._in_flight_max = in_flight_max
        self._slots = Semaphore(in_flight_max)
        self._start_stop_lock = Lock()
        self._state_lock = Lock()
        self._connection: _Connection | None = None
        self._metadata: ModelMetadata | None = None
        self._rows = 0
        self._failed_rows = 0

    @property
    @override
    def metadata(self) -> ModelMetadata:
        if self._metadata is None:
            raise StoppedError(
                f"the metadata of model {self._model.name} is not known yet: start the predictor first"
            )
        return self._metadata

    @property
    @override
    def in_flight_max(self) -> int:
        return self._in_flight_max

    @override
    def start(self) -> None:
        """Open the connection and read the model's metadata.

        Raises:
            EndpointUnavailableError: The server does not respond.
            EndpointRefusedError: The server refuses the request, or does not have the model.
        """
        with self._start_stop_lock:
            if self._connection is not None:
                return
            connection = _Connection(self._open_server(), self._model)
            try:
                self._metadata = connection.open()
            except BaseException:
                connection.close(drain=False)
                raise
            self._connection = connection

    @override
    def stop(self, *, drain: bool = True) -> None:
        with self._start_stop_lock:
            with self._state_lock:
                connection, self._connection = self._connection, None
            if connection is not None:
                connection.close(drain=drain)

    @override
    def submit(self, request: InferRequest) -> Future[InferResponse]:
        future: Future[InferResponse] = Future()
        try:
            rows = request.rows
        except ModelInputError as error:
            future.set_exception(ModelInputError(self._model.name, error.why))
            return future
        self._slots.acquire()
        # A loop that has ended, or is about to, accepts no request.
        with self._state_lock:
            if self._connection is None:
                self._slots.release()
                raise StoppedError(f"model {self._model.name}: the predictor is not running")
            future = self._connection.send(request, rows)
        future.add_done_callback(lambda done: self._on_done(rows, done))
        return future

    def _on_done(self, rows: int, done: Future[InferResponse]) -> None:
        self._slots.release()
        if not done.cancelled() and done.exception() is None:
            failed = len(done.result().failures)
            self._failed_rows += failed
            self._rows += rows - failed

    @override
    def statistics(self) -> PredictorStatistics:
        """Return a snapshot that counts only rows."""
        return PredictorStatistics(instances=1, rows=self._rows, failed_rows=self._failed_rows)


class _Connection:
    """A connection and its thread, between a start and the next stop."""

    def __init__(self, server: ModelServerClient, model: ModelAddress) -> None:
        self._server = server
        self._model = model
        self._guard = RefusalGuard(server.url)
        self._tasks: set[asyncio.Task[InferResponse]] = set()
        self._loop = LoopThread(f"headrace-grpc-{model.name}")

    def open(self) -> ModelMetadata:
        return self._loop.submit(self._open).result()

    async def _open(self) -> ModelMetadata:
        await self._server.__aenter__()
        return await self._server.metadata(self._model)

    def close(self, *, drain: bool) -> None:
        self._loop.submit(lambda: self._close(drain=drain)).result()
        self._loop.stop()

    async def _close(self, *, drain: bool) -> None:
        for task in self._tasks:
            if not drain:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.__aexit__(None, None, None)

    def send(self, request: InferRequest, rows: int) -> Future[InferResponse]:
        return self._loop.submit(lambda: self._send(request, rows))

    async def _send(self, request: InferRequest, rows: int) -> InferResponse:
        task = asyncio.ensure_future(self._infer_rows(request, rows))
        self._tasks.add(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise StoppedError(f"{self._server.url}: the predictor was stopped") from None
            task.cancel()
            raise
        finally:
            self._tasks.discard(task)

    async def _infer_rows(self, request: InferRequest, rows: int) -> InferResponse:
        """Send the request once, and bisect its rows if they are refused."""
        bisection = Bisection([rows])
        outputs_parts: list[Sequence[Tensor]] = []
        last_response: InferResponse | None = None
        while (pieces := bisection.next()) is not None:
            indices = pieces[0].rows
            part = request if len(indices) == rows else select_rows(request, indices)
            try:
                last_response = await self._server.infer(self._model, part, binary=True)
            except EndpointRefusedError as error:
                if not error.may_be_about_rows:
                    raise
                if len(indices) == 1:
                    self._guard.record_refusal(error.why, None)
                bisection.mark_failed(error.why)
                continue
            require_rows(request, last_response.outputs, len(indices), self._model.name)
            self._guard.record_success(len(indices))
            outputs_parts.append(last_response.outputs)
            bisection.mark_succeeded()
        if last_response is None:
            return InferResponse((), self._model.name, id=request.id, failures=bisection.failures())
        outputs = join_outputs(self._model.name, request.id, outputs_parts)
        return InferResponse(
            outputs,
            last_response.model_name,
            last_response.model_version,
            request.id,
            last_response.parameters,
            bisection.failures(),
        )
