"""Count events over time in constant memory: the step of the timeline doubles as the run gets longer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

POINTS_MAX: Final = 240
STEP_MIN_S: Final = 1 / 16


def _zeros() -> list[int]:
    return []


@dataclass(slots=True)
class Timeline:
    """Records, failed records and batches, counted over time.

    Point i covers the seconds from ``i * step_s`` to ``(i + 1) * step_s``. There are at most
    POINTS_MAX points; to make space, neighbours are merged and the step doubles. The counts do not
    depend on the order of events. `last_s` is the time of the last batch.
    """

    step_s: float = STEP_MIN_S
    records: list[int] = field(default_factory=_zeros)
    failures: list[int] = field(default_factory=_zeros)
    batches: list[int] = field(default_factory=_zeros)
    last_s: float = 0.0

    def add(self, at_s: float, *, records: int, failures: int, batches: int = 1) -> None:
        """Count events at `at_s` seconds after the start; earlier events count for the first point."""
        at_s = max(at_s, 0.0)
        self.last_s = max(self.last_s, at_s)
        point = int(at_s / self.step_s)
        while point >= POINTS_MAX:
            self._double()
            point = int(at_s / self.step_s)
        if point >= len(self.records):
            self._extend(point + 1)
        self.records[point] += records
        self.failures[point] += failures
        self.batches[point] += batches

    def add_all(self, other: "Timeline") -> None:
        """Add the counts of another timeline with the same start."""
        while self.step_s < other.step_s:
            self._double()
        ratio = int(self.step_s / other.step_s)
        if other.records:
            self._extend((len(other.records) - 1) // ratio + 1)
        for mine, theirs in zip(self.counts(), other.counts(), strict=True):
            for point, count in enumerate(theirs):
                mine[point // ratio] += count
        self.last_s = max(self.last_s, other.last_s)

    def counts(self) -> tuple[list[int], list[int], list[int]]:
        """Return the counts of records, failures and batches by point."""
        return self.records, self.failures, self.batches

    def _extend(self, points: int) -> None:
        for counts in self.counts():
            counts.extend([0] * (points - len(counts)))

    def _double(self) -> None:
        self.step_s *= 2
        for counts in self.counts():
            counts[:] = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]

    def folded(self, by: int) -> "Timeline":
        """Return the timeline with points `by` times as long."""
        found = Timeline(self.step_s * by, last_s=self.last_s)
        for mine, counts in zip(found.counts(), self.counts(), strict=True):
            mine += [sum(counts[i : i + by]) for i in range(0, len(counts), by)]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the timeline as JSON values."""
        return {
            "step_s": self.step_s,
            "records": list(self.records),
            "failures": list(self.failures),
            "batches": list(self.batches),
            "last_s": self.last_s,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Timeline":
        """Return the timeline from its JSON values."""
        return cls(
            data["step_s"],
            list(data["records"]),
            list(data["failures"]),
            list(data["batches"]),
            data["last_s"],
        )
