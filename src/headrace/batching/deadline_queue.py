"""A priority queue of deadlines in which most items are removed before their deadline."""

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_SPARE: Final = 16

T = TypeVar("T", bound=Hashable)


class DeadlineQueue(Generic[T]):
    """A queue of items by deadline, with one deadline for each item.

    Adding and discarding an item takes amortised logarithmic time. The heap keeps a discarded entry
    until it is due or until a rebuild: it holds a small constant more than twice the live entries.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._entries: dict[T, int] = {}
        self._numbers = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._entries)

    def add(self, item: T, at_s: float) -> None:
        """Set the deadline of an item, in place of any earlier deadline."""
        self._numbers += 1
        self._entries[item] = self._numbers
        heapq.heappush(self._heap, (at_s, self._numbers, item))
        self._trim()

    def discard(self, item: T) -> None:
        """Remove an item. Do nothing if the item is absent."""
        if self._entries.pop(item, None) is not None:
            self._trim()

    def next_due_s(self) -> float | None:
        """Return the earliest deadline, or None if the queue is empty."""
        if not self._heap:
            return None
        self._skip()
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> T | None:
        """Remove and return the item with the earliest deadline.

        Return None if no deadline is reached at `now`.
        """
        self._skip()
        if not self._heap or self._heap[0][0] > now:
            return None
        item = heapq.heappop(self._heap)[2]
        del self._entries[item]
        return item

    def _trim(self) -> None:
        # Discarded entries stay in the heap until they are due. Rebuilding at this size bounds
        # their number at amortised constant cost.
        if len(self._heap) > 2 * len(self._entries) + _SPARE:
            self._heap = [entry for entry in self._heap if self._entries.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def _skip(self) -> None:
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
