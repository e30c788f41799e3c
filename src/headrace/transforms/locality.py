"""Which tasks a worker should do: those whose data is near it first, and others' only if it may."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from headrace.core.errors import ConfigError
from headrace.transforms.plan import Task

OtherRegions = Literal["idle", "never"]
"""When a worker does tasks of another region than its own: when it has none of its own left, or never."""


@dataclass(frozen=True, slots=True)
class Locality:
    """Where a worker is, and whether it may do others' tasks.

    A worker that declares no region has none of its own: it takes tasks as they come; with "never", only those that lie
    nowhere either. A task whose region is not known is everybody's.
    """

    region: str | None = None
    other_regions: OtherRegions = "idle"

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.other_regions not in get_args(OtherRegions):
            raise ConfigError(f"other_regions must be idle or never, not {self.other_regions!r}")

    def require_region(self) -> None:
        """Raise ConfigError for a worker whose place does not say where it is, when that decides what it may do."""
        if self.region is None and self.other_regions == "never":
            raise ConfigError("other_regions is never, and no region is declared to be the worker's own")

    def is_own(self, task: Task) -> bool:
        """Whether a worker here comes first for it, as far as anybody does."""
        if self.region is None and self.other_regions == "idle":
            return True
        return task.region is None or task.region == self.region

    def in_turn(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks that a single worker here does, in its order: its own first."""
        own = [task for task in tasks if self.is_own(task)]
        if self.other_regions == "never" or len(own) == len(tasks):
            return own
        return own + [task for task in tasks if not self.is_own(task)]
