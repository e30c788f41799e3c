"""Server-sent events: one ``data:`` line and an empty line for each.

As MLServer and Triton frame them: no event names, no ids, no end marker; the end is the end of the body.
"""

from collections.abc import Iterable
from typing import Final

from headrace.core.errors import LimitError

CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"

EVENT_BYTES_MAX: Final = 64 << 20
"""One event, for whoever reads them as they come."""

_BEGIN = b"data: "
_END = b"\n\n"


def encode_event(document: bytes) -> bytes:
    """One event; `document` is JSON without line ends, as `orjson` writes it."""
    return b"".join((_BEGIN, document, _END))


def encode_events(documents: Iterable[bytes]) -> bytes:
    """Events one after another."""
    return b"".join([part for document in documents for part in (_BEGIN, document, _END)])


def decode_events(body: bytes) -> list[bytes]:
    """The data of every whole event of a body. Comments and other fields are passed over."""
    *whole, _ = body.replace(b"\r\n", b"\n").split(_END)
    return [data for block in whole if (data := _data(block.split(b"\n"))) is not None]


class EventDecoder:
    """Events from a body that comes in chunks, however it is cut; each event once, as soon as it is whole.

    An event without its empty line at the end of the body is no event.
    """

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._line = bytearray()
        self._lines: list[bytes] = []
        self._lines_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that this chunk completes. LimitError when one is longer than is taken."""
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
            if (data := _data(self._lines)) is not None:
                events.append(data)
            self._lines, self._lines_bytes = [], 0
        self._line += rest
        self._check()
        return events

    def _check(self) -> None:
        if self._lines_bytes + len(self._line) > self._event_bytes_max:
            raise LimitError(f"an event of the stream has more than {self._event_bytes_max} bytes")


def _data(lines: Iterable[bytes]) -> bytes | None:
    """The data of one event's lines; None where it has none, as a comment."""
    found = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return b"\n".join(found) if found else None
