"""Served models inside Beam's own RunInference, called by the Open Inference Protocol."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.app.models import PredictorOptions, open_model_server, open_predictor
from headrace.client.address import TOKEN_VARIABLE, resolve_address
from headrace.client.model_server import ModelAddress
from headrace.contrib.beam.handler_mixin import HandlerMixin
from headrace.contrib.beam.library import base
from headrace.contrib.beam.loaded_model import LoadedModel
from headrace.contrib.beam.results import NAMESPACE, Failures
from headrace.core.errors import EndpointUnavailableError, OverloadedError
from headrace.core.predictor import Predictor

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
        from headrace.contrib.beam.grpc_predictor import GrpcPredictor  # noqa: PLC0415 - REST needs no gRPC

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
