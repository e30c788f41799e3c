"""Streaming decompression of gzip, bzip2 and zstd: compressed chunks in, bounded pieces out.

This module is the adapter for isal and zstandard. Multi-member gzip, multi-stream bzip2 and
multi-frame zstd are supported. A piece has at most PIECE_BYTES_MAX bytes at any compression ratio,
so a decompression bomb is never in memory as a whole. The library receives the compressed bytes in
windows of WINDOW_BYTES. This keeps the unused data that the library copies back small, and limits
the valid data lost before an error.
"""

import bz2
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, Protocol

from typing_extensions import override

from headrace.core.errors import CorruptError, MissingExtraError, TruncatedError
from headrace.formats.contract import Buffer

SKIPPABLE_MAGICS: Final = tuple(bytes([0x50 + i, 0x2A, 0x4D, 0x18]) for i in range(16))
"""First bytes of skippable frames. Such frames hold no data of the stream."""
BLOCK_BYTES_MAX: Final = 1 << 17
"""Maximum decompressed size of one block."""


class ZstdFrame:
    """An incremental decoder of one frame or skippable frame. It yields bounded pieces.

    `eof` is true after the last byte of the frame; `unused_data` then holds the bytes after it.

    Args:
        state: zstandard's ``decompressobj`` for one frame.
        error: Exception type that `state` raises for bad data.
        piece_bytes_max: Maximum size of a piece in bytes, 128 KiB or more.
    """

    def __init__(self, state: Any, error: type[Exception], piece_bytes_max: int) -> None:
        self._state = state
        self._error = error
        self._blocks_per_call = piece_bytes_max // BLOCK_BYTES_MAX
        self._partial_header: bytes = b""  # Start of an incomplete header.
        self._unit_remaining = 0  # Bytes until the next header.
        self._started = self._skippable = self._in_last_block = False
        self._checksum_bytes = 0
        self.eof = False
        self.unused_data: bytes = b""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed content of these compressed bytes. Raise OSError for bad data."""
        data = self._partial_header + data
        emitted = at = 0
        blocks = int(self._unit_remaining > 0)
        while True:
            step = min(self._unit_remaining, len(data) - at)
            self._unit_remaining -= step
            at += step
            self.eof = self._in_last_block and not self._unit_remaining
            if self._unit_remaining or self.eof:
                break
            if blocks == self._blocks_per_call:
                yield from self._decompress(data[emitted:at])
                emitted, blocks = at, 0
            self._unit_remaining = self._next_unit_bytes(data[at : at + 8])
            if not self._unit_remaining:
                break
            blocks += 1
        self._partial_header = b"" if self.eof else data[at:]
        self.unused_data = data[at:] if self.eof else b""
        yield from self._decompress(data[emitted:at])

    def _next_unit_bytes(self, head: bytes) -> int:
        """Return the length of the frame header, or of the next block with its header.

        Return 0 if `head` is too short.
        """
        if not self._started:
            return self._frame_header_bytes(head)
        if len(head) < 3:
            return 0
        header = int.from_bytes(head[:3], "little")
        self._in_last_block = bool(header & 1)
        is_rle = header >> 1 & 3 == 1
        return 3 + (1 if is_rle else header >> 3) + (self._checksum_bytes if self._in_last_block else 0)

    def _frame_header_bytes(self, head: bytes) -> int:
        self._skippable = head[:4] in SKIPPABLE_MAGICS
        if len(head) < (8 if self._skippable else 5):
            return 0
        self._started = True
        if self._skippable:
            self._in_last_block = True
            return 8 + int.from_bytes(head[4:8], "little")
        descriptor = head[4]
        single_segment = descriptor >> 5 & 1
        self._checksum_bytes = 4 * (descriptor >> 2 & 1)
        content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
        return 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes

    def _decompress(self, data: bytes) -> Iterator[bytes]:
        if self._skippable or not data:
            return
        try:
            piece: bytes = self._state.decompress(data)
        except self._error as error:
            raise OSError(str(error)) from error
        if self.eof and not self._state.eof:
            raise OSError("the frame continues after its last block")
        if piece:
            yield piece


try:
    from isal import isal_zlib as _fast_zlib
except ImportError:
    _fast_zlib = None

Compression = Literal["gzip", "bzip2", "zstd"]

PIECE_BYTES_MAX = 1 << 20
WINDOW_BYTES = 1 << 15
MAGIC: dict[Compression, bytes] = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "zstd": b"\x28\xb5\x2f\xfd"}
_MAGIC_BYTES_MAX = 4
_ZSTD_WINDOW_BYTES_MAX = 1 << 27
"""Default window limit of the zstd command-line program."""
_GZIP_HEADER_CRC = 0x02
_GZIP_FIELDS = 0x1C  # Extra, name and comment: optional fields after the ten fixed bytes.


class _MemberDecoder(Protocol):
    """A decoder of one gzip member, bzip2 stream or zstd frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes:
        """Bytes after the end of the member. Valid once `eof` is true."""
        ...

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decompress `data` and yield pieces of at most PIECE_BYTES_MAX bytes.

        Raise OSError for corrupt data.
        """
        ...


def decompress(kind: Compression, chunks: Iterable[Buffer], *, fast: bool = True) -> Iterator[bytes]:
    """Yield the decompressed bytes of `chunks` in pieces of at most PIECE_BYTES_MAX.

    The pieces of a chunk are yielded before the next chunk is read. Zero padding after a gzip
    member is skipped. With `fast`, gzip is decompressed by isal if isal is installed.

    Raises:
        TruncatedError: The last member is incomplete, or there is no member. All bytes that could
            be decompressed were yielded before.
        CorruptError: The data is damaged in any other way. The content of all compressed windows
            (of WINDOW_BYTES) before the damaged one was yielded before. `byte` is the offset in the
            *compressed* bytes at which the damage was detected.
        MissingExtraError: zstandard is needed and not installed.
    """
    stream = _StreamDecoder(kind, fast=fast)
    for chunk in chunks:
        yield from _merge_pieces(stream.feed(chunk))
    stream.finish()


def _merge_pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in as few pieces as possible: later stages have a cost per piece.

    Bytes before an error are yielded before it is raised.
    """
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


