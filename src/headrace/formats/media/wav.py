"""Read RIFF/WAVE as a stream: the header, then samples as floats. Only numpy is required.

Supported are PCM of 8, 16, 24 and 32 bits, float32 and float64, plain or WAVE_FORMAT_EXTENSIBLE, in
RIFF, RF64 and BW64. Chunks other than `fmt ` and `data` are skipped.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.media.chunkfile import ChunkFile

MAGICS = (b"RIFF", b"RF64", b"BW64")
READ_BYTES = 64 * 1024
"""Approximate number of sample bytes that are read and converted in one step."""

_RATE_HZ_MAX = 10_000_000
_UNKNOWN_SIZE = 0xFFFFFFFF
_SMALL_CHUNK_BYTES_MAX = 64 * 1024
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# End of a format GUID whose first two bytes are a plain format tag.
_PLAIN_GUID = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"


@dataclass(frozen=True, slots=True)
class WavHeader:
    """The description of the samples.

    `data_byte` is the offset of the first sample. `data_bytes` is the size of the samples, or None
    if the writer did not know it (a pipe) and they continue until the end. `sample_bytes` is the
    size of one sample of one channel.
    """

    sample_rate_hz: int
    channels: int
    sample_bytes: int
    is_float: bool
    data_byte: int = 0
    data_bytes: int | None = None

    @property
    def frame_bytes(self) -> int:
        """Size of one sample of every channel."""
        return self.sample_bytes * self.channels


def read_header(file: ChunkFile) -> WavHeader:
    """Read the file up to the first sample.

    Raises:
        TruncatedError: The file ends before the first sample.
        CorruptError: The file is not WAV, or its encoding (compressed, big-endian) is not
            supported.
    """
    start = file.position
    magic, riff_bytes, kind = struct.unpack("<4sI4s", _read_exactly(file, 12, "the RIFF header"))
    if magic not in MAGICS or kind != b"WAVE":
        raise CorruptError(f"not a WAV file: it starts with {magic!r} and {kind!r}", byte=start)
    fmt: WavHeader | None = None
    data_bytes_64: int | None = None
    while True:
        chunk_byte = file.position
        name, size = struct.unpack("<4sI", _read_exactly(file, 8, "a chunk header"))
        if name == b"data":
            break
        if name == b"fmt ":
            fmt = _parse_fmt(_read_small_chunk(file, name, size), chunk_byte)
        elif name == b"ds64":
            data_bytes_64 = struct.unpack_from("<Q", _read_small_chunk(file, name, size).ljust(16, b"\0"), 8)[
                0
            ]
        else:
            _skip(file, size, f"the {name!r} chunk")
        _skip(file, size % 2, "a chunk's padding byte")
    if fmt is None:
        raise CorruptError("no `fmt ` chunk before the samples: their encoding is not known", byte=chunk_byte)
    if size == _UNKNOWN_SIZE:
        data_bytes = data_bytes_64
    elif size == 0 and _is_size_unknown(riff_bytes, file.position - start):
        data_bytes = None
    else:
        data_bytes = size
    return WavHeader(
        fmt.sample_rate_hz,
        fmt.channels,
        fmt.sample_bytes,
        fmt.is_float,
        file.position,
        data_bytes,
    )


def read_samples(file: ChunkFile, header: WavHeader) -> Iterator[NDArray[np.float32]]:
    """Yield samples as float32 [n, channels], n limited by READ_BYTES.

    Integers are scaled to -1 .. 1.

    Floats are not scaled or clipped and may exceed full scale. Raises `TruncatedError`, after the
    last complete sample, if the header states more samples.
    """
    step = max(1, READ_BYTES // header.frame_bytes) * header.frame_bytes
    remaining = header.data_bytes
    while remaining is None or remaining > 0:
        requested = step if remaining is None else min(step, remaining)
        data = file.read(requested)
        whole_bytes = len(data) - len(data) % header.frame_bytes
        if whole_bytes:
            yield _to_floats(data[:whole_bytes], header)
        if remaining is not None:
            remaining -= len(data)
        if len(data) == requested:
            continue
        _check_end(file, header, remaining, len(data) - whole_bytes)
        return


def _check_end(file: ChunkFile, header: WavHeader, remaining: int | None, leftover_bytes: int) -> None:
    """Raise an error if the samples end early or in the middle of a sample."""
    file.check()
    if remaining:
        raise TruncatedError(f"the samples end {remaining} bytes early", byte=file.position)
    # A writer that did not know the size may still have padded an odd number of bytes.
    padded = leftover_bytes == 1 and (file.position - header.data_byte) % 2 == 0
    if leftover_bytes and not padded:
        raise TruncatedError("the samples end in the middle of a sample", byte=file.position)


def _is_size_unknown(riff_bytes: int, header_bytes: int) -> bool:
    """Return True if a data size of 0 means that the writer could not seek back to fill it in.

    If the RIFF size covers more than the header, the file was finished and the size is 0.
    """
    return riff_bytes == _UNKNOWN_SIZE or riff_bytes + 8 <= header_bytes


def _parse_fmt(body: bytes, chunk_byte: int) -> WavHeader:
    if len(body) < 16:
        raise CorruptError(f"the `fmt ` chunk has {len(body)} bytes, not 16 or more", byte=chunk_byte)
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", body)
    if tag == _EXTENSIBLE and len(body) >= 40 and body[26:40] == _PLAIN_GUID:
        tag = struct.unpack_from("<H", body, 24)[0]
    if tag not in (_PCM, _FLOAT):
        raise CorruptError(
            f"WAV format {tag:#06x} is not supported: convert it to PCM or float, or to FLAC", byte=chunk_byte
        )
    sample_bytes, remainder = divmod(frame_bytes, channels) if channels else (0, 1)
    widths = (4, 8) if tag == _FLOAT else (1, 2, 3, 4)
    if (
        remainder
        or not 0 < rate <= _RATE_HZ_MAX
        or sample_bytes not in widths
        or not 8 * (sample_bytes - 1) < bits <= 8 * sample_bytes
    ):
        raise CorruptError(
            f"invalid WAV header: {channels} channels, {rate} Hz, {bits} bits, {frame_bytes} bytes a frame",
            byte=chunk_byte,
        )
    return WavHeader(rate, channels, sample_bytes, tag == _FLOAT)


def _to_floats(data: bytes, header: WavHeader) -> NDArray[np.float32]:
    shape = (-1, header.channels)
    if header.is_float:
        return np.frombuffer(data, f"<f{header.sample_bytes}").astype(np.float32).reshape(shape)
    if header.sample_bytes == 1:  # The only unsigned sample type.
        integers, full_scale = np.frombuffer(data, np.uint8).astype(np.int16) - 128, 1 << 7
    elif header.sample_bytes == 3:
        integers, full_scale = _int24(data), 1 << 31
    else:
        integers = np.frombuffer(data, f"<i{header.sample_bytes}")
        full_scale = 1 << (8 * header.sample_bytes - 1)
    return (integers.astype(np.float32) * np.float32(1 / full_scale)).reshape(shape)


def _int24(data: bytes) -> NDArray[np.int32]:
    """Convert 24-bit integers to the upper three bytes of 32-bit integers; this keeps the sign."""
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return wide.view("<i4").reshape(-1)


def _read_small_chunk(file: ChunkFile, name: bytes, size: int) -> bytes:
    """Read a chunk that is held in memory as a whole."""
    if size > _SMALL_CHUNK_BYTES_MAX:
        raise CorruptError(f"the {name!r} chunk claims {size} bytes", byte=file.position)
    return _read_exactly(file, size, f"the {name!r} chunk")


def _read_exactly(file: ChunkFile, size: int, part: str) -> bytes:
    data = file.read(size)
    if len(data) < size:
        file.check()
        raise TruncatedError(f"the file ends inside {part}, before any sample", byte=file.position)
    return data


def _skip(file: ChunkFile, size: int, part: str) -> None:
    if file.skip(size) < size:
        raise TruncatedError(f"the file ends inside {part}, before any sample", byte=file.position)
