"""Counters of responses for each protocol: plain integers, which metrics read."""

from collections.abc import Mapping
from typing import Final

UNKNOWN: Final = "unknown"
"""The action of requests for unknown paths, so that they add a single label value."""

Key = tuple[str, int | str]
"""The action, such as ``infer``, and the status: a number, or a gRPC code by name."""


class ResponseCounters:
    """The response counters of one listener: `protocol` is rest or grpc.

    Only the event loop of the listener writes them. Any thread may take a snapshot.
    """

    __slots__ = ("_broken", "_sent", "protocol")

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self._sent: dict[Key, int] = {}
        self._broken: dict[Key, int] = {}

    def add(self, action: str, status: int | str) -> None:
        """Count a response that is complete, with the status that was sent."""
        key = (action, status)
        self._sent[key] = self._sent.get(key, 0) + 1

    def add_broken(self, action: str, status: int | str) -> None:
        """Count a stream that failed after its first byte, with the status that it would have had."""
        key = (action, status)
        self._broken[key] = self._broken.get(key, 0) + 1

    def responses(self) -> Mapping[Key, int]:
        """Return the counts of all responses."""
        return dict(self._sent)

    def broken_streams(self) -> Mapping[Key, int]:
        """Return the counts of the streams that failed after their first byte."""
        return dict(self._broken)