class _StreamDecoder:
    """A decoder of consecutive members."""

    def __init__(self, kind: Compression, *, fast: bool) -> None:
        self._kind: Compression = kind
        self._new_decoder = _decoder_factory(kind, fast=fast)
        self._decoder: _MemberDecoder | None = None
        self._completed_members = 0
        self._pending = b""  # Start of the next member, too short to identify it.
        self._consumed = 0

    def feed(self, chunk: Buffer) -> Iterator[bytes]:
        """Yield the decompressed bytes of a compressed chunk."""
        view = memoryview(chunk)
        for at in range(0, len(view), WINDOW_BYTES):
            window = bytes(view[at : at + WINDOW_BYTES])
            self._consumed += len(window)
            yield from self._decode_window(self._pending + window)

    def _decode_window(self, data: bytes) -> Iterator[bytes]:
        self._pending = b""
        while data:
            if self._decoder is None:
                data = self._strip_padding(data)
                if len(data) < _MAGIC_BYTES_MAX:
                    self._pending = data
                    return
                self._check_magic(data)
                self._decoder = self._new_decoder(data)
            decoder = self._decoder
            try:
                yield from decoder.pieces(data)
            except OSError as error:
                why = f"corrupt {self._kind} data at or before compressed byte {self._consumed}: {error}"
                raise CorruptError(why, byte=self._consumed) from error
            if not decoder.eof:
                return
            data = decoder.unused_data
            self._decoder = None
            self._completed_members += 1

    def finish(self) -> None:
        """End the stream. Raise TruncatedError if the last member is incomplete."""
        rest = self._pending
        if rest:
            self._check_magic(rest)
        if self._decoder is None and self._completed_members and not rest:
            return
        raise TruncatedError(
            f"the {self._kind} stream ends early, after {self._consumed} compressed bytes: the upload or the "
            "program that wrote it was cut short; fetch or write it again",
            byte=self._consumed,
        )

    def _strip_padding(self, data: bytes) -> bytes:
        """Remove the zeros with which some writers fill the last block of a tape or disk."""
        return data.lstrip(b"\0") if self._kind == "gzip" and self._completed_members else data

    def _check_magic(self, data: bytes) -> None:
        """Raise CorruptError unless `data` starts with the magic bytes of a member.

        A first member without them means that the data is not compressed.
        """
        if _matches_magic(self._kind, data):
            return
        at = self._consumed - len(data)
        if self._completed_members:
            raise CorruptError(f"the bytes from compressed byte {at} on are not {self._kind} data", byte=at)
        raise CorruptError(
            f"the data starts with {data[:_MAGIC_BYTES_MAX].hex(' ')}, not with the {self._kind} magic "
            "bytes: pass --compression none if it is not compressed",
            byte=at,
        )


