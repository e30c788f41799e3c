"""Read zip archives by ranges of their bytes, without inflating a member as a whole.

The directory at the end of an archive names the members, so an archive is not read as a stream.
Members that are not selected cost no read. Nothing is written to disk, and a member's name is never
used as a path.
"""

import io
import lzma
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Final

from typing_extensions import Buffer, override

from headrace.core.errors import CorruptError
from headrace.formats.contract import ArchiveMember, ReadAt

RANGE_BYTES: Final = 4 << 20
"""The size of one read. Small members that follow each other share a read."""
DIRECTORY_BYTES_MAX: Final = 32 << 20
"""The longest directory that is read: of about 500,000 members, whose entries take about 320 MB of memory."""
_PIECE_BYTES: Final = 256 << 10
_SMALL_PIECE_BYTES: Final = 4 << 10
"""The size of pieces of bzip2 and LZMA, whose libraries inflate all compressed bytes that they get."""
_BOUNDED_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_METHODS: Final = (*_BOUNDED_METHODS, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_ENCRYPTED: Final = 0x1
_UTF8_NAME: Final = 0x800
_DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
"""The errors of `zipfile` for damaged archives. Those of stores are none of them."""


def members(read_at: ReadAt, size_bytes: int) -> Iterator[ArchiveMember]:
    """Yield the regular files of an archive in the order of their bytes. Directories and links are skipped.

    Damage to a member leaves the other members readable. Of several entries of the directory for the
    same bytes, the first one counts. `read_at` may raise any error, which propagates unchanged.

    Raises:
        CorruptError: The directory is damaged or too long, so that no member can be found.
    """
    with io.BufferedReader(_RangedFile(read_at, size_bytes), RANGE_BYTES) as file:
        archive = _open(file, size_bytes)
        last_byte = -1
        for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
            is_link = stat.S_ISLNK(info.external_attr >> 16)
            # `is_dir` fails for an empty name.
            if info.filename.endswith("/") or is_link or info.header_offset == last_byte:
                continue
            last_byte = info.header_offset
            yield ArchiveMember(
                _name(info),
                info.file_size,
                info.header_offset,
                _pieces(archive, info),
                _unreadable_reason(info),
                is_independent=True,
            )


def _open(file: "io.BufferedReader[_RangedFile]", size_bytes: int) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except _DAMAGE as error:
        raise CorruptError(
            f"the directory at the end of the zip archive cannot be read ({error}): the upload was cut "
            "short, or it is not a zip archive; fetch or write it again",
            byte=size_bytes,
        ) from error


def _name(info: zipfile.ZipInfo) -> str:
    """Return the name: UTF-8 if valid, because many archivers do not mark UTF-8, else code page 437."""
    if info.flag_bits & _UTF8_NAME:
        return info.filename
    try:
        return info.filename.encode("cp437").decode()
    except UnicodeError:
        return info.filename


def _unreadable_reason(info: zipfile.ZipInfo) -> str | None:
    if info.flag_bits & _ENCRYPTED:
        return "it is encrypted; write the archive again without a password"
    if info.compress_type not in _METHODS:
        return (
            f"its compression method {info.compress_type} is not supported; write the archive again with "
            "deflate"
        )
    return None


def _pieces(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content of a member. Raise CorruptError for damage, with the offset in the content."""
    size = _PIECE_BYTES if info.compress_type in _BOUNDED_METHODS else _SMALL_PIECE_BYTES
    done = 0
    try:
        with archive.open(info) as file:
            while piece := file.read(size):
                yield piece
                done += len(piece)
    except _DAMAGE as error:
        raise CorruptError(f"it is damaged in the zip archive ({error})", byte=done) from error
    if done < info.file_size:
        raise CorruptError(
            f"it has {done} bytes, but the directory of the zip archive states {info.file_size}", byte=done
        )


class _RangedFile(io.RawIOBase):
    """A file object over `read_at`."""

    def __init__(self, read_at: ReadAt, size_bytes: int) -> None:
        self._read_at = read_at
        self._size_bytes = size_bytes
        self._position = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size_bytes)[whence]
        return self._position

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer)
        length = max(0, min(len(view), self._size_bytes - self._position))
        if length > DIRECTORY_BYTES_MAX:  # Only the directory is read in one piece.
            raise CorruptError(
                f"the directory of the zip archive has more than {DIRECTORY_BYTES_MAX} bytes: write several "
                "archives with fewer members",
                byte=self._position,
            )
        data = self._read_at(self._position, length) if length else b""
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
