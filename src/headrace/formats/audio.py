"""Audio cut into windows while it arrives: WAV by our own reader, FLAC and resampling by the audio extra."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError, TruncatedError
from headrace.formats import wav
from headrace.formats.chunkfile import ChunkFile
from headrace.formats.contract import BLOCK_BYTES_MAX, AudioChannels, Buffer

WINDOWS_MAX = 64
"""How many windows a block holds at most; fewer when they would pass BLOCK_BYTES_MAX, but at least one."""
WINDOW_BYTES_MAX = 64 << 20
"""The largest window: 64 MiB of float32, nearly six minutes of 48 kHz mono."""

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFormat:
    """Cuts a WAV or FLAC object or member into windows; one record for each window.

    Columns of a block of n windows:

    - `audio`: float32, full scale -1 .. 1 (float files may go beyond); [n, samples] for `channels` "mono" (the mean
      of all channels), [n, channels, samples] for "keep".
    - `time_ms`: float64 [n], the start of each window from the start of the file.
    - `sample_rate_hz`: int64 [n], the rate of `audio`.

    Window i starts at sample ``i * round(hop_ms * rate / 1000)`` and has ``round(window_ms * rate / 1000)`` samples.
    `hop_ms` defaults to `window_ms`; a smaller one makes windows overlap, a larger one leaves gaps. When samples
    remain at the end that no window covers, `pad_last` gives one more window, filled up with zeros; without
    it they are dropped. An empty file has no windows.

    `sample_rate_hz` resamples files of another rate, and needs the extra audio then, as every FLAC file does; WAV at its
    own rate needs none. Every file that has the same rate and channels gives windows of the same shape.

    Positions: `record` counts windows; `byte` is the WAV file's byte of the first sample of a block's first window
    (the start of the member for FLAC); times are in the column.

    Errors: `CorruptError` for what is not WAV or FLAC, or is damaged, and `TruncatedError` for what ends early, both
    after every whole window before; `MissingExtraError` when the extra is needed and absent.
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

    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        """Blocks of at most WINDOWS_MAX windows, all full but the last. Reads the chunks to their end."""
        file = ChunkFile(chunks, first.byte)
        sound = _open(file)
        rate_hz = self.sample_rate_hz or sound.rate_hz
        channels = sound.channels if self.channels == "keep" else 1
        cutter = _Cutter(self._window(file, rate_hz, channels), self._hop(rate_hz), channels)
        track = _Track(first, rate_hz, sound, keep=self.channels == "keep")
        parts = self._parts(sound, rate_hz)
        while True:
            try:
                part = next(parts, None)
            except Exception:
                # Whole windows that wait for a full block are not to be lost with the rest.
                yield from (track.block(*cut) for cut in cutter.whole())
                raise
            if part is None:
                break
            yield from (track.block(*cut) for cut in cutter.add(part))
        yield from (track.block(*cut) for cut in cutter.finish(pad=self.pad_last))
        file.drain()

    def _parts(self, sound: "_Sound", rate_hz: int) -> Iterator[Samples]:
        """Samples as [channels or 1, n] at the wanted rate."""
        mixed = (_mono(part) if self.channels == "mono" else part.T for part in sound.parts)
        if rate_hz == sound.rate_hz:
            return mixed
        what = f"resampling {sound.rate_hz} Hz to {rate_hz} Hz"
        return _container(what).resampled(mixed, sound.rate_hz, rate_hz, sound.byte_of(0))

    def _window(self, file: ChunkFile, rate_hz: int, channels: int) -> int:
        samples = max(1, round(self.window_ms * rate_hz / 1000))
        if samples * channels * 4 > WINDOW_BYTES_MAX:
            raise CorruptError(
                f"one window of {self.window_ms} ms at {rate_hz} Hz with {channels} channels takes more than "
                f"{WINDOW_BYTES_MAX} bytes: choose a smaller window_ms, unless the header is wrong",
                byte=file.position,
            )
        return samples

    def _hop(self, rate_hz: int) -> int:
        return max(1, round((self.hop_ms or self.window_ms) * rate_hz / 1000))


@dataclass(frozen=True, slots=True)
class _Sound:
    """An opened file: parts are [n, channels]; `byte_of` tells where a sample stands."""

    rate_hz: int
    channels: int
    parts: Iterator[Samples]
    byte_of: Callable[[int], int]


