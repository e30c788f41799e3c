"""A sequence table driven by a test, with its queued steps visible."""

from collections.abc import Mapping
from typing import Any

from batching.sequence_reference import Item
from headrace.batching.sequence import LiveSequence, SequenceTable
from headrace.core.sequence import SequenceControl, SequenceLimits

LIMITS: Mapping[str, Any] = {"live_max": 3, "idle_ms": 10_000, "requests_max": 2}


class TableDriver:
    """A sequence table with a list of its queued sequences, in order."""

    def __init__(self, *, instances: int = 1, checkpoints: bool = False, **limits: Any) -> None:
        self.queue: list[LiveSequence[Item]] = []
        self.table = SequenceTable[Item](
            SequenceLimits(**{**LIMITS, **limits}),
            instances,
            queue=self.queue.append,
            unqueue=self.queue.remove,
            checkpoints=checkpoints,
            keeps_checkpoint=lambda name: name not in self.deleting,
        )
        self.deleting: set[str] = set()
        """Ids whose checkpoints are about to be deleted."""
        self.now = 0.0

    def request(
        self,
        id: str = "",
        name: str = "",
        rows: int = 1,
        *,
        start: bool = False,
        auto: bool = False,
        ends: bool = False,
        namespace: str = "",
    ) -> tuple[LiveSequence[Item], Item]:
        """Offer a request. Return its sequence and the request."""
        item = Item(name or id, rows, ends)
        control = SequenceControl(id, start=start, end=ends, auto=auto, namespace=namespace)
        return self.table.offer(item, control, self.now), item

    def start(self, id: str, name: str = "", rows: int = 1, *, ends: bool = False) -> LiveSequence[Item]:
        return self.request(id, name, rows, start=True, ends=ends)[0]

    def take(self) -> LiveSequence[Item]:
        """Begin the first queued step."""
        sequence = self.queue.pop(0)
        self.table.begin_step(sequence)
        return sequence

    def step(self, **flags: bool) -> tuple[str, bool]:
        """Begin and end the first queued step. Return its request's name, and True if the request
        ended.
        """
        sequence = self.queue.pop(0)
        name = self.table.begin_step(sequence).name
        return name, self.table.end_step(sequence, self.now, **flags)

    def request_ends(self) -> list[tuple[str, str | None]]:
        """Return and clear the requests that ended without a step, with their errors."""
        ends = [(end.item.name, end.error and str(end.error)) for end in self.table.request_ends]
        self.table.request_ends.clear()
        return ends

    def ended_sequences(self) -> list[tuple[str, str]]:
        """Return and clear the ended sequences, with their reasons."""
        ended = [(sequence.id, str(sequence.end_reason)) for sequence in self.table.ended_sequences]
        self.table.ended_sequences.clear()
        return ended
