"""What all runners have in common whose workers a `Dispatcher` knows: the model's metadata, and figures."""

from collections.abc import Sequence

from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.transforms.runners.dispatch import Dispatcher


class DispatchedRunner:
    """A part of `Runner`: what workers have told.

    Args:
        model: The model's name, for errors.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._dispatcher = Dispatcher(model)

    @property
    def metadata(self) -> ModelMetadata:
        """See `Runner.metadata`."""
        assert self._dispatcher.metadata is not None, "a worker has loaded it before"
        return self._dispatcher.metadata

    def statistics(self) -> PredictorStatistics:
        """See `Runner.statistics`."""
        return self._dispatcher.statistics()

    def reading(self) -> Sequence[str]:
        """See `Runner.reading`."""
        return self._dispatcher.reading()

    def cpu_s(self) -> float:
        """See `Runner.cpu_s`."""
        return self._dispatcher.cpu_s()

    def peak_memory_mb(self) -> float:
        """See `Runner.peak_memory_mb`."""
        return self._dispatcher.peak_memory_mb()