def _open(file: ChunkFile) -> _Sound:
    start = file.position
    magic = file.peek(4)
    if magic in wav.MAGICS:
        header = wav.read_header(file)
        return _Sound(
            header.sample_rate_hz,
            header.channels,
            wav.read_samples(file, header),
            lambda sample: header.data_byte + sample * header.frame_bytes,
        )
    if magic == b"fLaC":
        flac = _container("reading FLAC").FlacReader(file)
        return _Sound(flac.sample_rate_hz, flac.channels, flac.samples(), lambda _: start)
    if len(magic) < 4:
        file.check()
        raise TruncatedError(f"it has {len(magic)} bytes: not a WAV or FLAC file", byte=start)
    raise CorruptError(f"not a WAV or FLAC file: it starts with {magic!r}", byte=start)


def _container(needed_for: str) -> ModuleType:
    """The door to PyAV, opened when it is needed first."""
    try:
        from headrace.formats import container  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingExtraError("audio", needed_for) from error
    return container


def _mono(part: Samples) -> Samples:
    """The mean of the channels, [1, n]; summed channel by channel, so that the result is the same for any n."""
    total = part[:, 0].copy()
    for channel in range(1, part.shape[1]):
        total += part[:, channel]
    total /= np.float32(part.shape[1])
    return total[np.newaxis]


@dataclass(frozen=True, slots=True)
class _Track:
    """Turns cut windows into blocks."""

    first: Position
    rate_hz: int
    sound: _Sound
    keep: bool

    def block(self, index: int, start: int, hop: int, windows: Samples) -> Block:
        """A block of `windows`, [n, channels, samples], the first of which is window `index` at sample `start`."""
        n = len(windows)
        none = np.zeros(n, np.int64)
        position = replace(
            self.first,
            record=self.first.record + index,
            byte=self.sound.byte_of(start * self.sound.rate_hz // self.rate_hz),
        )
        columns = {
            "audio": windows if self.keep else windows[:, 0],
            "time_ms": (start + hop * np.arange(n)) * 1000 / self.rate_hz,
            "sample_rate_hz": np.full(n, self.rate_hz, np.int64),
        }
        return Block(position, starts=none, ends=none, columns=columns)


_Cut = tuple[int, int, int, Samples]
"""Index of the first window, its first sample, the hop, and the windows [n, channels, samples]."""


class _Cutter:
    """Collects samples and cuts windows off them, a block's worth at a time. Holds less than two blocks."""

    def __init__(self, window: int, hop: int, channels: int) -> None:
        self._window = window
        self._hop = hop
        self._rows = max(1, min(WINDOWS_MAX, BLOCK_BYTES_MAX // (max(window, hop) * channels * 4)))
        self._parts: list[Samples] = []
        self._waiting = 0  # samples in the parts
        self._gap = 0  # samples to drop, because the hop is longer than the window
        self._index = 0  # the next window

    def add(self, part: Samples) -> Iterator[_Cut]:
        """Full blocks that `part`, [channels, n], completes."""
        self._append(part)
        need = (self._rows - 1) * self._hop + self._window
        while self._waiting >= need:
            yield self._cut(self._rows)

    def whole(self) -> Iterator[_Cut]:
        """The whole windows that wait for a full block."""
        if self._waiting >= self._window:
            yield self._cut((self._waiting - self._window) // self._hop + 1)

    def finish(self, *, pad: bool) -> Iterator[_Cut]:
        """All that is left: whole windows, and the padded one when samples remain that no window covers."""
        rows = max(0, (self._waiting - self._window) // self._hop + 1)
        # How far the last whole window reaches behind the start of the next.
        covered = max(0, self._window - self._hop) if self._index + rows else 0
        left = self._waiting - rows * self._hop
        if pad and left > covered:
            channels = self._parts[0].shape[0]
            missing = rows * self._hop + self._window - self._waiting
            self._append(np.zeros((channels, missing), np.float32))
            rows += 1
        if rows:
            yield self._cut(rows)

    def _append(self, part: Samples) -> None:
        dropped = min(self._gap, part.shape[1])
        self._gap -= dropped
        if dropped < part.shape[1]:
            self._parts.append(part[:, dropped:])
            self._waiting += part.shape[1] - dropped

    def _cut(self, rows: int) -> _Cut:
        """Take `rows` windows off the front; there must be enough."""
        samples = np.concatenate(self._parts, axis=1)
        views = sliding_window_view(samples, self._window, axis=1)[:, :: self._hop][:, :rows]
        windows = np.ascontiguousarray(views.transpose(1, 0, 2))
        index, passed = self._index, rows * self._hop
        self._index += rows
        self._parts, self._waiting = [], 0
        self._gap = max(0, passed - samples.shape[1])
        if passed < samples.shape[1]:
            self._append(samples[:, passed:].copy())
        return index, index * self._hop, self._hop, windows
