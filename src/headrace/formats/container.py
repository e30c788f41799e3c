"""The one door to PyAV: FLAC samples, resampling, and video frames, decoded from a stream in one thread.

Importing this module needs PyAV; `audio` and `video` do so when they need it, and say which extra is missing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import av
import numpy as np
from av.error import FFmpegError
from av.filter import Graph
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.boxes import Scanner
from headrace.formats.chunkfile import ChunkFile
from headrace.formats.pixels import ImageMode

Samples = NDArray[np.float32]

# Decoders conceal damage by default; these make them say so. FLAC frames have a CRC, H.264 slices do not.
_STRICT = {"err_detect": "crccheck+explode"}
_PYAV = int(av.__version__.split(".")[0])
# A title that is not UTF-8 must not cost the video. From PyAV 19 on that needs no telling, and cannot be told.
_ANY_METADATA: dict[str, str] = {"metadata_errors": "replace"} if _PYAV < 19 else {}
_PIXELS: dict[ImageMode, str] = {"RGB": "rgb24", "L": "gray"}
# Scaling in several threads came, and became the default, with PyAV 17.
_ONE_THREAD: dict[str, int] = {"threads": 1} if _PYAV >= 17 else {}


class _Source:
    """What PyAV reads: no seeking, and no exceptions.

    FFmpeg drops or rewords what its reads raise, so an error ends the stream here and is kept for `check`.
    """

    def __init__(self, file: ChunkFile, scanner: Scanner | None = None) -> None:
        self._file = file
        self._scanner = scanner
        self._error: BaseException | None = None

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes; fewer only at the end, or before an error."""
        if self._error is not None:
            return b""
        start = self._file.position
        data = b""
        try:
            data = self._file.read(size)
            self._scan(data, ends=len(data) < size and self._file.error is None)
        except BaseException as error:  # noqa: BLE001 - raised again by check
            self._error = error
            if isinstance(error, CorruptError) and data:
                return data[: max(0, error.byte - start)]
        return data

    def _scan(self, data: bytes, *, ends: bool) -> None:
        if self._scanner is None:
            return
        self._scanner.feed(data)
        if ends:
            self._scanner.check_end()

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
        return av.open(
            cast("Any", source), "r", format=demuxer, options=options, **cast("Any", _ANY_METADATA)
        )
    except FFmpegError as error:
        source.check()
        raise CorruptError(
            f"not a readable {demuxer} stream: {error.strerror}", byte=file.position
        ) from error


class FlacReader:
    """A FLAC stream: its rate and channels, read at once, and its samples.

    Raises `CorruptError` when it is not FLAC.
    """

    def __init__(self, file: ChunkFile) -> None:
        self._file = file
        self._byte = file.position
        info = file.peek(42)  # the magic number, and STREAMINFO, which comes first
        if len(info) < 42:
            file.check()
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
                    self._check_frame(frame, done, _fraction(stream.time_base))
                    part = _floats(frame)
                    done += len(part)
                    yield part
            except FFmpegError as error:
                source.check()
                if not self._file.peek(1):
                    self._check_count(done)
                raise self._corrupt(f"{error.strerror} after {done} samples") from error
        source.check()
        self._check_count(done)

    def _check_frame(self, frame: Any, done: int, time_base: Fraction) -> None:
        """A frame says which sample it starts with: damaged ones before it, which FFmpeg drops, leave a gap."""
        if frame.pts is not None and frame.pts * time_base * self.sample_rate_hz != done:
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


def resampled(parts: Iterable[Samples], rate_in_hz: int, rate_out_hz: int, byte: int) -> Iterator[Samples]:
    """Parts [channels, n] at another rate (FFmpeg's resampler, each channel by itself).

    Raises `CorruptError`, at `byte`, when there is no resampler for these rates.
    """
    resamplers: list[_Resampler] = []
    for part in parts:
        try:
            resamplers = resamplers or [_Resampler(rate_in_hz, rate_out_hz) for _ in part]
        except FFmpegError as error:
            why = f"{rate_in_hz} Hz cannot be resampled to {rate_out_hz} Hz: {error.strerror}"
            raise CorruptError(why, byte=byte) from error
        yield from _joined([r.resampled(channel) for r, channel in zip(resamplers, part, strict=True)])
    yield from _joined([r.resampled(None) for r in resamplers])


