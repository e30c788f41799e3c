"""How one door's answers are counted: plain integers, read by whoever makes metrics of them."""

from collections.abc import Mapping
from typing import Final

UNKNOWN: Final = "unknown"
"""The action of a request for something that is not there: whatever callers make up, it is one label."""

Key = tuple[str, int | str]
"""What was asked for, such as ``infer``, and the status that was sent: a number, or a gRPC code by name."""


class Answers:
    """Counts of one door, written in its event loop alone; snapshots from any thread."""

    __slots__ = ("_broken", "_sent", "door")

    def __init__(self, door: str) -> None:
        self.door = door
        self._sent: dict[Key, int] = {}
        self._broken: dict[Key, int] = {}

    def add(self, action: str, status: int | str) -> None:
        """One answer that is over, with the status that its caller was sent."""
        key = (action, status)
        self._sent[key] = self._sent.get(key, 0) + 1

    def broke(self, action: str, status: int | str) -> None:
        """One stream that failed after its begin, with the status that would have said so at the begin."""
        key = (action, status)
        self._broken[key] = self._broken.get(key, 0) + 1

    def sent(self) -> Mapping[Key, int]:
        """All answers so far."""
        return dict(self._sent)

    def broken(self) -> Mapping[Key, int]:
        """Those of them that were streams, and failed after their begin."""
        return dict(self._broken)
