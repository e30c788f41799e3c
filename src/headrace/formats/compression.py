"""gzip, bzip2 and zstd as streams: compressed chunks in, bounded pieces out. The door to isal and zstandard.

Multi-member gzip, multi-stream bzip2 and multi-frame zstd are read through. A piece is at most PIECE_BYTES_MAX,
whatever the ratio: a bomb is met piece by piece, never whole.
"""

import bz2
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

from headrace.core.errors import CorruptError, MissingExtraError, TruncatedError
from headrace.formats.contract import Buffer

try:
    from isal import isal_zlib as _fast_zlib
except ImportError:
    _fast_zlib = None

Compression = Literal["gzip", "bzip2", "zstd"]

PIECE_BYTES_MAX = 1 << 20
MAGIC: dict[Compression, bytes] = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "zstd": b"\x28\xb5\x2f\xfd"}
_ZSTD_SKIPPABLE = tuple(bytes([0x50 + i, 0x2A, 0x4D, 0x18]) for i in range(16))


class _Decompressor(Protocol):
    """One member's (stream's, frame's) state."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What these compressed bytes give, in bounded pieces."""
        ...


def decompress(kind: Compression, chunks: Iterable[Buffer], *, fast: bool = True) -> Iterator[bytes]:
    """The decompressed bytes, in pieces of at most PIECE_BYTES_MAX.

    Zero padding behind gzip is passed over. With `fast`, gzip goes through isal where that is installed. Raises,
    after everything before it was given: TruncatedError when a member is not complete, CorruptError for anything
    else (`byte` is the offset in the compressed bytes by which it was noticed), MissingExtraError without zstandard.
    """
    make = _maker(kind, fast=fast)
    state: _Decompressor | None = None
    seen = 0  # compressed bytes handed over so far
    members = 0
    pending = b""
    for chunk in chunks:
        pending += bytes(chunk)
        seen += len(chunk)
        while pending:
            if state is None:
                if members and kind == "gzip" and not pending.strip(b"\0"):
                    pending = b""
                    break
                if len(pending) < 4:
                    break
                _check_start(kind, pending, seen - len(pending), members)
                state = make()
            data, pending = pending, b""
            try:
                yield from state.pieces(data)
            except (zlib.error, OSError, ValueError, EOFError) as error:
                raise CorruptError(f"corrupt {kind} data by compressed byte {seen}: {error}", byte=seen) from error
            if state.eof:
                pending = state.unused_data
                state = None
                members += 1
    if pending and (kind != "gzip" or pending.strip(b"\0")):
        _check_start(kind, pending, seen - len(pending), members, ended=True)
    if state is not None or pending.strip(b"\0") or not members:
        raise TruncatedError(
            f"the {kind} stream ends early, after {seen} compressed bytes: the upload or the program that wrote "
            "it was cut short; fetch or write it again",
            byte=seen,
        )


def _check_start(kind: Compression, data: bytes, at: int, members: int, *, ended: bool = False) -> None:
    """Each member must start with the magic bytes; the first not doing so means that it is not compressed."""
    magic = MAGIC[kind]
    start = data[: len(magic)]
    if start == magic or (kind == "zstd" and data[:4] in _ZSTD_SKIPPABLE) or (ended and magic.startswith(start)):
        return
    if members:
        raise CorruptError(f"{len(data)} bytes or more that are no {kind} follow at compressed byte {at}", byte=at)
    raise CorruptError(
        f"it does not start with {kind}'s magic bytes (but with {start.hex(' ')}): pass --compression none if it is "
        "not compressed",
        byte=at,
    )


def _maker(kind: Compression, *, fast: bool) -> Callable[[], _Decompressor]:
    if kind == "gzip":
        library: Any = _fast_zlib if fast and _fast_zlib is not None else zlib
        return lambda: _Gzip(library)
    if kind == "bzip2":
        return _Bzip2
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("zstd", "zstd-compressed input") from error
    library = zstandard
    return lambda: _Zstd(library)


class _Gzip:
    def __init__(self, library: Any) -> None:
        self._state = library.decompressobj(wbits=31)
        self._error: type[Exception] = getattr(library, "error", zlib.error)

    @property
    def eof(self) -> bool:
        return bool(self._state.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._state.unused_data)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                piece = self._state.decompress(data, PIECE_BYTES_MAX)
                if piece:
                    yield piece
                data = self._state.unconsumed_tail
                if self._state.eof or (not piece and not data):
                    return
            # A full piece may have left some output inside.
            while not self._state.eof and (piece := self._state.decompress(b"", PIECE_BYTES_MAX)):
                yield piece
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
        piece = self._state.decompress(data, PIECE_BYTES_MAX)
        while True:
            if piece:
                yield piece
            if self._state.eof or self._state.needs_input:
                return
            piece = self._state.decompress(b"", PIECE_BYTES_MAX)


_ZSTD_INPUT_BYTES = 16 * 1024
"""zstandard's push object gives all of its output at once: little input bounds it (blocks are 128 KiB)."""


class _Zstd:
    def __init__(self, library: Any) -> None:
        self._state = library.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        self._error: type[Exception] = library.ZstdError
        self._unused = b""

    @property
    def eof(self) -> bool:
        return bool(self._state.eof)

    @property
    def unused_data(self) -> bytes:
        return self._unused

    def pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            for start in range(0, len(data), _ZSTD_INPUT_BYTES):
                stop = start + _ZSTD_INPUT_BYTES
                piece = self._state.decompress(data[start:stop])
                for at in range(0, len(piece), PIECE_BYTES_MAX):
                    yield piece[at : at + PIECE_BYTES_MAX]
                if self._state.eof:
                    self._unused = bytes(self._state.unused_data) + data[stop:]
                    return
        except self._error as error:
            raise OSError(str(error)) from error
