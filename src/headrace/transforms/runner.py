"""What spreads tasks: the contract of every runner, and the one that does them in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from headrace.core.predictor import Predictor, PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.transforms.locality import Locality
from headrace.transforms.plan import Task
from headrace.transforms.records import Checkpoint, Spot
from headrace.transforms.work import TaskRun, Work


class Runner(Protocol):
    """Does tasks. What is done is in the ledger, whatever a runner says."""

    @property
    def metadata(self) -> ModelMetadata:
        """The model's; known once it is loaded."""
        ...

    def run(
        self,
        work: Work,
        tasks: Sequence[Task],
        *,
        begins: Mapping[tuple[int, int], Spot],
        checkpoints: Mapping[int, Checkpoint],
    ) -> bool:
        """Do the tasks, and call `work.on_task` for each; False when it was drained before all were done.

        `begins` are where ranges are known to begin, `checkpoints` how far earlier work on the tasks came. Raises what
        breaks the run.
        """
        ...

    def drain(self) -> None:
        """Begin no more tasks; keep what is under way, and return from `run`. Safe from any thread."""
        ...

    def statistics(self) -> PredictorStatistics:
        """How the model has fared so far; safe from any thread."""
        ...

    def reading(self) -> Sequence[str]:
        """The objects that are being read now; safe from any thread."""
        ...

    def cpu_s(self) -> float:
        """Processor seconds of other processes than this one."""
        ...

    def peak_memory_mb(self) -> float:
        """The most memory that other processes than this one had in use, each at its own time, added up."""
        ...


class InProcessRunner:
    """All tasks in this process, as one flow; `predictor` is started by whoever owns it."""

    def __init__(self, predictor: Predictor, locality: Locality | None = None) -> None:
        self._predictor = predictor
        self._locality = locality or Locality()
        self._run: TaskRun | None = None
        self._draining = False

    @property
    def metadata(self) -> ModelMetadata:
        """The model's."""
        return self._predictor.metadata

    def run(
        self,
        work: Work,
        tasks: Sequence[Task],
        *,
        begins: Mapping[tuple[int, int], Spot],
        checkpoints: Mapping[int, Checkpoint],
    ) -> bool:
        """See `Runner.run`."""
        ours = self._locality.in_turn(tasks)
        here = replace(work, region=self._locality.region)
        self._run = TaskRun(here, ours, self._predictor, begins=begins, checkpoints=checkpoints)
        if self._draining:
            self._run.drain()
        return self._run.execute() and len(ours) == len(tasks)

    def drain(self) -> None:
        """See `Runner.drain`."""
        self._draining = True
        if self._run is not None:
            self._run.drain()

    def statistics(self) -> PredictorStatistics:
        """See `Runner.statistics`."""
        return self._predictor.statistics()

    def reading(self) -> Sequence[str]:
        """See `Runner.reading`."""
        return [self._run.reading] if self._run is not None else []

    def cpu_s(self) -> float:
        """None."""
        return 0.0

    def peak_memory_mb(self) -> float:
        """None."""
        return 0.0
