"""The one door to PyAV: FLAC samples, resampling, and video frames, decoded from a stream in one thread.

Importing this module needs PyAV; `audio` and `video` do so when they need it, and say which extra is missing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import av
import numpy as np
from av.audio.resampler import AudioResampler
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.boxes import Scanner
from headrace.formats.chunkfile import ChunkFile

Samples = NDArray[np.float32]

# Decoders conceal damage by default; these make them say so. FLAC frames have a CRC, H.264 slices do not.
_STRICT = {"err_detect": "crccheck+explode"}
# Scaling in several threads came, and became the default, with PyAV 17.
_ONE_THREAD: dict[str, int] = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}

_FULL_SCALE = {"i": 0, "f": 1}


class _Source:
    """What PyAV reads: no seeking, and no exceptions.

    FFmpeg drops or rewords what its reads raise, so an error ends the stream here and is kept for `check`.
    """

    def __init__(self, file: ChunkFile, scanner: Scanner | None = None) -> None:
        self._file = file
        self._scanner = scanner
        self._error: BaseException | None = None

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, fewer only at the end or at an error."""
        if self._error is not None:
            return b""
        try:
            data = self._file.read(size)
            if self._scanner is not None:
                self._scanner.feed(data)
                if len(data) < size:
                    self._scanner.check_end()
        except BaseException as error:  # noqa: BLE001 - raised again by check
            self._error = error
            return b""
        return data

    @property
    def failed(self) -> bool:
        """Whether the stream ended by an error."""
        return self._error is not None

    def check(self) -> None:
        """Raise what a read ran into."""
        if self._error is not None:
            raise self._error


def _opened(source: _Source, demuxer: str, file: ChunkFile, options: dict[str, str]) -> Any:
    """The container, with its header and first packets read. Typed loosely: PyAV's own types differ by version."""
    try:
        container = av.open(cast("Any", source), "r", format=demuxer, options=options)
    except FFmpegError as error:
        source.check()
        raise CorruptError(f"not a readable {demuxer} stream: {error.strerror}", byte=file.position) from error
    if source.failed and not len(container.streams.get()):
        container.close()
        source.check()
    return container


class FlacReader:
    """A FLAC stream: its rate and channels, read at once, and its samples.

    Raises `CorruptError` when it is not FLAC.
    """

    def __init__(self, file: ChunkFile) -> None:
        self._file = file
        self._byte = file.position
        info = file.peek(42)  # the magic number, and STREAMINFO, which comes first
        if len(info) < 42:
            raise TruncatedError(f"the FLAC header ends after {len(info)} bytes", byte=self._byte + len(info))
        if info[4] & 0x7F != 0:
            raise CorruptError("the FLAC file does not start with STREAMINFO", byte=self._byte)
        packed = int.from_bytes(info[18:26], "big")
        self.sample_rate_hz = packed >> 44
        self.channels = (packed >> 41 & 0x7) + 1
        self._samples = packed & ((1 << 36) - 1)  # 0: the writer did not know
        if self.sample_rate_hz == 0:
            raise CorruptError("the FLAC header says 0 Hz", byte=self._byte)

    def samples(self) -> Iterator[Samples]:
        """Samples as float32 [n, channels], full scale -1 .. 1.

        Raises, after the samples before, `CorruptError` where a frame is damaged or missing and `TruncatedError`
        when there are fewer than the header promises.
        """
        source = _Source(self._file)
        done = 0
        with _opened(source, "flac", self._file, {}) as container:
            stream = container.streams.audio[0]
            stream.codec_context.thread_count = 1
            stream.codec_context.options = dict(_STRICT)
            try:
                for frame in container.decode(stream):
                    self._check_frame(frame, done)
                    part = _floats(frame)
                    done += len(part)
                    yield part
            except FFmpegError as error:
                source.check()
                self._check_count(done)
                raise self._corrupt(f"{error.strerror} after {done} samples") from error
        source.check()
        self._check_count(done)

    def _check_frame(self, frame: Any, done: int) -> None:
        """A frame says which sample it starts with, unless the writer left it out; none may be missing."""
        if frame.pts is not None and Fraction(frame.pts) * _fraction(frame.time_base) * frame.sample_rate != done:
            raise self._corrupt(f"damaged after {done} samples")
        if frame.sample_rate != self.sample_rate_hz or frame.layout.nb_channels != self.channels:
            raise self._corrupt(f"rate or channels change after {done} samples")

    def _check_count(self, done: int) -> None:
        if done < self._samples:
            why = f"{done} of {self._samples} samples, then it ends"
            raise TruncatedError(why, byte=self._file.position)

    def _corrupt(self, why: str) -> CorruptError:
        return CorruptError(f"FLAC: {why}", byte=self._file.position)


