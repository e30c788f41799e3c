"""The common part of both Beam handlers: results, failures and metrics. The module that imports Beam.

The import takes some seconds: Beam is large. Beam without its extra `gcp` logs a warning about
BigQuery, which headrace does not suppress.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from headrace.contrib.beam.elements import ElementFailure, Inference, build_batch, element_bytes, inferences
from headrace.contrib.beam.loaded_model import BatchResponses, LoadedModel
from headrace.core.errors import ConfigError, MissingExtraError, RefusedRowsError
from headrace.core.tensor import InferRequest, InferResponse

try:
    import apache_beam as _beam
    from apache_beam.ml.inference import base as _base
except ImportError as _error:
    raise MissingExtraError("beam", "Apache Beam's RunInference") from _error


beam: Any = _beam

base: Any = _base

Failures = Literal["raise", "return"]
"""Treatment of elements without a prediction, see `ModelHandler`."""

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
