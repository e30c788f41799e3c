"""The input of media decoders: a file-like reader over chunks, and the contract of its checkers.

Each read returns exactly the requested bytes regardless of the chunk boundaries. A decoder above
therefore sees the same reads and produces the same records for any chunking.
"""

from collections.abc import Iterable
from typing import Protocol

from headrace.formats.contract import Buffer

_DRAIN_BYTES = 1 << 20


class ChunkFile:
    """A forward-only reader over an iterable of chunks. It holds one chunk and the peeked bytes.

    `position` is the offset of the next byte, counted from `start_byte`. `error` is the exception
    that the chunks raised, or None. It is kept because third-party decoders swallow or reword
    exceptions. Bytes before the error are returned first. A short read means the end or an error,
    and `check` distinguishes the two.
    """

    def __init__(self, chunks: Iterable[Buffer], start_byte: int = 0) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")
        self._peeked = b""
        self._ended = False
        self.position: int = start_byte
        self.error: BaseException | None = None

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes.

        The result is shorter only at the end, or before the error that the next read raises.
        """
        parts: list[bytes] = []
        missing = size
        if self._peeked:
            parts.append(self._peeked[:missing])
            self._peeked = self._peeked[missing:]
            missing -= len(parts[0])
        while missing > 0 and self._fetch():
            # Copy before fetching the next chunk: it invalidates a memoryview of this one.
            part = bytes(self._chunk[:missing])
            self._chunk = self._chunk[missing:]
            missing -= len(part)
            parts.append(part)
        if self.error is not None and missing == size > 0:
            raise self.error
        self.position += size - missing
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes without consuming them."""
        at = self.position
        self._peeked = self.read(size) + self._peeked
        self.position = at
        return self._peeked[:size]

    def skip(self, size: int) -> int:
        """Skip `size` bytes.

        Return the number of bytes skipped, smaller than `size` only at the end.
        """
        missing = size
        while missing > 0:
            skipped = len(self.read(min(missing, _DRAIN_BYTES)))
            if not skipped:
                break
            missing -= skipped
        return size - missing

    def check(self) -> None:
        """Raise the error of the chunks, if any. Call it after a short read."""
        if self.error is not None:
            raise self.error

    def drain(self) -> None:
        """Read all remaining bytes, so that damage after the last record (a wrong CRC) is detected."""
        while self.read(_DRAIN_BYTES):
            pass

    def _fetch(self) -> bool:
        """Fetch chunks until one has an unread byte. Return False at the end or after an error."""
        while not self._chunk and not self._ended:
            try:
                self._chunk = memoryview(next(self._chunks))
            except StopIteration:
                self._ended = True
            except BaseException as error:  # noqa: BLE001 - raised by the read that finds no bytes before it
                self.error, self._ended = error, True
        return bool(self._chunk)


class BoxScanner(Protocol):
    """A checker of the structure of a stream."""

    def feed(self, data: bytes) -> None:
        """Check the next bytes. Raise `CorruptError` at an invalid header."""
        ...

    def check_end(self) -> None:
        """Raise `TruncatedError` if the bytes so far end inside a part."""
        ...
