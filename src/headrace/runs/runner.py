"""The contract of runners, which distribute tasks; the regions of workers; the runner of this process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args

from typing_extensions import override

from headrace.core.errors import ConfigError
from headrace.core.predictor import Predictor, PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.runs.plan import Task
from headrace.runs.progress import WorkFigures
from headrace.runs.task_run import TaskRun
from headrace.runs.work import RunWork

OtherRegions = Literal["idle", "never"]
"""When a worker takes tasks of other regions: if none of its own are left, or never."""


@dataclass(frozen=True, slots=True)
class Locality:
    """The region of a worker, and the rule for tasks of other regions.

    A worker without a region takes tasks in their order; with "never", only tasks without a region.
    Every worker may take a task without a region.
    """

    region: str | None = None
    other_regions: OtherRegions = "idle"

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown rule."""
        if self.other_regions not in get_args(OtherRegions):
            raise ConfigError(f"other_regions must be idle or never, not {self.other_regions!r}")

    def require_region(self) -> None:
        """Raise ConfigError if the rule is "never" and no region is set."""
        if self.region is None and self.other_regions == "never":
            raise ConfigError("other_regions is never, but the worker has no region: set its region")

    def is_local(self, task: Task) -> bool:
        """Return True if the task is in the worker's region, or may be taken by every worker."""
        if self.region is None and self.other_regions == "idle":
            return True
        return task.region is None or task.region == self.region

    def ordered(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks that a single worker runs, local tasks first."""
        own = [task for task in tasks if self.is_local(task)]
        if self.other_regions == "never" or len(own) == len(tasks):
            return own
        return own + [task for task in tasks if not self.is_local(task)]


class Runner(Protocol):
    """A runner of tasks. The ledger decides which tasks are finished, not the runner."""

    @property
    def figures(self) -> WorkFigures:
        """The figures of its work."""
        ...

    def run(self, work: RunWork, tasks: Sequence[Task]) -> bool:
        """Run the tasks and call `work.on_task` for each.

        Return False if drained before the last one.

        Raises the error that stops the run.
        """
        ...

    def drain(self) -> None:
        """Start no more tasks, persist those in progress, and return from `run`.

        Any thread may call it.
        """
        ...


class InProcessRunner(Runner, WorkFigures):
    """A runner of all tasks in this process, as one flow.

    The caller starts and stops the predictor.
    """

    def __init__(self, predictor: Predictor, locality: Locality | None = None) -> None:
        self._predictor = predictor
        self._locality = locality or Locality()
        self._run: TaskRun | None = None
        self._draining = False

    @property
    @override
    def figures(self) -> WorkFigures:
        return self

    @property
    @override
    def metadata(self) -> ModelMetadata:
        return self._predictor.metadata

    @override
    def run(self, work: RunWork, tasks: Sequence[Task]) -> bool:
        local_tasks = self._locality.ordered(tasks)
        local_work = replace(work, region=self._locality.region)
        self._run = TaskRun(local_work, local_tasks, self._predictor)
        if self._draining:
            self._run.drain()
        return self._run.execute() and len(local_tasks) == len(tasks)

    @override
    def drain(self) -> None:
        self._draining = True
        if self._run is not None:
            self._run.drain()

    @override
    def statistics(self) -> PredictorStatistics:
        return self._predictor.statistics()

    @override
    def reading(self) -> Sequence[str]:
        return [self._run.reading] if self._run is not None else []
