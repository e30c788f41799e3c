"""A parser of server-sent events with names and ids, from chunks of any size."""

from dataclasses import dataclass
from typing import Final

from headrace.core.errors import LimitError

EVENT_BYTES_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `id` is the last id received, possibly with an earlier event."""

    name: str
    id: str
    data: bytes


class EventReader:
    """A parser of one body.

    Comments and unknown fields are skipped; an unfinished event is dropped.
    """

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._rest = b""
        self._size = 0
        self._name = ""
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that this chunk completes.

        Raise LimitError for an event that is too long.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events: list[Event] = []
        for line in lines:
            bare = line.removesuffix(b"\r")
            if bare:
                self._line(bare)
                continue
            if self._data:
                events.append(Event(self._name or "message", self._id, b"\n".join(self._data)))
            self._name, self._data, self._size = "", [], 0
        if self._size + len(self._rest) > self._event_bytes_max:
            raise LimitError(f"an event of the stream exceeds {self._event_bytes_max} bytes")
        return events

    def _line(self, line: bytes) -> None:
        self._size += len(line)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
