"""How much came when: counts in points of time whose step doubles, so that a run of any length takes the same room."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

POINTS_MAX: Final = 240
STEP_MIN_S: Final = 1 / 16


def _zeros() -> list[int]:
    return []


@dataclass(slots=True)
class Timeline:
    """Records, failed ones among them, and batches, counted by when they came.

    Point i is of the seconds ``i * step_s`` up to ``(i + 1) * step_s``; there are POINTS_MAX at most, since neighbours
    become one and the step doubles where a later one is needed. So the counts do not depend on the order in which they
    came. `last_s` is when the last batch came.
    """

    step_s: float = STEP_MIN_S
    records: list[int] = field(default_factory=_zeros)
    failures: list[int] = field(default_factory=_zeros)
    batches: list[int] = field(default_factory=_zeros)
    last_s: float = 0.0

    def add(self, at_s: float, *, records: int, failures: int, batches: int = 1) -> None:
        """Count what came `at_s` seconds after the beginning; what came before it is of the first point."""
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
        """Count what `other` has, which began at the same moment."""
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
        """Records, failures and batches, each by point."""
        return self.records, self.failures, self.batches

    def _extend(self, points: int) -> None:
        for counts in self.counts():
            counts.extend([0] * (points - len(counts)))

    def _double(self) -> None:
        self.step_s *= 2
        for counts in self.counts():
            counts[:] = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]

    def folded(self, by: int) -> "Timeline":
        """The same, of points `by` times as long."""
        found = Timeline(self.step_s * by, last_s=self.last_s)
        for mine, counts in zip(found.counts(), self.counts(), strict=True):
            mine += [sum(counts[i : i + by]) for i in range(0, len(counts), by)]
        return found

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back."""
        return {
            "step_s": self.step_s,
            "records": list(self.records),
            "failures": list(self.failures),
            "batches": list(self.batches),
            "last_s": self.last_s,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Timeline":
        """What `to_json` gave."""
        return cls(
            data["step_s"],
            list(data["records"]),
            list(data["failures"]),
            list(data["batches"]),
            data["last_s"],
        )
