"""Server-sent events as MLServer and Triton frame them: a ``data:`` line and an empty line.

There are no event names, ids or end marker. The end of the body ends the stream.
"""

from typing import Final

from headrace.core.errors import LimitError

CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"

EVENT_BYTES_MAX: Final = 64 << 20
"""Default limit of the bytes of one event in `EventDecoder`."""

_BEGIN = b"data: "
_END = b"\n\n"


def encode_event(document: bytes) -> bytes:
    """Return one event. `document` is JSON without line ends, as `orjson` writes it."""
    return b"".join((_BEGIN, document, _END))


class EventDecoder:
    """An incremental decoder of events from the chunks of a body. Chunks may be cut anywhere.

    Each event is returned once, as soon as it is complete. An event without its empty line at the
    end of the body is dropped.
    """

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._line = bytearray()
        self._lines: list[bytes] = []
        self._lines_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that this chunk completes.

        Raises LimitError for an event above `event_bytes_max`.
        """
        *ended, rest = chunk.split(b"\n")
        events: list[bytes] = []
        for end in ended:
            self._line += end
            line = bytes(self._line).removesuffix(b"\r")
            self._line.clear()
            if line:
                self._lines.append(line)
                self._lines_bytes += len(line)
                self._check()
                continue
            lines = [part[5:].removeprefix(b" ") for part in self._lines if part.startswith(b"data:")]
            # By the standard, empty data means no event.
            if data := b"\n".join(lines):
                events.append(data)
            self._lines, self._lines_bytes = [], 0
        self._line += rest
        self._check()
        return events

    def _check(self) -> None:
        if self._lines_bytes + len(self._line) > self._event_bytes_max:
            raise LimitError(f"an event of the stream has more than {self._event_bytes_max} bytes")
