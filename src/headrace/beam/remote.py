"""Any served model inside Beam's own RunInference, asked by the Open Inference Protocol."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.app.asking import open_model_server
from headrace.app.streaming import PredictorOptions, open_predictor
from headrace.beam.answering import Answering
from headrace.beam.library import base
from headrace.beam.loaded import LoadedModel
from headrace.beam.results import NAMESPACE, Failures
from headrace.client.address import TOKEN_VARIABLE, resolve_address
from headrace.client.server import ModelAddress
from headrace.core.errors import EndpointUnavailableError, OverloadedError
from headrace.core.predictor import Predictor

MAX_BATCH_ROWS: Final = 128
"""Of one batch, where none is given: what a server takes in one call is not known where the pipeline is built."""
_GRPC: Final = {"grpc://": "http://", "grpcs://": "https://"}


def is_retryable(error: Exception) -> bool:
    """Whether asking again may help: the endpoint did not answer, or was too busy to. What it refuses, it refuses again."""
    return isinstance(error, EndpointUnavailableError | OverloadedError | base.RateLimitExceeded)


class RemoteModelHandler(Answering, base.RemoteModelHandler):
    """Runs a model that is served elsewhere, by headrace or any other server of the Open Inference Protocol, in RunInference.

    ::

        handler = RemoteModelHandler("http://models:8080/v2/models/churn")

    Elements and results are those of `ModelHandler`, and so is `failures`; a batch's rows go in one request for each shape. Where the
    endpoint refuses a request, its rows are parted until those at fault are found. Where it does not answer, or says that it is busy,
    the batch is asked again, and requests are held back, as Beam's own class for remote models has it.

    Credentials are read in the workers, from ``HEADRACE_ENDPOINT_TOKEN``: they are no part of the pipeline.

    Args:
        url: ``http(s)://host:8080/v2/models/NAME[/versions/VERSION]``, or ``grpc(s)://host:8081/v2/models/NAME``; a server's root
            with `model`. ``http://host/predictions/NAME`` asks TorchServe.
        model: The model's name, where the URL has none.
        failures: What happens to elements that have no prediction, ``"raise"`` or ``"return"``.
        timeout_s: For one request, from sending it to the last byte of its answer.
        in_flight_max: The most requests unanswered at once, of all threads of a process.
        min_batch_size, max_batch_size: Bounds of Beam's batches; by default at most 128 elements.
        max_batch_duration_secs, max_batch_weight, element_size_fn: As Beam has them.
        namespace: Of metrics and logs.
        num_retries, throttle_delay_secs, window_ms, bucket_ms, overload_ratio, rate_limiter: As Beam has them.
        env_vars: Set in the workers. They are part of the pipeline: no place for secrets.

    Raises ConfigError for a URL that cannot be.
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
        # Beam's class for remote models leaves this out, and its users without batching.
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
        Answering.__init__(self, failures, namespace)
        resolve_address(_over_http(url), model=model)
        self._url = url
        self._model = model
        self._options = PredictorOptions(
            endpoint_model=model, in_flight_max=in_flight_max, timeout_s=timeout_s, retry_s=0.0
        )

    def create_client(self) -> LoadedModel:
        """Connections to the endpoint, which has told of its model. Raises EndpointError."""
        if _over_http(self._url) == self._url:
            predictor = open_predictor(None, self._url, self._options).predictor
        else:
            predictor = self._over_grpc()
        predictor.start()
        return LoadedModel(predictor, self._url)

    def _over_grpc(self) -> Predictor:
        from headrace.beam.grpc_predictor import GrpcPredictor  # noqa: PLC0415 - who asks over REST need not have gRPC

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
        """A PredictionResult for each element, in their order. What it raises, `is_retryable` judges."""
        return self._answers(batch, model, inference_args)

    def update_model_path(self, model_path: str | None = None) -> None:
        """The next client asks this URL, such as another version's."""
        if model_path:
            self._url = model_path


def _over_http(url: str) -> str:
    """The URL with http in the place of grpc, which has the same forms."""
    for scheme, http in _GRPC.items():
        if url.startswith(scheme):
            return http + url.removeprefix(scheme)
    return url