def _floats(frame: Any) -> Samples:
    """An audio frame of integers as float32 [n, channels]."""
    data = frame.to_ndarray()
    channels = frame.layout.nb_channels
    data = data.T if frame.format.is_planar else data.reshape(-1, channels)
    if data.dtype.kind == "f":
        return data.astype(np.float32)
    return data.astype(np.float32) * np.float32(1 / (1 << (8 * data.dtype.itemsize - 1)))


def resampled(parts: Iterable[Samples], rate_in_hz: int, rate_out_hz: int) -> Iterator[Samples]:
    """Parts [channels, n] at another rate (FFmpeg's resampler, each channel by itself)."""
    resamplers: list[AudioResampler] = []
    done = 0
    for part in parts:
        if not resamplers:
            resamplers = [AudioResampler("flt", "mono", rate_out_hz) for _ in part]
        frames: list[Any] = []
        for channel in part:
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(channel[np.newaxis]), "flt", "mono")
            frame.sample_rate, frame.time_base, frame.pts = rate_in_hz, Fraction(1, rate_in_hz), done
            frames.append(frame)
        done += part.shape[1]
        yield from _joined([r.resample(frame) for r, frame in zip(resamplers, frames, strict=True)])
    if resamplers:
        yield from _joined([r.resample(None) for r in resamplers])


def _joined(channels: list[list[Any]]) -> Iterator[Samples]:
    """The channels' frames, which have the same lengths, as arrays [channels, n]."""
    for frames in zip(*channels, strict=True):
        yield np.concatenate([frame.to_ndarray() for frame in frames]).astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded frame, not yet converted: `number` counts from 0; `time_s` is its presentation time, if it has one."""

    number: int
    time_s: Fraction | None
    frame: Any
    scaler: VideoReformatter

    def rgb(self, size_px: tuple[int, int] | None) -> NDArray[np.uint8]:
        """Pixels as uint8 [height, width, 3], upright; of `size_px` (height, width) when given."""
        turns = round(self.frame.rotation / 90) % 4
        height, width = size_px or (None, None)
        if turns % 2:
            height, width = width, height
        scaled = self.scaler.reformat(
            self.frame, width, height, "rgb24", interpolation="BILINEAR", **cast("Any", _ONE_THREAD)
        )
        return np.rot90(cast("NDArray[np.uint8]", scaled.to_ndarray()), turns)


def pictures(file: ChunkFile, demuxer: str, scanner: Scanner, pixels_max: int) -> Iterator[Picture]:
    """Frames of the first video stream, in presentation order. `demuxer` is "mov" or "matroska".

    Raises `CorruptError` or `TruncatedError` after the frames before the damage. Frames that the decoder held back
    for reordering are given then only when none is missing before them.
    """
    source = _Source(file, scanner)
    with _opened(source, demuxer, file, {"max_pixels": str(pixels_max)}) as container:
        if not container.streams.video:
            source.check()
            raise CorruptError("it holds no video stream", byte=file.position)
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {**_STRICT, "max_pixels": str(pixels_max)}
        scaler = VideoReformatter()
        for number, frame in enumerate(_frames(container, stream, source, file)):
            time_s = None if frame.pts is None else frame.pts * _fraction(frame.time_base)
            yield Picture(number, time_s, frame, scaler)


def _frames(container: Any, stream: Any, source: _Source, file: ChunkFile) -> Iterator[Any]:
    """Whole frames in presentation order; raises at the first damage."""
    sound_dts: int | None = None  # of the last packet that decoded
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
            if packet is None:
                return
            ends = packet.dts is None and packet.size == 0
            if source.failed and ends:
                break
            if packet.is_corrupt:
                break
            decoded = packet.decode()
        except FFmpegError as error:
            problem: Exception = error
            break
        for frame in decoded:
            if frame.is_corrupt:
                ...
            yield frame
