"""File objects for the libraries that read tables, and their errors as errors of headrace.

Tables are read from chunks in order (Arrow, Avro), or from ranges of a file (Parquet, ORC).
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from typing_extensions import override

from headrace.core.errors import CorruptError, MissingExtraError, TruncatedError
from headrace.formats.arrow import pyarrow
from headrace.formats.contract import Buffer, ReadAt
from headrace.formats.media.chunkfile import ChunkFile

READ_BYTES_MAX: Final = 2 << 30
"""The limit of one read from chunks, which is held in memory. Damaged files name sizes far beyond."""

_DRAIN_BYTES: Final = 1 << 20


class SourceFile(Protocol):
    """A file object that keeps the first error of its source, which libraries may reword."""

    @property
    def error(self) -> BaseException | None:
        """The first error of the source."""
        ...

    def tell(self) -> int:
        """Return the offset of the next byte."""
        ...

    def is_short(self) -> bool:
        """Return True if a read went beyond the end of the file."""
        ...


class RandomAccessFile:
    """A file object for Arrow whose ranges `read_at` reads."""

    closed = False

    def __init__(self, read_at: ReadAt, size_bytes: int) -> None:
        self._read_at = read_at
        self._size_bytes = size_bytes
        self._position = 0
        self.error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes: fewer than `size` only at the end of the file."""
        remaining = max(self._size_bytes - self._position, 0)
        requested = remaining if size < 0 else min(size, remaining)
        if not requested:
            return b""
        try:
            data = self._read_at(self._position, requested)
        except Exception as error:
            self.error = self.error or error
            raise
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset from the start, the position or the end, and return the new position."""
        self._position = offset + (0, self._position, self._size_bytes)[whence]
        return self._position

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._position

    def is_short(self) -> bool:
        """Return False: the footer at the end was read."""
        return False

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self._size_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def flush(self) -> None:
        """Do nothing: the file is not written."""

    def close(self) -> None:
        """Do nothing: the owner of `read_at` closes the file."""


class TableStream(ChunkFile):
    """A file object for libraries over chunks in order. It holds the bytes of one read, and one chunk."""

    closed = False

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        super().__init__(chunks)
        self._is_short = False

    @override
    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, fewer only at the end of the chunks.

        Raises CorruptError for more than READ_BYTES_MAX bytes, and the error of the chunks.
        """
        if not 0 <= size <= READ_BYTES_MAX:
            why = f"a part of {size} bytes exceeds the limit of {READ_BYTES_MAX}, so its size is damaged"
            raise CorruptError(why, byte=self.position)
        data = super().read(size)
        if len(data) < size:
            self.check()
            self._is_short = True
        return data

    def unread(self, data: bytes) -> None:
        """Put bytes before the next one."""
        self._peeked = data + self._peeked
        self.position -= len(data)

    def drain_last(self, size: int) -> bytes:
        """Read all remaining bytes, and return the last of them."""
        last = b""
        while data := self.read(_DRAIN_BYTES):
            last = (last + data)[-size:]
        return last

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self.position

    def is_short(self) -> bool:
        """Return True if a read went beyond the end of the chunks."""
        return self._is_short

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return False."""
        return False

    def flush(self) -> None:
        """Do nothing: the file is not written."""

    def close(self) -> None:
        """Do nothing: the owner of the chunks closes them."""


_ARROW_ERRORS: Final[tuple[type[Exception], ...]] = (
    pyarrow.ArrowException,
    OSError,
    ValueError,
    OverflowError,
)


@contextmanager
def table_errors(
    kind: str, file: SourceFile, *, expected: tuple[type[Exception], ...] = _ARROW_ERRORS
) -> Generator[None]:
    """Raise CorruptError for an `expected` error of a library that cannot read a file of format `kind`.

    If the bytes end early, the error is a TruncatedError. An error of the file's source is raised unchanged.
    """
    try:
        yield
    except (MissingExtraError, CorruptError):
        raise
    except Exception as error:
        if file.error is not None:
            raise file.error from None
        if not isinstance(error, expected):
            raise
        raise unreadable(kind, str(error).strip() or type(error).__name__, file) from error


def unreadable(kind: str, why: str, file: SourceFile) -> CorruptError:
    """Return the error of a file that cannot be read any further."""
    if file.is_short():
        why = f"it ends early, at byte {file.tell()}: the upload or download was not completed"
        return TruncatedError(f"the {kind} file cannot be read: {why}", byte=file.tell())
    return CorruptError(f"the {kind} file cannot be read: {why}", byte=file.tell())


def check_names(kind: str, names: Sequence[str], file: SourceFile) -> None:
    """Raise CorruptError if two columns have one name, or if there is no column."""
    if not names:
        raise unreadable(kind, "it has no columns", file)
    duplicates = {name for name in names if names.count(name) > 1}
    if duplicates:
        raise unreadable(kind, f"several columns have the name {duplicates.pop()!r}", file)


def present_columns(names: Sequence[str], columns: Sequence[str] | None) -> list[str] | None:
    """Return those of the wanted columns that a file has, in its order; None for all columns.

    A file that has none of them is read with all columns, so that failed records show them.
    """
    if columns is None:
        return None
    return [name for name in names if name in columns] or None


def check_values(batch: Any) -> None:
    """Raise an exception of Arrow if a batch is damaged: readers trust offsets and indices in it.

    Text need not be UTF-8: such values are bytes.
    """
    for column in batch.columns:
        if pyarrow.types.is_string(column.type):
            column.view(pyarrow.binary()).validate(full=True)
        elif pyarrow.types.is_large_string(column.type):
            column.view(pyarrow.large_binary()).validate(full=True)
        else:
            column.validate(full=True)
