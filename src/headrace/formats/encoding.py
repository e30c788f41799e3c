"""Text in any encoding, converted to UTF-8 chunk by chunk, as a layer below the formats of text.

Bytes that are invalid in the encoding become one byte that is invalid in UTF-8, so they cost their
record and nothing else: the decoders report a record that is not UTF-8.
"""

import codecs
import io
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from headrace.core.errors import ConfigError
from headrace.formats.contract import Buffer

UTF8: Final = "utf-8"
_UTF8_NAMES: Final = frozenset({"utf-8", "utf-8-sig"})
"""Encodings that the formats read themselves; they drop a byte order mark."""
_BOMS: Final = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
"""The byte order marks of the encodings that have either order."""
_BOM_BYTES_MAX: Final = 4
_PLACEHOLDER: Final = "\udcff"
_INVALID_UTF8: Final = b"\xff"
_ERRORS: Final = "headrace.invalid"


def checked_encoding(name: str) -> str:
    """Return the name of a text encoding that Python can decode chunk by chunk.

    Raise ConfigError for another name.
    """
    try:
        # Files of text refuse encodings of other data, such as base64.
        io.TextIOWrapper(io.BytesIO(), encoding=name)
        codecs.getincrementaldecoder(name)(_ERRORS).decode(b"", final=True)
    except (LookupError, ValueError):
        raise ConfigError(
            f"must be a text encoding known to Python, such as utf-8, latin-1 or utf-16, not {name!r:.50}"
        ) from None
    return name


def is_utf8(encoding: str) -> bool:
    """Return True for UTF-8, with or without a byte order mark."""
    return codecs.lookup(encoding).name in _UTF8_NAMES


def invalid_reason(encoding: str) -> str:
    """Return the reason of a failure whose text is not valid in this encoding."""
    return "not UTF-8" if is_utf8(encoding) else f"not {encoding}"


def to_utf8(chunks: Iterable[Buffer], encoding: str) -> Iterator[bytes]:
    """Yield the text of chunks in an encoding as UTF-8. Characters may be split over chunks.

    Invalid bytes become the byte 0xFF. UTF-16 and UTF-32 without a byte order mark are little-endian.
    """
    source = iter(chunks)
    head = b""
    while len(head) < _BOM_BYTES_MAX and (first := next(source, None)) is not None:
        head += bytes(first)
    name = codecs.lookup(encoding).name
    marks = _BOMS.get(name)
    if marks is not None and not head.startswith(marks):
        # An incremental decoder of Python refuses text without a mark.
        encoding = f"{name}-le"
    decoder = codecs.getincrementaldecoder(encoding)(_ERRORS)
    for chunk in chain((head,), source):
        text = decoder.decode(bytes(chunk))
        if text:
            yield text.encode(errors=_ERRORS)
    text = decoder.decode(b"", final=True)
    if text:
        yield text.encode(errors=_ERRORS)


def _replace_invalid(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return the replacement of invalid bytes or characters, and the offset after them."""
    if isinstance(error, UnicodeDecodeError):
        return _PLACEHOLDER, error.end
    if isinstance(error, UnicodeEncodeError):
        return _INVALID_UTF8 * (error.end - error.start), error.end
    raise error


codecs.register_error(_ERRORS, _replace_invalid)
