"""gzip, bzip2 and zstd as streams: compressed chunks in, bounded pieces out. The door to isal and zstandard.

Multi-member gzip, multi-stream bzip2 and multi-frame zstd are read through. A piece is at most PIECE_BYTES_MAX,
whatever the ratio: a bomb is met piece by piece, never whole. Compressed bytes go to the library a window at a time,
so that what it gives back unused (it does so by copying) stays small, and an error costs little that was good.
"""

import bz2
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

from headrace.core.errors import CorruptError, MissingExtraError, TruncatedError
from headrace.formats.contract import Buffer
from headrace.formats.zstd_frame import SKIPPABLE_MAGICS, ZstdFrame

try:
    from isal import isal_zlib as _fast_zlib
except ImportError:
    _fast_zlib = None

Compression = Literal["gzip", "bzip2", "zstd"]

PIECE_BYTES_MAX = 1 << 20
WINDOW_BYTES = 1 << 15
MAGIC: dict[Compression, bytes] = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "zstd": b"\x28\xb5\x2f\xfd"}
_START_BYTES = 4
_ZSTD_WINDOW_BYTES_MAX = 1 << 27
"""What the zstd program itself takes without being told otherwise."""
_GZIP_HEADER_CRC = 0x02
_GZIP_FIELDS = 0x1C  # extra, name, comment: what a header may hold beyond its ten bytes


class _Member(Protocol):
    """One gzip member, bzip2 stream or zstd frame on its way."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes:
        """What came behind its end; known once `eof`."""
        ...

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What these compressed bytes give, in pieces of at most PIECE_BYTES_MAX. Raises OSError for bad data."""
        ...


def decompress(kind: Compression, chunks: Iterable[Buffer], *, fast: bool = True) -> Iterator[bytes]:
    """The decompressed bytes, in pieces of at most PIECE_BYTES_MAX, as soon as each chunk gives them.

    Zero padding behind a gzip member is passed over. With `fast`, gzip goes through isal where that is installed.

    Raises:
        TruncatedError: the last member is not complete, or there is none; all that can be told of it was given
            before.
        CorruptError: any other damage. Given before is all that the compressed windows (of WINDOW_BYTES) before
            the damaged one held; `byte` is the offset in the *compressed* bytes by which it was noticed.
        MissingExtraError: zstd without zstandard.
    """
    stream = _Stream(kind, fast=fast)
    for chunk in chunks:
        yield from _joined(stream.feed(chunk))
    stream.finish()


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in the fewest pieces: what comes after works by the piece. What an error follows comes first."""
    parts: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            if size + len(piece) > PIECE_BYTES_MAX:
                full, parts, size = parts, [], 0
                yield b"".join(full)
            parts.append(piece)
            size += len(piece)
    except CorruptError:
        if size:
            yield b"".join(parts)
        raise
    if size:
        yield b"".join(parts)


class _Stream:
    """Members one behind the other."""

    def __init__(self, kind: Compression, *, fast: bool) -> None:
        self._kind: Compression = kind
        self._make = _maker(kind, fast=fast)
        self._member: _Member | None = None
        self._members = 0
        self._pending = b""  # the next member's first bytes, too few to tell what they are
        self._seen = 0

    def feed(self, chunk: Buffer) -> Iterator[bytes]:
        """What a chunk of compressed bytes gives."""
        view = memoryview(chunk)
        for at in range(0, len(view), WINDOW_BYTES):
            window = bytes(view[at : at + WINDOW_BYTES])
            self._seen += len(window)
            yield from self._window(self._pending + window)

    def _window(self, data: bytes) -> Iterator[bytes]:
        self._pending = b""
        while data:
            if self._member is None:
                data = self._unpadded(data)
                if len(data) < _START_BYTES:
                    self._pending = data
                    return
                self._check_start(data)
                self._member = self._make(data)
            member = self._member
            try:
                yield from member.pieces(data)
            except OSError as error:
                why = f"corrupt {self._kind} data by compressed byte {self._seen}: {error}"
                raise CorruptError(why, byte=self._seen) from error
            if not member.eof:
                return
            data = member.unused_data
            self._member = None
            self._members += 1

    def finish(self) -> None:
        """No more bytes will come: raises unless the last member was whole."""
        rest = self._pending
        if rest:
            self._check_start(rest)
        if self._member is None and self._members and not rest:
            return
        raise TruncatedError(
            f"the {self._kind} stream ends early, after {self._seen} compressed bytes: the upload or the program "
            "that wrote it was cut short; fetch or write it again",
            byte=self._seen,
        )

    def _unpadded(self, data: bytes) -> bytes:
        """Without the zeros that some writers fill a tape's or disk's block with."""
        return data.lstrip(b"\0") if self._kind == "gzip" and self._members else data

    def _check_start(self, data: bytes) -> None:
        """Each member must start with the magic bytes; the first not doing so means that it is not compressed."""
        if _may_start(self._kind, data):
            return
        at = self._seen - len(data)
        if self._members:
            raise CorruptError(f"what follows at compressed byte {at} is no {self._kind} data", byte=at)
        raise CorruptError(
            f"it does not start with {self._kind}'s magic bytes (but with {data[:_START_BYTES].hex(' ')}): pass "
            "--compression none if it is not compressed",
            byte=at,
        )


def _may_start(kind: Compression, data: bytes) -> bool:
    """Whether a member starts like this; fewer than _START_BYTES may be a part of its magic bytes."""
    magics = (MAGIC[kind], *SKIPPABLE_MAGICS) if kind == "zstd" else (MAGIC[kind],)
    return any(data[: len(m)] == m[: len(data)] for m in magics)


def _maker(kind: Compression, *, fast: bool) -> Callable[[bytes], _Member]:
    """What makes a member; it is told the member's first _START_BYTES or more."""
    if kind == "gzip":
        return lambda start: _Gzip(_gzip_library(start, fast=fast))
    if kind == "bzip2":
        return lambda _: _Bzip2()
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("zstd", "zstd-compressed input") from error
    decompressor: Any = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    return lambda _: ZstdFrame(decompressor.decompressobj(), zstandard.ZstdError, PIECE_BYTES_MAX)


def _gzip_library(start: bytes, *, fast: bool) -> Any:
    """Who reads a member: isal, unless its header is of the rare kinds that isal loses when they come in parts."""
    flags = start[3]
    in_parts = not flags & _GZIP_HEADER_CRC and (flags & _GZIP_FIELDS).bit_count() <= 1
    return _fast_zlib if fast and in_parts and _fast_zlib is not None else zlib


class _Gzip:
    def __init__(self, library: Any) -> None:
        self._state = library.decompressobj(wbits=31)
        self._error: type[Exception] = library.error

    @property
    def eof(self) -> bool:
        return bool(self._state.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._state.unused_data)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            while True:
                piece: bytes = self._state.decompress(data, PIECE_BYTES_MAX)
                if piece:
                    yield piece
                data = self._state.unconsumed_tail
                # A full piece may have left some output inside, with all input taken: ask once more.
                if self._state.eof or not (data or piece):
                    return
        except self._error as error:
            raise OSError(str(error)) from error


class _Bzip2:
    def __init__(self) -> None:
        self._state = bz2.BZ2Decompressor()

    @property
    def eof(self) -> bool:
        return self._state.eof

    @property
    def unused_data(self) -> bytes:
        return self._state.unused_data

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while True:
            piece = self._state.decompress(data, PIECE_BYTES_MAX)
            if piece:
                yield piece
            if self._state.eof or self._state.needs_input:
                return
            data = b""
