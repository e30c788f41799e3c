"""Server-sent events: one ``data:`` line and an empty line for each.

As MLServer and Triton frame them: no event names, no ids, no end marker; the end is the end of the body.
"""

from collections.abc import Iterable
from typing import Final

CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"

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
    events: list[bytes] = []
    *whole, _ = body.replace(b"\r\n", b"\n").split(_END)
    for block in whole:
        lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        if lines:
            events.append(b"\n".join(lines))
    return events
