"""headrace models inside Beam's own RunInference: a handler for workers, and the base of all handlers.

The module that imports Beam. The import takes some seconds: Beam is large. Beam without its extra
`gcp` logs a warning about BigQuery, which headrace does not suppress.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from headrace.app.models import PredictorOptions, open_predictor
from headrace.config.model_argument import is_fetched
from headrace.contrib.beam.elements import ElementFailure, Inference, build_batch, element_bytes, inferences
from headrace.contrib.beam.loaded_model import BatchResponses, LoadedModel
from headrace.core.errors import ConfigError, HeadraceError, MissingExtraError, RefusedRowsError
from headrace.core.model import Model
from headrace.core.tensor import InferRequest, InferResponse

try:
    import apache_beam as _beam
    from apache_beam.ml.inference import base as _base
except ImportError as _error:
    raise MissingExtraError("beam", "Apache Beam's RunInference") from _error

beam: Any = _beam
base: Any = _base

_log = logging.getLogger("headrace.beam")

Failures = Literal["raise", "return"]
"""Treatment of elements without a prediction, see `ModelHandler`."""

BeamModel = str | Path | type[Model] | Callable[[], Model]
"""A model: a file (``model.onnx``, ``file.py:Class``), a folder, ``module:Class``, a URI, or a class."""

MAX_BATCH_ROWS: Final = Model.max_batch_rows
"""Batch size for a model that cannot be loaded where the pipeline is built."""

NAMESPACE: Final = "Headrace"
"""Default namespace of metrics."""

FAILED_INFERENCES: Final = "failed_inferences"
"""Counter of elements without a prediction, with ``failures="return"``."""

_PARAMETERS: Final = (bool, int, float, str)
_NAMED_MAX: Final = 8


class HandlerMixin:
    """A mixin that precedes Beam's own class among a handler's bases, and overrides its methods.

    Args:
        failures: The treatment of elements without a prediction.
        namespace: The metrics namespace if RunInference names none.

    Raises ConfigError for an unknown value of `failures`.
    """

    def __init__(self, failures: Failures, namespace: str) -> None:
        if failures not in get_args(Failures):
            raise ConfigError(f'failures must be "raise" or "return", not {failures!r}')
        self._failures: Failures = failures
        self._own_namespace = self._namespace = namespace

    def _predict(
        self, batch: Sequence[Any], model: LoadedModel, inference_args: Mapping[str, Any] | None
    ) -> list[Any]:
        """Return a PredictionResult for each element, in order.

        All are computed before Beam sees one.

        Beam then counts a failing batch correctly.
        """
        return predict_elements(
            batch,
            model.infer,
            inference_args=inference_args,
            failures=self._failures,
            namespace=self._namespace,
        )

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Return the bytes of the elements' arrays."""
        return sum(map(element_bytes, batch))

    def get_metrics_namespace(self) -> str:
        """Return the namespace for a RunInference that names none."""
        return self._own_namespace

    def override_metrics(self, metrics_namespace: str = "") -> bool:
        """Store the namespace that Beam passes. Return False: Beam itself counts."""
        self._namespace = metrics_namespace or self._own_namespace
        return False

    def validate_inference_args(self, inference_args: Mapping[str, Any] | None) -> None:
        """Raise ConfigError for values that cannot be a request's parameters."""
        check_parameters(inference_args)


