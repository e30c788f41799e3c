"""From a batch of elements to Beam's results: what both handlers do, and what happens to failures on the way and after."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from headrace.beam.elements import ElementFailure, Inference, batch_of, inferences
from headrace.beam.library import base, beam
from headrace.beam.loaded import Answers
from headrace.core.errors import ConfigError, RefusedRowsError
from headrace.core.tensor import InferRequest, InferResponse

Failures = Literal["raise", "return"]
"""What a handler does with elements that have no prediction; see `ModelHandler`."""

NAMESPACE: Final = "Headrace"
"""Of metrics, where a pipeline names none."""
FAILED_INFERENCES: Final = "failed_inferences"
"""The counter of elements without a prediction, where they are returned."""
_PARAMETERS: Final = (bool, int, float, str)
_TOLD_MAX: Final = 8


def checked_failures(failures: str) -> None:
    """Raises ConfigError for anything but the two words."""
    if failures not in get_args(Failures):
        raise ConfigError(f'failures is "raise" or "return", not {failures!r}')


def checked_parameters(inference_args: Mapping[str, Any] | None) -> None:
    """Raises ConfigError for what cannot be a request's parameters."""
    for name, value in (inference_args or {}).items():
        if not isinstance(value, _PARAMETERS):
            raise ConfigError(
                f"inference_args go to the model as parameters of the request: {name!r} is a {type(value).__name__}, "
                "and must be a bool, a number or a str"
            )


def results(
    elements: Iterable[Any],
    answer: Callable[[Sequence[InferRequest]], Answers],
    *,
    inference_args: Mapping[str, Any] | None,
    failures: Failures,
    namespace: str,
) -> list[Any]:
    """A PredictionResult for each element, in their order.

    Raises what is not about elements; with ``failures="raise"``, RefusedRowsError that names the elements at fault.
    """
    examples = list(elements)
    batch = batch_of(examples, inference_args or {})
    answers = answer([asked.request for asked in batch.asked])
    found = inferences(batch, answers.each)
    if failures == "raise":
        _refuse(found, answers.model_id)
    elif failed := sum(isinstance(one, ElementFailure) for one in found):
        beam.metrics.Metrics.counter(namespace, FAILED_INFERENCES).inc(failed)
    return [
        base.PredictionResult(example, inference, answers.model_id)
        for example, inference in zip(examples, found, strict=True)
    ]


def _refuse(found: Sequence[Inference], model_id: str) -> None:
    whys = {index: why for index, one in enumerate(found) if (why := _why(one))}
    if whys:
        told = "; ".join(f"element {index}: {why}" for index, why in list(whys.items())[:_TOLD_MAX])
        raise RefusedRowsError(
            model_id,
            f"{len(whys)} of {len(found)} elements of this batch have no prediction: {told}. "
            'To lose them alone, make the handler with failures="return"',
        )


def _why(inference: Inference) -> str:
    """Why an element, or some rows of it, have no prediction; nothing where they have."""
    if isinstance(inference, ElementFailure):
        return inference.why or "no reason given"
    if isinstance(inference, InferResponse):
        return "; ".join(f"row {failure.row}: {failure.why}" for failure in inference.failures[:_TOLD_MAX])
    return ""


class SplitResults(NamedTuple):
    """Two PCollections: results that have a prediction, and results whose `inference` is an `ElementFailure`."""

    predictions: Any
    failures: Any


class SplitFailures(beam.PTransform):
    """Parts what comes from a handler with ``failures="return"``; results may be keyed.

    ::

        predictions, failures = rows | RunInference(handler) | SplitFailures()
    """

    def expand(self, pcoll: Any) -> Any:  # Beam takes a hint of what is no PCollection for a mistake
        """A SplitResults; see the class."""
        parted = pcoll | beam.Partition(_part, 2)
        return SplitResults(parted[0], parted[1])


def _part(result: Any, parts: int) -> int:
    del parts
    # A pair of key and result is a plain tuple; a result is a tuple too, with names.
    found = result if isinstance(result, base.PredictionResult) else result[1]
    return int(isinstance(found.inference, ElementFailure))
