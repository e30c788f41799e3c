"""The contract of the two ways to score a plan: in the order of the source, or by tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.core.clock import Clock
from headrace.reports.observation import RunObservation
from headrace.runs.items import ScoredBatch
from headrace.runs.ledger import Ledger
from headrace.runs.plan import Plan
from headrace.runs.progress import RunProgress
from headrace.runs.records import PlannedObject
from headrace.runs.runner import WorkFigures
from headrace.runs.settings import RunSettings
from headrace.runs.totals import RunTotals
from headrace.storage.resolve import Stores


@dataclass(frozen=True, slots=True)
class RunContext:
    """The properties that a run shares with its scoring.

    `on_batch` is called with every delivered batch. A runner of remote workers passes None from
    time to time, after an update of `progress`.
    """

    stores: Stores
    ledger: Ledger
    settings: RunSettings
    progress: RunProgress
    clock: Clock
    on_batch: Callable[[ScoredBatch | None], None]
    observation: RunObservation | None = None


class Scoring(Protocol):
    """The scoring of one run's plan. One thread uses it, except where noted."""

    @property
    def figures(self) -> WorkFigures:
        """The figures of the work."""
        ...

    @property
    def mode(self) -> str:
        """The name of the way to score. A resumption must use the same."""
        ...

    def check(self) -> None:
        """Raise ConfigError, before any write, if the model or the settings do not fit."""
        ...

    def make_plan(self, plans: Sequence[Sequence[PlannedObject]]) -> Plan:
        """Return the plan of the run's plan files."""
        ...

    def learn(self, objects: Sequence[PlannedObject], known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the first records of new objects decide, besides what is `known`.

        Return `known` if that is decided by the first delivered batch instead.
        """
        ...

    def resume(self, plan: Plan, *, finished: bool) -> None:
        """Continue the work of an earlier process: read its progress from the ledger."""
        ...

    def execute(self, plan: Plan, *, appended: bool) -> bool:
        """Score the plan's remaining objects. Return False if stopped before the end.

        Delivered work is in the ledger afterwards, also after an error. With `appended`, objects
        arrive while the run goes on.
        """
        ...

    def totals(self, plan: Plan, *, complete: bool) -> RunTotals:
        """Return the totals, counted from the ledger and checked.

        Raises CountMismatchError and LedgerError if they are wrong.
        """
        ...

    @property
    def has_committed(self) -> bool:
        """False if nothing of a failed run is worth keeping."""
        ...

    def drain(self) -> None:
        """Stop reading, and deliver and persist the batches in progress. Any thread may call it."""
        ...
