"""The google-crc32c adapter (extra `tfrecord`): checksums of TFRecord files by CPU instruction."""

from typing import Any

from headrace.core.errors import MissingExtraError

try:
    import google_crc32c
except ImportError as error:
    raise MissingExtraError("tfrecord", "reading TFRecord files") from error

# The library has no types; Any is confined to this name.
_library: Any = google_crc32c


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of `data`."""
    return _library.value(data)