class ModelHandler(HandlerMixin, base.ModelHandler):
    """A handler that runs a headrace model in `apache_beam.ml.inference.RunInference`.

    ::

        predictions = rows | RunInference(ModelHandler("churn.onnx"))

    Elements are numpy arrays (one row each, for a model of one input), dicts of arrays by input
    name (one row each), or `InferRequest` (one row or more). For each element there is a
    `PredictionResult(example, inference, model_id)`. The inference is a dict of the row's outputs
    by name, or, for a request, an `InferResponse`. Rows of one batch may differ in shape: rows of
    equal shapes share a request.

    A failure of the model itself (it does not load, returns n-1 rows for n, dies) fails the batch.
    A row that the model refuses, or that does not fit, is isolated. With ``failures="return"`` its
    inference is an `ElementFailure`, and all other rows have their predictions; `SplitFailures`
    separates them. With ``failures="raise"`` the batch fails with a RefusedRowsError that names the
    row. Beam's `with_exception_handling` then puts the whole batch aside, as for every handler.

    Each process loads the model once, in an engine of its own (with `large_model`, one process for
    all). The engine stops when Beam drops the model, or the process ends. RunInference's
    `inference_args` are parameters of each request.

    Args:
        model: A model as for `headrace.stream`, but no Model object. Each machine fetches a URI such as
            ``s3://models/churn.onnx`` into its cache, with the credentials of its environment. Plain
            paths are paths on the workers.
        options: Instances and `model_options`.
        failures: The treatment of elements without a prediction, ``"raise"`` or ``"return"``.
        min_batch_size, max_batch_size: Bounds of Beam's batches. The default maximum is the row
            limit of the model's calls. To find it, the model is loaded once where the pipeline is
            built, unless the model is not there, or with `large_model`.
        max_batch_duration_secs, max_batch_weight, element_size_fn, batch_length_fn,
            batch_bucket_boundaries: As in Beam.
        large_model: Keep one copy of the model for all processes of a worker. Its requests cross a
            pipe.
        model_copies: The number of copies for all processes of a worker.
        min_ram, accelerator: Resource hints, such as ``"12GB"`` and
            ``"type:nvidia-tesla-t4;count:1;install-nvidia-driver"``.
        env_vars: Variables set in the workers before the model is loaded. They are part of the
            pipeline: do not put secrets there.

    Raises ConfigError for invalid arguments. May be pickled before and after use.
    """

    def __init__(
        self,
        model: BeamModel,
        *,
        options: PredictorOptions | None = None,
        failures: Failures = "raise",
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_duration_secs: int | None = None,
        max_batch_weight: int | None = None,
        element_size_fn: Callable[[Any], int] | None = None,
        batch_length_fn: Callable[[Any], int] | None = None,
        batch_bucket_boundaries: list[int] | None = None,
        large_model: bool = False,
        model_copies: int | None = None,
        min_ram: str | None = None,
        accelerator: str | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> None:
        base.ModelHandler.__init__(
            self,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            max_batch_duration_secs=max_batch_duration_secs,
            max_batch_weight=max_batch_weight,
            element_size_fn=element_size_fn,
            batch_length_fn=batch_length_fn,
            batch_bucket_boundaries=batch_bucket_boundaries,
            large_model=large_model,
            model_copies=model_copies,
            env_vars=dict(env_vars or {}),
        )
        HandlerMixin.__init__(self, failures, NAMESPACE)
        if not isinstance(model, str | Path) and not callable(model):
            raise ConfigError(
                f"model must be a model's name or class, from which every worker makes its own model, "
                f"not a {type(model).__name__}"
            )
        self._model: str | Callable[[], Model] = str(model) if isinstance(model, Path) else model
        self._options = options or PredictorOptions()
        self._resource_hints = {
            name: value
            for name, value in (("min_ram", min_ram), ("accelerator", accelerator))
            if value is not None
        }
        self._rows_hint: int | None = None

    def load_model(self) -> LoadedModel:
        """Return the model in a started engine. Raises ModelLoadError and similar errors."""
        if not isinstance(self._model, str):
            return _loaded(self._model, self._options, getattr(self._model, "__name__", "model"))
        return _loaded(self._model, self._options, self._model)

    def run_inference(
        self, batch: Sequence[Any], model: LoadedModel, inference_args: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return a PredictionResult for each element, in order.

        All are computed before Beam sees one.
        """
        return self._predict(batch, model, inference_args)

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """Return Beam's batch settings.

        The default of `max_batch_size` is the row limit of the model's calls.
        """
        settings: dict[str, Any] = dict(base.ModelHandler.batch_elements_kwargs(self))
        if "max_batch_size" not in settings:
            settings["max_batch_size"] = max(self._model_rows(), settings.get("min_batch_size", 1))
        return settings

    def _model_rows(self) -> int:
        if self._rows_hint is None:
            self._rows_hint = self._probe_max_rows()
        return self._rows_hint

    def _probe_max_rows(self) -> int:
        if self.share_model_across_processes() or is_fetched(self._model):
            return MAX_BATCH_ROWS
        try:
            loaded = self.load_model()
        except HeadraceError as error:
            _log.info(
                "%s cannot be loaded where the pipeline is built; its row limit is not known: %s",
                self._model,
                error,
            )
            return MAX_BATCH_ROWS
        try:
            return loaded.metadata().max_batch_rows
        finally:
            loaded.close()

    def get_resource_hints(self) -> dict[str, Any]:
        """Return the resource hints."""
        return dict(self._resource_hints)

    def update_model_path(self, model_path: str | None = None) -> None:
        """Set the model of the next `load_model`: a path, a URI, or a name, as for `model`."""
        if model_path:
            self._model = model_path


def _loaded(model: str | Callable[[], Model], options: PredictorOptions, model_id: str) -> LoadedModel:
    predictor = open_predictor(model, None, options).predictor
    predictor.start()
    return LoadedModel(predictor, model_id)


def check_parameters(inference_args: Mapping[str, Any] | None) -> None:
    """Raise ConfigError for values that cannot be a request's parameters."""
    for name, value in (inference_args or {}).items():
        if not isinstance(value, _PARAMETERS):
            raise ConfigError(
                f"inference_args are parameters of the request: {name!r} is a {type(value).__name__}, "
                "but must be a bool, a number or a str"
            )


def predict_elements(
    elements: Iterable[Any],
    infer: Callable[[Sequence[InferRequest]], BatchResponses],
    *,
    inference_args: Mapping[str, Any] | None,
    failures: Failures,
    namespace: str,
) -> list[Any]:
    """Return a PredictionResult for each element, in order.

    Raises:
        RefusedRowsError: Elements have no prediction, and `failures` is "raise". The message names
            them.
        HeadraceError: An error that is not about single elements.
    """
    examples = list(elements)
    batch = build_batch(examples, inference_args or {})
    responses = infer([each.request for each in batch.requests])
    found = inferences(batch, responses.each)
    if failures == "raise":
        _refuse(found, responses.model_id)
    elif failed := sum(isinstance(inference, ElementFailure) for inference in found):
        beam.metrics.Metrics.counter(namespace, FAILED_INFERENCES).inc(failed)
    return [
        base.PredictionResult(example, inference, responses.model_id)
        for example, inference in zip(examples, found, strict=True)
    ]


def _refuse(found: Sequence[Inference], model_id: str) -> None:
    reasons = {index: why for index, inference in enumerate(found) if (why := _failure_reason(inference))}
    if reasons:
        listed = "; ".join(f"element {index}: {why}" for index, why in list(reasons.items())[:_NAMED_MAX])
        raise RefusedRowsError(
            model_id,
            f"{len(reasons)} of {len(found)} elements of this batch have no prediction: {listed}. "
            'A handler with failures="return" returns predictions for the others',
        )


def _failure_reason(inference: Inference) -> str:
    """Return the reason why an element, or some of its rows, have no prediction, "" if they have."""
    if isinstance(inference, ElementFailure):
        return inference.why or "no reason given"
    if isinstance(inference, InferResponse):
        return "; ".join(f"row {failure.row}: {failure.why}" for failure in inference.failures[:_NAMED_MAX])
    return ""


class SplitResults(NamedTuple):
    """Two PCollections: results with a prediction, and results with an `ElementFailure`."""

    predictions: Any
    failures: Any


class SplitFailures(beam.PTransform):
    """A transform that separates the results of a handler with ``failures="return"``.

    Results may be keyed.

    ::

        predictions, failures = rows | RunInference(handler) | SplitFailures()
    """

    def expand(self, pcoll: Any) -> Any:  # Beam would take a type hint of a tuple for a mistake.
        """Return a SplitResults."""
        parts = pcoll | beam.Partition(_part, 2)
        return SplitResults(parts[0], parts[1])


def _part(result: Any, parts: int) -> int:
    del parts
    # A pair of a key and a result is a plain tuple; a result is a named tuple.
    found = result if isinstance(result, base.PredictionResult) else result[1]
    return int(isinstance(found.inference, ElementFailure))
