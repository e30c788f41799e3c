"""Cut audio into windows while the bytes arrive.

WAV is decoded here: PCM of 8, 16, 24 and 32 bits, float32 and float64, plain or
WAVE_FORMAT_EXTENSIBLE, in RIFF, RF64 and BW64. Chunks other than `fmt ` and `data` are skipped. FLAC
and resampling need the extra `audio`.
"""

import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError, TruncatedError
from headrace.formats.contract import BLOCK_BYTES_MAX, AudioChannels, Buffer, Format
from headrace.formats.media.chunkfile import ChunkFile

WINDOWS_MAX = 64
"""Maximum number of windows in one block. BLOCK_BYTES_MAX may lower the number, down to one window."""
WINDOW_BYTES_MAX = 64 << 20
"""Maximum size of one window: 64 MiB of float32, nearly six minutes of 48 kHz mono."""
WAV_MAGICS = (b"RIFF", b"RF64", b"BW64")
READ_BYTES = 64 * 1024
"""Approximate number of sample bytes that are read and converted in one step."""

_RATE_HZ_MAX = 10_000_000
_UNKNOWN_SIZE = 0xFFFFFFFF
_SMALL_CHUNK_BYTES_MAX = 64 * 1024
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# End of a format GUID whose first two bytes are a plain format tag.
_PLAIN_GUID = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFormat(Format):
    """A format that cuts a WAV or FLAC object or member into windows, one record per window.

    Columns of a block of n windows:

    - `audio`: float32 in full scale -1 .. 1 (float files may exceed it). The shape is [n, samples]
      for `channels` "mono" (the mean of all channels) and [n, channels, samples] for "keep".
    - `time_ms`: float64 [n], the start of each window relative to the start of the file.
    - `sample_rate_hz`: int64 [n], the rate of `audio`.

    Window i starts at sample ``i * round(hop_ms * rate / 1000)`` and has ``round(window_ms * rate /
    1000)`` samples. `hop_ms` defaults to `window_ms`. A smaller hop makes windows overlap, a larger
    hop leaves gaps. If no window covers the last samples, `pad_last` adds one window that is filled
    up with zeros; without `pad_last` these samples are dropped. An empty file has no windows.

    `sample_rate_hz` resamples files of another rate. Resampling and every FLAC file need the extra
    `audio`; WAV at its own rate needs no extra. All files with the same rate and channels have
    windows of the same shape.

    A block has at most WINDOWS_MAX windows, and all blocks but the last are full. The chunks are
    read to their end.

    Positions: `record` counts windows. `byte` is the WAV file's offset of the first sample of the
    block's first window; for FLAC it is the start of the member. Times are in the column.

    Raises:
        CorruptError: The file is damaged, or is neither WAV nor FLAC. Raised after all complete
            windows before the damage.
        TruncatedError: The file ends early. Raised after all complete windows.
        MissingExtraError: The extra is needed and not installed.
    """

    window_ms: float
    hop_ms: float | None = None
    sample_rate_hz: int | None = None
    channels: AudioChannels = "mono"
    pad_last: bool = True

    def __post_init__(self) -> None:
        for name, value in (("window_ms", self.window_ms), ("hop_ms", self.hop_ms)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} = {value}: it must be positive")
        if self.sample_rate_hz is not None and not 1 <= self.sample_rate_hz <= 10_000_000:
            raise ConfigError(f"sample_rate_hz = {self.sample_rate_hz}: it must be between 1 and 10,000,000")
        if self.channels not in ("mono", "keep"):
            raise ConfigError(f"channels {self.channels!r}: choose mono or keep")

    @override
    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        file = ChunkFile(chunks, first.byte)
        stream = _open_stream(file)
        rate_hz = self.sample_rate_hz or stream.rate_hz
        channels = stream.channels if self.channels == "keep" else 1
        cutter = _WindowCutter(
            self._window_samples(file, rate_hz, channels), self._hop_samples(rate_hz), channels
        )
        builder = _BlockBuilder(first, rate_hz, stream, keep=self.channels == "keep")
        parts = self._parts(stream, rate_hz)
        while True:
            try:
                part = next(parts, None)
            except Exception:
                # Emit the complete windows that wait for a full block before the error ends the
                # iteration.
                yield from (builder.block(*run) for run in cutter.whole_windows())
                raise
            if part is None:
                break
            yield from (builder.block(*run) for run in cutter.add(part))
        yield from (builder.block(*run) for run in cutter.finish(pad=self.pad_last))
        file.drain()

    def _parts(self, stream: "_AudioStream", rate_hz: int) -> Iterator[Samples]:
        """Return an iterator of samples as [channels or 1, n] at the requested rate."""
        mixed = (_mix_to_mono(part) if self.channels == "mono" else part.T for part in stream.parts)
        if rate_hz == stream.rate_hz:
            return mixed
        purpose = f"resampling {stream.rate_hz} Hz to {rate_hz} Hz"
        return _load_container(purpose).resample(mixed, stream.rate_hz, rate_hz, stream.byte_of(0))

    def _window_samples(self, file: ChunkFile, rate_hz: int, channels: int) -> int:
        samples = max(1, round(self.window_ms * rate_hz / 1000))
        if samples * channels * 4 > WINDOW_BYTES_MAX:
            raise CorruptError(
                f"one window of {self.window_ms} ms at {rate_hz} Hz with {channels} channels takes more than "
                f"{WINDOW_BYTES_MAX} bytes: choose a smaller window_ms, unless the header is wrong",
                byte=file.position,
            )
        return samples

    def _hop_samples(self, rate_hz: int) -> int:
        return max(1, round((self.hop_ms or self.window_ms) * rate_hz / 1000))