class _Resampler:
    """One channel at another rate. PyAV's own AudioResampler would start a thread for every core, for nothing."""

    def __init__(self, rate_in_hz: int, rate_out_hz: int) -> None:
        self._rate_in_hz = rate_in_hz
        self._done = 0
        graph: Any = Graph()
        if hasattr(graph, "threads"):  # not in every version that we allow
            graph.threads = 1
        source = graph.add(
            "abuffer",
            sample_rate=str(rate_in_hz),
            sample_fmt="flt",
            channel_layout="mono",
            time_base=f"1/{rate_in_hz}",
        )
        middle, sink = graph.add("aresample", str(rate_out_hz)), graph.add("abuffersink")
        source.link_to(middle)
        middle.link_to(sink)
        graph.configure()
        self._graph = graph

    def resampled(self, samples: Samples | None) -> list[Samples]:
        """What comes out, [1, n] each, when these samples go in; None ends the channel."""
        if samples is None:
            self._graph.push(None)
        else:
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[np.newaxis]), "flt", "mono")
            frame.sample_rate, frame.pts = self._rate_in_hz, self._done
            frame.time_base = Fraction(1, self._rate_in_hz)
            self._done += len(samples)
            self._graph.push(frame)
        out: list[Samples] = []
        while True:
            try:
                out.append(self._graph.pull().to_ndarray())
            except (EOFError, BlockingIOError):  # at the end; nothing more before the next samples
                return out


def _joined(channels: list[list[Samples]]) -> Iterator[Samples]:
    """The channels' parts, which have the same lengths, as arrays [channels, n]."""
    return (np.concatenate(parts) for parts in zip(*channels, strict=True))


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded frame, not yet converted.

    `number` counts from 0, `time_s` is its presentation time, if it has one, and `byte` where reading stood.
    """

    number: int
    time_s: Fraction | None
    byte: int
    frame: Any
    scaler: VideoReformatter

    def pixels(self, size_px: tuple[int, int] | None, mode: ImageMode) -> NDArray[np.uint8]:
        """As uint8 [height, width, 3 or 1], upright; of `size_px` (height, width) when given.

        Raises `CorruptError` for a pixel format that cannot be converted.
        """
        turns = round(self.frame.rotation / 90) % 4
        height, width = size_px or (None, None)
        if turns % 2:
            height, width = width, height
        try:
            scaled = self.scaler.reformat(
                self.frame, width, height, _PIXELS[mode], interpolation="BILINEAR", **cast("Any", _ONE_THREAD)
            )
        except (FFmpegError, ValueError) as error:
            why = f"frame {self.number} ({self.frame.format.name}) cannot become {mode}: {error}"
            raise CorruptError(why, byte=self.byte) from error
        upright = np.rot90(cast("NDArray[np.uint8]", scaled.to_ndarray()), turns)
        return upright if upright.ndim == 3 else upright[:, :, np.newaxis]


def pictures(file: ChunkFile, demuxer: str, scanner: Scanner, pixels_max: int) -> Iterator[Picture]:
    """Frames of the first video stream, in presentation order. `demuxer` is "mov" or "matroska".

    Raises `CorruptError` or `TruncatedError` after the frames before the damage. Frames that the decoder still holds back
    then, to be shown after one that is missing, are not given.
    """
    source = _Source(file, scanner)
    with _opened(source, demuxer, file, {"max_pixels": str(pixels_max)}) as container:
        if not container.streams.video:
            source.check()
            raise CorruptError("it holds no video stream", byte=file.position)
        stream = container.streams.video[0]
        if stream.codec_context is None:
            source.check()
            raise CorruptError("there is no decoder for its video", byte=file.position)
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {**_STRICT, "max_pixels": str(pixels_max)}
        scaler, time_base = VideoReformatter(), _fraction(stream.time_base)
        for number, frame in enumerate(_frames(container, stream, source, file)):
            time_s = None if frame.pts is None else frame.pts * time_base
            yield Picture(number, time_s, file.position, frame, scaler)


def _frames(container: Any, stream: Any, source: _Source, file: ChunkFile) -> Iterator[Any]:
    """Whole frames in presentation order; raises at the first damage."""
    packets: Iterator[Any] = container.demux(stream)
    seen = 0
    byte, why = file.position, "a damaged frame"
    while True:
        try:
            packet = next(packets, None)
            if packet is None:
                return
            flushes = packet.size == 0 and packet.dts is None
            if flushes and (source.failed or seen < min(1, stream.frames)):
                break
            byte = file.position if packet.pos is None else packet.pos
            if packet.is_corrupt:
                break
            decoded: list[Any] = packet.decode()
        except FFmpegError as error:
            why = str(error.strerror)
            break
        for frame in decoded:
            if frame.is_corrupt:
                raise CorruptError(f"the video cannot be decoded on: {why}", byte=byte)
            yield frame
        seen += 1
    source.check()
    if not seen:
        raise TruncatedError("the video ends before its first frame", byte=file.position)
    raise CorruptError(f"the video cannot be decoded on: {why}", byte=byte)


def _fraction(value: Any) -> Fraction:
    """PyAV's rational numbers, which are its own from version 19 on."""
    return Fraction(value.numerator, value.denominator)
