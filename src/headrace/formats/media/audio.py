"""Cut audio into windows while the bytes arrive.

WAV is decoded by `headrace.formats.media.wav`; FLAC and resampling need the extra `audio`.
"""

import math
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
from headrace.formats.media import wav
from headrace.formats.media.chunkfile import ChunkFile

WINDOWS_MAX = 64
"""Maximum number of windows in one block. BLOCK_BYTES_MAX may lower the number, down to one window."""
WINDOW_BYTES_MAX = 64 << 20
"""Maximum size of one window: 64 MiB of float32, nearly six minutes of 48 kHz mono."""

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
    if magic in wav.MAGICS:
        header = wav.read_header(file)
        return _AudioStream(
            header.sample_rate_hz,
            header.channels,
            wav.read_samples(file, header),
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
