"""Choose the tasks of a worker by region: tasks with data nearby first, others if allowed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from headrace.core.errors import ConfigError
from headrace.runs.plan import Task

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
