"""The one door to google-crc32c (extra `tfrecord`): the checksum of TFRecord files, by the processor's own instruction."""

from typing import Any

from headrace.core.errors import MissingExtraError

try:
    import google_crc32c
except ImportError as error:
    raise MissingExtraError("tfrecord", "reading TFRecord files") from error

# Untyped: what comes from there is Any, said once.
_library: Any = google_crc32c


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of these bytes."""
    return _library.value(data)
