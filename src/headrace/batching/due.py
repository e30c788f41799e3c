"""Which of many things is due first, where most of them are over before they are due. Pure."""

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_SPARE: Final = 16

T = TypeVar("T", bound=Hashable)


class Due(Generic[T]):
    """Things with a time each, at most one entry for a thing.

    Adding and dropping one costs the logarithm of how many there are, on average. Of what was dropped, no more is held than of
    what is there, and a few.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._entries: dict[T, int] = {}
        self._numbers = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._entries)

    def add(self, thing: T, at_s: float) -> None:
        """It is due then; what was said of it before is forgotten."""
        self._numbers += 1
        self._entries[thing] = self._numbers
        heapq.heappush(self._heap, (at_s, self._numbers, thing))
        self._trim()

    def drop(self, thing: T) -> None:
        """It is never due; nothing when it was not to be."""
        if self._entries.pop(thing, None) is not None:
            self._trim()

    def next_s(self) -> float | None:
        """When the first one is due; None where there is none."""
        if not self._heap:
            return None
        self._skip()
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> T | None:
        """One that is due by now, the first one first; it is forgotten. None: none is."""
        self._skip()
        if not self._heap or self._heap[0][0] > now:
            return None
        thing = heapq.heappop(self._heap)[2]
        del self._entries[thing]
        return thing

    def _trim(self) -> None:
        # What was dropped stays in the heap until it is due: not more of it than of what counts, and a few.
        if len(self._heap) > 2 * len(self._entries) + _SPARE:
            self._heap = [entry for entry in self._heap if self._entries.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def _skip(self) -> None:
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