@dataclass(frozen=True, slots=True)
class _AudioStream:
    """An opened audio file.

    `parts` have shape [n, channels]; `byte_of` maps a sample index to its byte offset.
    """

    rate_hz: int
    channels: int
    parts: Iterator[Samples]
    byte_of: Callable[[int], int]


def _open_stream(file: ChunkFile) -> _AudioStream:
    start = file.position
    magic = file.peek(4)
    if magic in WAV_MAGICS:
        header = read_wav_header(file)
        return _AudioStream(
            header.sample_rate_hz,
            header.channels,
            read_wav_samples(file, header),
            lambda sample: header.data_byte + sample * header.frame_bytes,
        )
    if magic == b"fLaC":
        flac = _load_container("reading FLAC").FlacReader(file)
        return _AudioStream(flac.sample_rate_hz, flac.channels, flac.samples(), lambda _: start)
    if len(magic) < 4:
        file.check()
        raise TruncatedError(f"not a WAV or FLAC file: it has {len(magic)} bytes", byte=start)
    raise CorruptError(f"not a WAV or FLAC file: it starts with {magic!r}", byte=start)


def _load_container(needed_for: str) -> ModuleType:
    """Import the PyAV adapter. Raise MissingExtraError if PyAV is not installed."""
    try:
        from headrace.formats.media import container  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingExtraError("audio", needed_for) from error
    return container


def _mix_to_mono(part: Samples) -> Samples:
    """Return the mean of the channels as [1, n].

    The channels are summed one by one, so that the result does not depend on n.
    """
    total = part[:, 0].copy()
    for channel in range(1, part.shape[1]):
        total += part[:, channel]
    total /= np.float32(part.shape[1])
    return total[np.newaxis]


