"""RIFF/WAVE as a stream: the header, then samples as floats. Needs nothing but numpy.

PCM of 8, 16, 24 and 32 bits, float32 and float64, plain or WAVE_FORMAT_EXTENSIBLE; RIFF, RF64 and BW64. Chunks
other than `fmt ` and `data` are passed over.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.chunkfile import ChunkFile

MAGICS = (b"RIFF", b"RF64", b"BW64")
READ_BYTES = 64 * 1024
"""About how many bytes of samples are read and converted at once."""

_RATE_HZ_MAX = 10_000_000
_UNKNOWN = 0xFFFFFFFF
_SMALL_CHUNK_BYTES_MAX = 64 * 1024
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# The end of a format GUID whose first two bytes are a plain format tag.
_PLAIN_GUID = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"


@dataclass(frozen=True, slots=True)
class WavHeader:
    """What stands before the samples.

    `data_byte` is the offset of the first sample; `data_bytes` how many bytes of samples follow, None when the
    writer did not know (a pipe) and they go on until the end. `sample_bytes` is one sample of one channel.
    """

    sample_rate_hz: int
    channels: int
    sample_bytes: int
    is_float: bool
    data_byte: int = 0
    data_bytes: int | None = None

    @property
    def frame_bytes(self) -> int:
        """One sample of every channel."""
        return self.sample_bytes * self.channels


def read_header(file: ChunkFile) -> WavHeader:
    """Read up to the first sample.

    Raises `TruncatedError` when the file ends before it, `CorruptError` when it is not WAV or of a kind
    (compressed, big-endian) that is not read here.
    """
    start = file.position
    magic, riff_bytes, kind = struct.unpack("<4sI4s", _exactly(file, 12, "the RIFF header"))
    if magic not in MAGICS or kind != b"WAVE":
        raise CorruptError(f"not a WAV file: it starts with {magic!r} and {kind!r}", byte=start)
    layout: WavHeader | None = None
    long_data_bytes: int | None = None
    while True:
        at = file.position
        name, size = struct.unpack("<4sI", _exactly(file, 8, "a chunk header"))
        if name == b"data":
            break
        if name == b"fmt ":
            layout = _layout(_small(file, name, size), at)
        elif name == b"ds64":
            long_data_bytes = struct.unpack_from("<Q", _small(file, name, size).ljust(16, b"\0"), 8)[0]
        else:
            _skip(file, size, f"the {name!r} chunk")
        _skip(file, size % 2, "a chunk's padding byte")
    if layout is None:
        raise CorruptError("no `fmt ` chunk before the samples: their kind is not known", byte=at)
    if size == _UNKNOWN:
        data_bytes = long_data_bytes
    elif size == 0 and _size_unknown(riff_bytes, file.position - start):
        data_bytes = None
    else:
        data_bytes = size
    return WavHeader(
        layout.sample_rate_hz,
        layout.channels,
        layout.sample_bytes,
        layout.is_float,
        file.position,
        data_bytes,
    )


def read_samples(file: ChunkFile, header: WavHeader) -> Iterator[NDArray[np.float32]]:
    """Samples as float32 [n, channels], n bounded by READ_BYTES; integers are scaled to -1 .. 1.

    Floats are given as they stand, also beyond full scale. After the last whole sample raises `TruncatedError`
    when the header promised more.
    """
    step = max(1, READ_BYTES // header.frame_bytes) * header.frame_bytes
    left = header.data_bytes
    while left is None or left > 0:
        wanted = step if left is None else min(step, left)
        data = file.read(wanted)
        whole = len(data) - len(data) % header.frame_bytes
        if whole:
            yield _floats(data[:whole], header)
        if left is not None:
            left -= len(data)
        if len(data) == wanted:
            continue
        _check_end(file, header, left, len(data) - whole)
        return


def _check_end(file: ChunkFile, header: WavHeader, left: int | None, odd_bytes: int) -> None:
    """Raise when the samples stop where they should not."""
    file.check()
    if left:
        raise TruncatedError(f"the samples end {left} bytes early", byte=file.position)
    # A writer that did not know the size may still have padded an odd number of bytes.
    padded = odd_bytes == 1 and (file.position - header.data_byte) % 2 == 0
    if odd_bytes and not padded:
        raise TruncatedError("the samples end in the middle of one", byte=file.position)


def _size_unknown(riff_bytes: int, header_bytes: int) -> bool:
    """Whether a data size of 0 means that the writer could not go back to fill it in.

    When the RIFF size covers more than the header, the file was finished, and 0 is the truth.
    """
    return riff_bytes == _UNKNOWN or riff_bytes + 8 <= header_bytes


def _layout(body: bytes, at: int) -> WavHeader:
    if len(body) < 16:
        raise CorruptError(f"the `fmt ` chunk has {len(body)} bytes, not 16 or more", byte=at)
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", body)
    if tag == _EXTENSIBLE and len(body) >= 40 and body[26:40] == _PLAIN_GUID:
        tag = struct.unpack_from("<H", body, 24)[0]
    if tag not in (_PCM, _FLOAT):
        raise CorruptError(
            f"WAV format {tag:#06x} is not read: convert it to PCM or float, or to FLAC", byte=at
        )
    sample_bytes, odd = divmod(frame_bytes, channels) if channels else (0, 1)
    widths = (4, 8) if tag == _FLOAT else (1, 2, 3, 4)
    if (
        odd
        or not 0 < rate <= _RATE_HZ_MAX
        or sample_bytes not in widths
        or not 8 * (sample_bytes - 1) < bits <= 8 * sample_bytes
    ):
        raise CorruptError(
            f"impossible WAV header: {channels} channels, {rate} Hz, {bits} bits, {frame_bytes} bytes a frame",
            byte=at,
        )
    return WavHeader(rate, channels, sample_bytes, tag == _FLOAT)


def _floats(data: bytes, header: WavHeader) -> NDArray[np.float32]:
    shape = (-1, header.channels)
    if header.is_float:
        return np.frombuffer(data, f"<f{header.sample_bytes}").astype(np.float32).reshape(shape)
    if header.sample_bytes == 1:  # the one unsigned kind
        integers, full_scale = np.frombuffer(data, np.uint8).astype(np.int16) - 128, 1 << 7
    elif header.sample_bytes == 3:
        integers, full_scale = _int24(data), 1 << 31
    else:
        integers = np.frombuffer(data, f"<i{header.sample_bytes}")
        full_scale = 1 << (8 * header.sample_bytes - 1)
    return (integers.astype(np.float32) * np.float32(1 / full_scale)).reshape(shape)


def _int24(data: bytes) -> NDArray[np.int32]:
    """24-bit integers as the upper three bytes of 32-bit ones, which keeps the sign."""
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return wide.view("<i4").reshape(-1)


def _small(file: ChunkFile, name: bytes, size: int) -> bytes:
    """A chunk that is held whole."""
    if size > _SMALL_CHUNK_BYTES_MAX:
        raise CorruptError(f"the {name!r} chunk claims {size} bytes", byte=file.position)
    return _exactly(file, size, f"the {name!r} chunk")


def _exactly(file: ChunkFile, size: int, what: str) -> bytes:
    data = file.read(size)
    if len(data) < size:
        file.check()
        raise TruncatedError(f"it ends inside {what}, before any sample", byte=file.position)
    return data


def _skip(file: ChunkFile, size: int, what: str) -> None:
    if file.skip(size) < size:
        raise TruncatedError(f"it ends inside {what}, before any sample", byte=file.position)
