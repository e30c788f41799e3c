"""The common part of both model handlers: results, failures, and metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.contrib.beam.elements import element_bytes
from headrace.contrib.beam.loaded_model import LoadedModel
from headrace.contrib.beam.results import Failures, check_failures, check_parameters, predict_elements


class HandlerMixin:
    """A mixin that precedes Beam's own class among a handler's bases, and overrides its methods.

    Args:
        failures: The treatment of elements without a prediction.
        namespace: The metrics namespace if RunInference names none.

    Raises ConfigError for an unknown value of `failures`.
    """

    def __init__(self, failures: Failures, namespace: str) -> None:
        check_failures(failures)
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