def _matches_magic(kind: Compression, data: bytes) -> bool:
    """Return True if a member can start with `data`.

    Fewer than _MAGIC_BYTES_MAX bytes may be a prefix of the magic bytes.
    """
    magics = (MAGIC[kind], *SKIPPABLE_MAGICS) if kind == "zstd" else (MAGIC[kind],)
    return any(data[: len(m)] == m[: len(data)] for m in magics)


def _decoder_factory(kind: Compression, *, fast: bool) -> Callable[[bytes], _MemberDecoder]:
    """Return a function that creates a member's decoder.

    Its argument is the start of the member: _MAGIC_BYTES_MAX or more bytes.
    """
    if kind == "gzip":
        return lambda start: _GzipDecoder(_choose_gzip_library(start, fast=fast))
    if kind == "bzip2":
        return lambda _: _Bzip2Decoder()
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("zstd", "zstd-compressed input") from error
    decompressor: Any = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    return lambda _: ZstdFrame(decompressor.decompressobj(), zstandard.ZstdError, PIECE_BYTES_MAX)


def _choose_gzip_library(start: bytes, *, fast: bool) -> Any:
    """Choose the gzip library.

    This is isal, except for headers that isal misreads when they are split across chunks.
    """
    flags = start[3]
    safe_when_split = not flags & _GZIP_HEADER_CRC and (flags & _GZIP_FIELDS).bit_count() <= 1
    return _fast_zlib if fast and safe_when_split and _fast_zlib is not None else zlib


class _GzipDecoder(_MemberDecoder):
    def __init__(self, library: Any) -> None:
        self._state = library.decompressobj(wbits=31)
        self._error: type[Exception] = library.error

    @property
    @override
    def eof(self) -> bool:
        return bool(self._state.eof)

    @property
    @override
    def unused_data(self) -> bytes:
        return bytes(self._state.unused_data)

    @override
    def pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            while True:
                piece: bytes = self._state.decompress(data, PIECE_BYTES_MAX)
                if piece:
                    yield piece
                data = self._state.unconsumed_tail
                # A full piece may leave output in the library although all input was consumed, so
                # call it again.
                if self._state.eof or not (data or piece):
                    return
        except self._error as error:
            raise OSError(str(error)) from error


class _Bzip2Decoder(_MemberDecoder):
    def __init__(self) -> None:
        self._state = bz2.BZ2Decompressor()

    @property
    @override
    def eof(self) -> bool:
        return self._state.eof

    @property
    @override
    def unused_data(self) -> bytes:
        return self._state.unused_data

    @override
    def pieces(self, data: bytes) -> Iterator[bytes]:
        while True:
            piece = self._state.decompress(data, PIECE_BYTES_MAX)
            if piece:
                yield piece
            if self._state.eof or self._state.needs_input:
                return
            data = b""
