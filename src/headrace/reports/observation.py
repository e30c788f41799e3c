"""Observe a running transform: throughput, distribution of predictions, first failures.

Input: every scored batch. Output: the plots and tables of the page, besides the report's counts.
Each batch passes through the observation, so it samples rows and counts many batches together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from headrace.core.block import Failure, FailureKind
from headrace.core.errors import DataError
from headrace.core.tensor import Array, InferResponse
from headrace.reports.distribution import (
    COLUMNS_MAX,
    KINDS,
    NumberSampler,
    OutputKind,
    Sampler,
    Series,
    TextSampler,
    writable,
)

POINTS_MAX: Final = 240
STEP_MIN_S: Final = 1 / 16

OBSERVATION_VERSION: Final = 1
OUTPUTS_MAX: Final = 16
"""Further outputs are not observed."""
FAILURES_MAX: Final = 200
EXCERPT_BYTES_MAX: Final = 200
_WHY_CHARACTERS_MAX: Final = 500
OutputKey = tuple[str, OutputKind, int]
"""The name, the kind and the number of columns of outputs that are counted together."""
_OutputSampler = tuple[np.dtype[Any], tuple[int, ...], Sampler | None]


@dataclass(slots=True)
class Timeline:
    """Records, failed records and batches, counted over time.

    Point i covers the seconds from ``i * step_s`` to ``(i + 1) * step_s``. There are at most
    POINTS_MAX points; to make space, neighbours are merged and the step doubles. The counts do not
    depend on the order of events. `last_s` is the time of the last batch.
    """

    step_s: float = STEP_MIN_S
    records: list[int] = field(default_factory=list[int])
    failures: list[int] = field(default_factory=list[int])
    batches: list[int] = field(default_factory=list[int])
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
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Timeline":
        """Return the timeline from its JSON values."""
        return msgspec.convert(data, cls)


@dataclass(frozen=True, slots=True)
class ObservedFailure:
    """A failed record for display.

    `raw` is an excerpt as text; `cut` is True if the record is longer.
    """

    at_s: float
    object: str
    member: str | None
    record: int
    line: int
    byte: int
    kind: str
    why: str
    raw: str
    cut: bool

    @classmethod
    def from_failure(cls, failure: Failure, at_s: float) -> "ObservedFailure":
        """Return the display form of a failure, `at_s` seconds after the start of the run."""
        at, raw = failure.position, failure.raw
        return cls(
            at_s=round(at_s, 3),
            object=writable(at.object),
            member=None if at.member is None else writable(at.member),
            record=at.record,
            line=at.line,
            byte=at.byte,
            kind=failure.kind.value,
            why=writable(failure.why[:_WHY_CHARACTERS_MAX]),
            raw=raw[:EXCERPT_BYTES_MAX].decode("utf-8", "replace"),
            cut=len(raw) > EXCERPT_BYTES_MAX,
        )


class ObservedBatch(Protocol):
    """A batch with its predictions, as an observation reads it."""

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The predictions by output name, one row for each predicted record."""
        ...

    @property
    def failures(self) -> Sequence[Failure]:
        """The failed records, in order."""
        ...

    @property
    def entries(self) -> int:
        """The number of predicted and failed records."""
        ...


