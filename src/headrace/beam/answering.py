"""What handlers have in common, wherever their models are: results, failures, and what is counted."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.beam.elements import element_bytes
from headrace.beam.loaded import LoadedModel
from headrace.beam.results import Failures, checked_failures, checked_parameters, results


class Answering:
    """Comes before Beam's own class among a handler's bases, and takes the place of these methods.

    Args:
        failures: What happens to elements that have no prediction.
        namespace: Of metrics, where RunInference names none.

    Raises ConfigError for other failures than there are.
    """

    def __init__(self, failures: Failures, namespace: str) -> None:
        checked_failures(failures)
        self._failures: Failures = failures
        self._own_namespace = self._namespace = namespace

    def _answers(
        self, batch: Sequence[Any], model: LoadedModel, inference_args: Mapping[str, Any] | None
    ) -> list[Any]:
        """A PredictionResult for each element, in their order; all at once, so that Beam counts a batch that fails."""
        return results(
            batch,
            model.answer,
            inference_args=inference_args,
            failures=self._failures,
            namespace=self._namespace,
        )

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """The bytes of the elements' arrays."""
        return sum(map(element_bytes, batch))

    def get_metrics_namespace(self) -> str:
        """Where RunInference names none."""
        return self._own_namespace

    def override_metrics(self, metrics_namespace: str = "") -> bool:
        """Beam counts; this is how a handler hears the namespace."""
        self._namespace = metrics_namespace or self._own_namespace
        return False

    def validate_inference_args(self, inference_args: Mapping[str, Any] | None) -> None:
        """Raises ConfigError for what cannot be a request's parameters."""
        checked_parameters(inference_args)