@dataclass(frozen=True, slots=True)
class _BlockBuilder:
    """A converter from cut windows to blocks."""

    first: Position
    rate_hz: int
    stream: _AudioStream
    keep: bool

    def block(self, index: int, start: int, hop: int, windows: Samples) -> Block:
        """Return a block of `windows` [n, channels, samples].

        The first window has the number `index` and starts at sample `start`.
        """
        n = len(windows)
        offsets = np.zeros(n, np.int64)
        position = replace(
            self.first,
            record=self.first.record + index,
            byte=self.stream.byte_of(start * self.stream.rate_hz // self.rate_hz),
        )
        columns = {
            "audio": windows if self.keep else windows[:, 0],
            "time_ms": (start + hop * np.arange(n)) * 1000 / self.rate_hz,
            "sample_rate_hz": np.full(n, self.rate_hz, np.int64),
        }
        return Block(position, starts=offsets, ends=offsets, columns=columns)


_WindowRun = tuple[int, int, int, Samples]
"""Consecutive windows: index and first sample of the first window, hop, data [n, channels, samples]."""


class _WindowCutter:
    """A buffer of samples that cuts one block of windows at a time. It holds less than two blocks."""

    def __init__(self, window: int, hop: int, channels: int) -> None:
        self._window_samples = window
        self._hop_samples = hop
        self._windows_per_block = max(
            1, min(WINDOWS_MAX, BLOCK_BYTES_MAX // (max(window, hop) * channels * 4))
        )
        self._parts: list[Samples] = []
        self._held_samples = 0  # Number of samples in `_parts`.
        self._gap_samples = 0  # Samples to drop because the hop is longer than the window.
        self._next_index = 0

    def add(self, part: Samples) -> Iterator[_WindowRun]:
        """Add `part` [channels, n] and yield the full blocks that it completes."""
        self._append(part)
        samples_needed = (self._windows_per_block - 1) * self._hop_samples + self._window_samples
        while self._held_samples >= samples_needed:
            yield self._cut(self._windows_per_block)

    def whole_windows(self) -> Iterator[_WindowRun]:
        """Yield the complete windows that wait for a full block."""
        if self._held_samples >= self._window_samples:
            yield self._cut((self._held_samples - self._window_samples) // self._hop_samples + 1)

    def finish(self, *, pad: bool) -> Iterator[_WindowRun]:
        """Yield the remaining complete windows.

        With `pad`, also yield a padded window if samples remain that no window covers.
        """
        rows = max(0, (self._held_samples - self._window_samples) // self._hop_samples + 1)
        # Number of samples by which the last complete window overlaps the next one.
        covered = max(0, self._window_samples - self._hop_samples) if self._next_index + rows else 0
        remaining = self._held_samples - rows * self._hop_samples
        if pad and remaining > covered:
            channels = self._parts[0].shape[0]
            missing = rows * self._hop_samples + self._window_samples - self._held_samples
            self._append(np.zeros((channels, missing), np.float32))
            rows += 1
        if rows:
            yield self._cut(rows)

    def _append(self, part: Samples) -> None:
        dropped = min(self._gap_samples, part.shape[1])
        self._gap_samples -= dropped
        if dropped < part.shape[1]:
            self._parts.append(part[:, dropped:])
            self._held_samples += part.shape[1] - dropped

    def _cut(self, rows: int) -> _WindowRun:
        """Remove `rows` windows from the front. The buffer must hold enough samples for them."""
        samples = np.concatenate(self._parts, axis=1)
        views = sliding_window_view(samples, self._window_samples, axis=1)[:, :: self._hop_samples][:, :rows]
        windows = np.ascontiguousarray(views.transpose(1, 0, 2))
        index, consumed = self._next_index, rows * self._hop_samples
        self._next_index += rows
        self._parts, self._held_samples = [], 0
        self._gap_samples = max(0, consumed - samples.shape[1])
        if consumed < samples.shape[1]:
            self._append(samples[:, consumed:].copy())
        return index, index * self._hop_samples, self._hop_samples, windows


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


def read_wav_header(file: ChunkFile) -> WavHeader:
    """Read the file up to the first sample.

    Raises:
        TruncatedError: The file ends before the first sample.
        CorruptError: The file is not WAV, or its encoding (compressed, big-endian) is not
            supported.
    """
    start = file.position
    magic, riff_bytes, kind = struct.unpack("<4sI4s", _read_exactly(file, 12, "the RIFF header"))
    if magic not in WAV_MAGICS or kind != b"WAVE":
        raise CorruptError(f"not a WAV file: it starts with {magic!r} and {kind!r}", byte=start)
    fmt: WavHeader | None = None
    data_bytes_64: int | None = None
    while True:
        chunk_byte = file.position
        name, size = struct.unpack("<4sI", _read_exactly(file, 8, "a chunk header"))
        if name == b"data":
            break
        if name == b"fmt ":
            fmt = _parse_wav_format(_read_small_chunk(file, name, size), chunk_byte)
        elif name == b"ds64":
            data_bytes_64 = struct.unpack_from("<Q", _read_small_chunk(file, name, size).ljust(16, b"\0"), 8)[
                0
            ]
        else:
            _skip_wav(file, size, f"the {name!r} chunk")
        _skip_wav(file, size % 2, "a chunk's padding byte")
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


def read_wav_samples(file: ChunkFile, header: WavHeader) -> Iterator[NDArray[np.float32]]:
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


def _parse_wav_format(body: bytes, chunk_byte: int) -> WavHeader:
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


def _skip_wav(file: ChunkFile, size: int, part: str) -> None:
    if file.skip(size) < size:
        raise TruncatedError(f"the file ends inside {part}, before any sample", byte=file.position)