class RunObservation:
    """The observation of a run.

    One thread calls `begin` and `add_batch`; read the results afterwards.

    Observations can be merged. Workers of one run use the same start time and clock; the merged
    observation equals that of a single worker, except for the choice of sampled rows.

    Args:
        began_s: Start of the run, on the clock of `add_batch`. None: the first call of `begin` or
            `add_batch`.
    """

    def __init__(self, began_s: float | None = None) -> None:
        self.began_s = began_s
        self.timeline = Timeline()
        self.unseen: set[str] = set()
        """Outputs that are not observed: more than OUTPUTS_MAX, or neither numbers nor text."""
        self.failures: list[ObservedFailure] = []
        """The first FAILURES_MAX failures, by time."""
        self._samplers: dict[OutputKey, Sampler] = {}
        self._samplers_by_output: dict[str, _OutputSampler] = {}
        self._batches = 0

    def clear(self) -> None:
        """Discard the observed data, but keep the start time."""
        self.timeline, self.failures = Timeline(), []
        self._samplers.clear()
        self._samplers_by_output.clear()

    def begin(self, now_s: float) -> None:
        """Set the start time, unless it is set."""
        if self.began_s is None:
            self.began_s = now_s

    def add_batch(self, batch: ObservedBatch, now_s: float) -> None:
        """Observe a batch that was delivered at `now_s`.

        About SAMPLE_VALUES_MAX values of each output are sampled at even distances, so the cost
        does not depend on the batch size. Only failures are visited one by one.
        """
        if self.began_s is None:
            self.began_s = now_s
        at_s = now_s - self.began_s
        rows = 0
        for name, data in batch.outputs.items():
            rows = len(data)
            last = self._samplers_by_output.get(name)
            if last is None or last[0] is not data.dtype or last[1] != data.shape[1:]:
                last = self._new_sampler(name, data)
            if last[2] is not None and rows:
                last[2].add(data, self._batches)
        self._batches += 1
        failed = batch.entries - rows
        broken = self._add_failures(batch.failures, at_s) if failed else 0
        self.timeline.add(at_s, records=batch.entries - broken, failures=failed - broken)

    def _new_sampler(self, name: str, data: Array) -> _OutputSampler:
        """Return the sampler for an output of this dtype and shape.

        Both may change between batches.
        """
        kind = KINDS.get(data.dtype.kind)
        if kind == "text" and isinstance(data.flat[0] if data.size else None, InferResponse):
            kind = None  # the response to a request of V2, with outputs of its own
        width = min(math.prod(data.shape[1:]), 1 if kind == "text" else COLUMNS_MAX)
        sampler = self._sampler_of((name, kind, width)) if kind and width else None
        if sampler is None:
            self.unseen.add(writable(name))
        self._samplers_by_output[name] = found = data.dtype, data.shape[1:], sampler
        return found

    def _sampler_of(self, key: OutputKey) -> Sampler | None:
        known = self._samplers.get(key)
        if known is not None:
            return known
        if len(self._samplers) >= OUTPUTS_MAX:
            return None
        name, kind, width = key
        labels = [name] if width == 1 else [f"{name}[{i}]" for i in range(width)]
        series = [Series(writable(label), kind) for label in labels]
        made = self._samplers[key] = TextSampler(series) if kind == "text" else NumberSampler(series)
        return made

    def _add_failures(self, failures: Sequence[Failure], at_s: float) -> int:
        """Keep the first failures. Return how many failures of the batch are broken objects."""
        broken = 0
        for failure in failures:
            broken += failure.kind is FailureKind.OBJECT
            if len(self.failures) < FAILURES_MAX:
                self.failures.append(ObservedFailure.from_failure(failure, at_s))
        return broken

    # What was found

    @property
    def records(self) -> int:
        """The number of observed records, failed ones included."""
        return sum(self.timeline.records)

    @property
    def series(self) -> list[Series]:
        """The series of all output columns, in the model's order."""
        return [one for series in self.outputs().values() for one in series]

    def outputs(self) -> dict[OutputKey, Sequence[Series]]:
        """Return the series by output."""
        for sampler in self._samplers.values():
            sampler.flush()
        return {key: sampler.series for key, sampler in self._samplers.items()}

    def merged(self, other: "RunObservation") -> "RunObservation":
        """Return both observations as a new one. They must have the same start time.

        The order of merges does not change the counts, nor the failures: the earliest are kept.
        """
        found = RunObservation.from_json(self.to_json())
        found.add_all(other)
        return found

    def add_all(self, other: "RunObservation") -> None:
        """Add the data of another observation; see `merged`."""
        if other.began_s is not None:
            self.began_s = other.began_s if self.began_s is None else min(self.began_s, other.began_s)
        self.timeline.add_all(other.timeline)
        self.failures = sorted([*self.failures, *other.failures], key=_failure_order)[:FAILURES_MAX]
        self.unseen |= other.unseen
        for key, theirs in other.outputs().items():
            sampler = self._sampler_of(key)
            if sampler is None:
                self.unseen.add(key[0])
                continue
            sampler.flush()
            for series, more in zip(sampler.series, theirs, strict=True):
                series.add_all(more)

    def to_json(self) -> dict[str, Any]:
        """Return the observation as JSON values."""
        return {
            "v": OBSERVATION_VERSION,
            "began_s": self.began_s,
            "timeline": self.timeline.to_json(),
            "failures": [asdict(failure) for failure in self.failures],
            "outputs": [
                {
                    "name": writable(name),
                    "kind": kind,
                    "width": width,
                    "series": [s.to_json() for s in series],
                }
                for (name, kind, width), series in self.outputs().items()
            ],
            "unseen": sorted(self.unseen),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RunObservation":
        """Return the observation from its JSON values. Raises DataError for another version."""
        if data.get("v") != OBSERVATION_VERSION:
            raise DataError(
                f"the observation has version {data.get('v')!r}, but this headrace reads version "
                f"{OBSERVATION_VERSION}: install the same headrace on all machines"
            )
        found = cls(data["began_s"])
        found.timeline = Timeline.from_json(data["timeline"])
        found.failures = msgspec.convert(data["failures"], list[ObservedFailure])
        found.unseen = set(data["unseen"])
        for output in data["outputs"]:
            series = [Series.from_json(s) for s in output["series"]]
            sampler = TextSampler(series) if output["kind"] == "text" else NumberSampler(series)
            found._samplers[output["name"], output["kind"], output["width"]] = sampler
        return found


def _failure_order(failure: ObservedFailure) -> tuple[Any, ...]:
    return failure.at_s, failure.object, failure.member or "", failure.record, failure.why
