"""A table of sequences in a test's hand: what is queued is seen, and steps are done by name."""

from collections.abc import Mapping
from typing import Any

from batching.sequence_reference import Item
from headrace.batching.sequence import LiveSequence, SequenceTable
from headrace.core.sequence import SequenceAsk, SequenceLimits

LIMITS: Mapping[str, Any] = {"live_max": 3, "idle_ms": 10_000, "requests_max": 2}


class Hand:
    """A table, with the names of what is queued, in the order of the queuing."""

    def __init__(self, *, places: int = 1, checkpoints: bool = False, **limits: Any) -> None:
        self.queue: list[LiveSequence[Item]] = []
        self.table = SequenceTable[Item](
            SequenceLimits(**{**LIMITS, **limits}),
            places,
            queue=self.queue.append,
            unqueue=self.queue.remove,
            checkpoints=checkpoints,
        )
        self.now = 0.0

    def ask(
        self,
        id: str = "",
        name: str = "",
        rows: int = 1,
        *,
        start: bool = False,
        auto: bool = False,
        ends: bool = False,
    ) -> tuple[LiveSequence[Item], Item]:
        """A request, and its sequence."""
        item = Item(name or id, rows, ends)
        ask = SequenceAsk(id, start=start, end=ends, auto=auto)
        return self.table.offer(item, ask, self.now), item

    def start(self, id: str, name: str = "", rows: int = 1, *, ends: bool = False) -> LiveSequence[Item]:
        return self.ask(id, name, rows, start=True, ends=ends)[0]

    def take(self) -> LiveSequence[Item]:
        """The step that was queued first is being done."""
        sequence = self.queue.pop(0)
        self.table.taken(sequence)
        return sequence

    def step(self, **came: bool) -> tuple[str, bool]:
        """That step is done at once: whose it was, and whether its request is over by it."""
        sequence = self.queue.pop(0)
        name = self.table.taken(sequence).name
        return name, self.table.stepped(sequence, self.now, **came)

    def over(self) -> list[tuple[str, str | None]]:
        """Who came to an end otherwise than by a step, and with what error."""
        over = [(over.item.name, over.error and str(over.error)) for over in self.table.over]
        self.table.over.clear()
        return over

    def ended(self) -> list[tuple[str, str]]:
        """Which sequences ended that somebody knows of, and why."""
        ended = [(sequence.id, str(sequence.why)) for sequence in self.table.ended]
        self.table.ended.clear()
        return ended
