"""The base class of runners with a `TaskScheduler`: the model's metadata, and counters of workers."""

from collections.abc import Sequence

from typing_extensions import override

from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.runs.runner import Runner
from headrace.runs.runners.scheduler import TaskScheduler


class ScheduledRunner(Runner):
    """A partial `Runner`: the figures that workers report.

    Args:
        model: The model's name, for errors.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._scheduler = TaskScheduler(model)

    @property
    @override
    def metadata(self) -> ModelMetadata:
        assert self._scheduler.metadata is not None, "a worker has loaded it before"
        return self._scheduler.metadata

    @override
    def statistics(self) -> PredictorStatistics:
        return self._scheduler.statistics()

    @override
    def reading(self) -> Sequence[str]:
        return self._scheduler.reading()

    @override
    def cpu_s(self) -> float:
        return self._scheduler.cpu_s()

    @override
    def peak_memory_mb(self) -> float:
        return self._scheduler.peak_memory_mb()
