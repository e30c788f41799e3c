"""Served models inside Beam's own RunInference, called by the Open Inference Protocol."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock, Semaphore
from typing import Any, Final

from typing_extensions import override

from headrace.app.models import PredictorOptions, open_model_server, open_predictor
from headrace.batching.bisect import Bisection
from headrace.client.address import TOKEN_VARIABLE, resolve_address
from headrace.client.model_server import ModelAddress, ModelServerClient
from headrace.client.rows import RefusalGuard, join_outputs, require_rows, select_rows
from headrace.contrib.beam.handler import NAMESPACE, Failures, HandlerMixin, base
from headrace.contrib.beam.loaded_model import LoadedModel
from headrace.core.errors import (
    EndpointRefusedError,
    EndpointUnavailableError,
    ModelInputError,
    OverloadedError,
    RefusedRowsError,
    StoppedError,
)
from headrace.core.predictor import Predictor, PredictorStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor
from headrace.engine.model_methods import LoopThread

MAX_BATCH_ROWS: Final = 128
"""Default row limit of a batch. The server's limit is not known where the pipeline is built."""
_GRPC: Final = {"grpc://": "http://", "grpcs://": "https://"}


def is_retryable(error: Exception) -> bool:
    """Return True if a retry may succeed: the endpoint did not respond, or was overloaded.

    Refusals are final.
    """
    return isinstance(error, EndpointUnavailableError | OverloadedError | base.RateLimitExceeded)


class RemoteModelHandler(HandlerMixin, base.RemoteModelHandler):
    """A handler that runs a served model in RunInference.

    The server is headrace or another server of the Open Inference Protocol.

    ::

        handler = RemoteModelHandler("http://models:8080/v2/models/churn")

    Elements and results are those of `ModelHandler`, and so is `failures`. The rows of a batch go
    in one request for each shape. If the endpoint refuses a request, its rows are bisected until
    the refused ones are found. If it does not respond, or is overloaded, the batch is retried and
    requests are throttled, as by Beam's own class for remote models.

    The workers read credentials from ``HEADRACE_ENDPOINT_TOKEN``. Credentials are not part of the
    pipeline.

    Args:
        url: ``http(s)://host:8080/v2/models/NAME[/versions/VERSION]``, or
            ``grpc(s)://host:8081/v2/models/NAME``; a server's root with `model`.
            ``http://host/predictions/NAME`` is a TorchServe model.
        model: The model's name, if the URL has none.
        failures: The treatment of elements without a prediction, ``"raise"`` or ``"return"``.
        timeout_s: Seconds for one request, from sending it to the last byte of its response.
        in_flight_max: The limit of requests in flight, of all threads of a process.
        min_batch_size, max_batch_size: Bounds of Beam's batches. The default maximum is 128
            elements.
        max_batch_duration_secs, max_batch_weight, element_size_fn: As in Beam.
        namespace: The namespace of metrics and logs.
        num_retries, throttle_delay_secs, window_ms, bucket_ms, overload_ratio, rate_limiter: As in
            Beam.
        env_vars: Variables set in the workers. They are part of the pipeline: do not put secrets
            there.

    Raises ConfigError for an invalid URL.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        failures: Failures = "raise",
        timeout_s: float = 60.0,
        in_flight_max: int = 16,
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_duration_secs: int | None = None,
        max_batch_weight: int | None = None,
        element_size_fn: Callable[[Any], int] | None = None,
        namespace: str = NAMESPACE,
        num_retries: int = 5,
        throttle_delay_secs: int = 5,
        window_ms: int = 1000,
        bucket_ms: int = 1000,
        overload_ratio: float = 2,
        rate_limiter: Any = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> None:
        base.RemoteModelHandler.__init__(
            self,
            namespace,
            num_retries,
            throttle_delay_secs,
            is_retryable,
            window_ms=window_ms,
            bucket_ms=bucket_ms,
            overload_ratio=overload_ratio,
            rate_limiter=rate_limiter,
        )
        # Beam's class for remote models does not call this, and so has no batching.
        base.ModelHandler.__init__(
            self,
            min_batch_size=min_batch_size,
            max_batch_size=max(MAX_BATCH_ROWS, min_batch_size or 1)
            if max_batch_size is None
            else max_batch_size,
            max_batch_duration_secs=max_batch_duration_secs,
            max_batch_weight=max_batch_weight,
            element_size_fn=element_size_fn,
            env_vars=dict(env_vars or {}),
        )
        HandlerMixin.__init__(self, failures, namespace)
        resolve_address(_over_http(url), model=model)
        self._url = url
        self._model = model
        self._options = PredictorOptions(
            endpoint_model=model, in_flight_max=in_flight_max, timeout_s=timeout_s, retry_s=0.0
        )

    def create_client(self) -> LoadedModel:
        """Return a client of the endpoint, which has read the model's metadata.

        Raises EndpointError.
        """
        if _over_http(self._url) == self._url:
            predictor = open_predictor(None, self._url, self._options).predictor
        else:
            predictor = self._over_grpc()
        predictor.start()
        return LoadedModel(predictor, self._url)

    def _over_grpc(self) -> Predictor:
        address = resolve_address(_over_http(self._url), protocol="oip", model=self._model)
        scheme = self._url.partition("://")[0]
        root = f"{scheme}://{address.root.partition('://')[2]}"
        key = os.environ.get(TOKEN_VARIABLE, "").strip() or None
        return GrpcPredictor(
            lambda: open_model_server(root, api_key=key, timeout_s=self._options.timeout_s),
            ModelAddress(address.model, address.version or ""),
            in_flight_max=self._options.in_flight_max,
        )

    def request(
        self, batch: Sequence[Any], model: LoadedModel, inference_args: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return a PredictionResult for each element, in order. `is_retryable` judges the errors."""
        return self._predict(batch, model, inference_args)

    def update_model_path(self, model_path: str | None = None) -> None:
        """Set the URL of the next client, such as another version's."""
        if model_path:
            self._url = model_path


def _over_http(url: str) -> str:
    """Return the URL with http in place of grpc. Both schemes have the same forms."""
    for scheme, http in _GRPC.items():
        if url.startswith(scheme):
            return http + url.removeprefix(scheme)
    return url


class GrpcPredictor(Predictor):
    """A Predictor of one model of a server over gRPC. It does not retry: Beam does.

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
    def submit(self, request: InferRequest, *, strict: bool = False) -> Future[InferResponse]:
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
            future = self._connection.send(request, rows, strict=strict)
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

    def send(self, request: InferRequest, rows: int, *, strict: bool) -> Future[InferResponse]:
        return self._loop.submit(lambda: self._send(request, rows, strict=strict))

    async def _send(self, request: InferRequest, rows: int, *, strict: bool) -> InferResponse:
        task = asyncio.ensure_future(self._infer_rows(request, rows, strict=strict))
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

    async def _infer_rows(self, request: InferRequest, rows: int, *, strict: bool) -> InferResponse:
        """Send the request once. If it is refused, bisect its rows, or fail if it is strict."""
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
                if strict:
                    raise RefusedRowsError(self._model.name, error.why) from error
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
