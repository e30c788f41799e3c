"""Pull bytes out of chunks: what decoders that ask for bytes read from.

Reads give exactly what was asked for, however the chunks were cut, so a decoder above sees the same reads
and gives the same records wherever the chunk edges fall.
"""

from collections.abc import Iterable

from headrace.formats.contract import Buffer

_DRAIN_BYTES = 1 << 20


class ChunkFile:
    """Forward-only reads over an iterable of chunks. Holds one chunk and what was peeked.

    `position` is the offset of the next byte; it counts from `start_byte`. `error` is what the chunks raised, if
    they did: foreign decoders swallow or reword what passes through them, and this is the original. Bytes that came
    before it are given first: a short read means the end or an error, and `check` tells which.
    """

    def __init__(self, chunks: Iterable[Buffer], start_byte: int = 0) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")
        self._peeked = b""
        self._ended = False
        self.position = start_byte
        self.error: BaseException | None = None

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end, or before the error that the next read raises."""
        parts: list[bytes] = []
        missing = size
        if self._peeked:
            parts.append(self._peeked[:missing])
            self._peeked = self._peeked[missing:]
            missing -= len(parts[0])
        while missing > 0 and self._more():
            # Copied before the next chunk is asked for: a memoryview is not valid after that.
            part = bytes(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(part)
            parts.append(part)
        if self.error is not None and missing == size > 0:
            raise self.error
        self.position += size - missing
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, size: int) -> bytes:
        """What `read` would give, without consuming it."""
        at = self.position
        self._peeked = self.read(size) + self._peeked
        self.position = at
        return self._peeked[:size]

    def skip(self, size: int) -> int:
        """Pass over `size` bytes; how many there were, fewer only at the end."""
        missing = size
        while missing > 0:
            passed = len(self.read(min(missing, _DRAIN_BYTES)))
            if not passed:
                break
            missing -= passed
        return size - missing

    def check(self) -> None:
        """Raise what the chunks raised, if they did: for a caller whose read came up short."""
        if self.error is not None:
            raise self.error

    def drain(self) -> None:
        """Pass over all that is left, so that damage behind the last record is noticed too (a wrong CRC)."""
        while self.read(_DRAIN_BYTES):
            pass

    def _more(self) -> bool:
        """Whether there is an unread byte of a chunk, fetching chunks as needed."""
        while not self._rest and not self._ended:
            try:
                self._rest = memoryview(next(self._chunks))
            except StopIteration:
                self._ended = True
            except BaseException as error:  # noqa: BLE001 - raised by the read that finds no bytes before it
                self.error, self._ended = error, True
        return bool(self._rest)
