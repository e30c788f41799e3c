"""What a transform looks like while it runs: how much came when, how predictions are distributed, what failed first.

Arrives: every scored batch. Leaves: what the page shows beside the report's counts. It stands on the way of every
batch, so it looks at some of its rows only, keeps them, and counts many batches' together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from headrace.core.block import Failure, FailureKind
from headrace.core.errors import DataError
from headrace.core.tensor import Array
from headrace.pipeline.items import ScoredBatch
from headrace.transforms.series import (
    COLUMNS_MAX,
    KINDS,
    NumberWatch,
    OutputKind,
    Series,
    TextWatch,
    Watch,
    writable,
)
from headrace.transforms.timeline import Timeline

OBSERVATION_VERSION: Final = 1
OUTPUTS_MAX: Final = 16
"""More outputs than this are not looked at."""
FAILURES_MAX: Final = 200
EXCERPT_BYTES_MAX: Final = 200
_WHY_CHARACTERS_MAX: Final = 500
OutputKey = tuple[str, OutputKind, int]
"""Name, kind, and how many columns: what is counted together."""
_Last = tuple[np.dtype[Any], tuple[int, ...], Watch | None]


@dataclass(frozen=True, slots=True)
class ObservedFailure:
    """A failed record, for people: `raw` is an excerpt as text, with what is no UTF-8 replaced; `cut`: there is more."""

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
    def of(cls, failure: Failure, at_s: float) -> "ObservedFailure":
        """A failure that came so many seconds after the beginning."""
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


class Observation:
    """Looks at a run. One thread calls `begin` and `batch`; look at what it found when that is done.

    All that it finds adds up: of a run that several processes do, each makes one that began at the same moment of the
    same clock, and `merged` is as if one had seen all of it (but for what of a batch is looked at, which `batch` says).

    Args:
        began_s: When the run began, on the clock of `batch`; None: with the first call of `begin` or `batch`.
    """

    def __init__(self, began_s: float | None = None) -> None:
        self.began_s = began_s
        self.timeline = Timeline()
        self.unseen: set[str] = set()
        """Outputs that were not looked at: there are more than OUTPUTS_MAX, or they are neither numbers nor text."""
        self.failures: list[ObservedFailure] = []
        """The first FAILURES_MAX of them, by when they came."""
        self._watches: dict[OutputKey, Watch] = {}
        self._last: dict[str, _Last] = {}
        self._batches = 0

    def clear(self) -> None:
        """Forget what was seen, but not when the run began."""
        self.timeline, self.failures = Timeline(), []
        self._watches.clear()
        self._last.clear()

    def begin(self, now_s: float) -> None:
        """The run begins now, unless it has."""
        if self.began_s is None:
            self.began_s = now_s

    def batch(self, scored: ScoredBatch, now_s: float) -> None:
        """Look at a batch that was delivered at `now_s`.

        About SAMPLE_VALUES_MAX values of each output are looked at, at even distances, so that it costs the same for
        all batches; only what failed is gone through one by one.
        """
        if self.began_s is None:
            self.began_s = now_s
        at_s = now_s - self.began_s
        rows = 0
        for name, data in scored.outputs.items():
            rows = len(data)
            last = self._last.get(name)
            if last is None or last[0] is not data.dtype or last[1] != data.shape[1:]:
                last = self._watch(name, data)
            if last[2] is not None and rows:
                last[2].look(data, self._batches)
        self._batches += 1
        failed = scored.entries - rows
        broken = self._fail(scored, at_s) if failed else 0
        self.timeline.add(at_s, records=scored.entries - broken, failures=failed - broken)

    def _watch(self, name: str, data: Array) -> _Last:
        """What looks at an output of this type and shape; outputs may change both from batch to batch."""
        kind = KINDS.get(data.dtype.kind)
        width = min(math.prod(data.shape[1:]), 1 if kind == "text" else COLUMNS_MAX)
        watch = self._watch_of((name, kind, width)) if kind and width else None
        if watch is None:
            self.unseen.add(writable(name))
        self._last[name] = found = data.dtype, data.shape[1:], watch
        return found

    def _watch_of(self, key: OutputKey) -> Watch | None:
        known = self._watches.get(key)
        if known is not None:
            return known
        if len(self._watches) >= OUTPUTS_MAX:
            return None
        name, kind, width = key
        labels = [name] if width == 1 else [f"{name}[{i}]" for i in range(width)]
        series = [Series(writable(label), kind) for label in labels]
        made = self._watches[key] = TextWatch(series) if kind == "text" else NumberWatch(series)
        return made

    def _fail(self, scored: ScoredBatch, at_s: float) -> int:
        """Keep the first failures; how many of the batch's are of objects."""
        broken = 0
        for span in scored.spans:
            for failure in span.failures:
                broken += failure.kind is FailureKind.OBJECT
                if len(self.failures) < FAILURES_MAX:
                    self.failures.append(ObservedFailure.of(failure, at_s))
        return broken

    # What was found

    @property
    def records(self) -> int:
        """How many records came, failed ones among them."""
        return sum(self.timeline.records)

    @property
    def series(self) -> list[Series]:
        """What was seen of each output's columns, in the model's order."""
        return [one for series in self.outputs().values() for one in series]

    def outputs(self) -> dict[OutputKey, Sequence[Series]]:
        """The same, by output."""
        for watch in self._watches.values():
            watch.count()
        return {key: watch.series for key, watch in self._watches.items()}

    def merged(self, other: "Observation") -> "Observation":
        """Both together, as a new one; they must have begun at the same moment.

        What was counted does not depend on who is merged with whom first; nor do the failures, of which the first of
        all are kept.
        """
        found = Observation.from_json(self.to_json())
        found.add_all(other)
        return found

    def add_all(self, other: "Observation") -> None:
        """Count what `other` counted; see `merged`."""
        if other.began_s is not None:
            self.began_s = other.began_s if self.began_s is None else min(self.began_s, other.began_s)
        self.timeline.add_all(other.timeline)
        self.failures = sorted([*self.failures, *other.failures], key=_when)[:FAILURES_MAX]
        self.unseen |= other.unseen
        for key, theirs in other.outputs().items():
            watch = self._watch_of(key)
            if watch is None:
                self.unseen.add(key[0])
                continue
            watch.count()
            for series, more in zip(watch.series, theirs, strict=True):
                series.add_all(more)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back, of what JSON has."""
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
    def from_json(cls, data: Mapping[str, Any]) -> "Observation":
        """What `to_json` gave; DataError for another version's."""
        if data.get("v") != OBSERVATION_VERSION:
            raise DataError(
                f"an observation of version {data.get('v')!r}, and this program knows {OBSERVATION_VERSION}: "
                "run the same headrace everywhere"
            )
        found = cls(data["began_s"])
        found.timeline = Timeline.from_json(data["timeline"])
        found.failures = [ObservedFailure(**failure) for failure in data["failures"]]
        found.unseen = set(data["unseen"])
        for output in data["outputs"]:
            series = [Series.from_json(s) for s in output["series"]]
            watch = TextWatch(series) if output["kind"] == "text" else NumberWatch(series)
            found._watches[output["name"], output["kind"], output["width"]] = watch
        return found


def _when(failure: ObservedFailure) -> tuple[Any, ...]:
    return failure.at_s, failure.object, failure.member or "", failure.record, failure.why
