"""The PyAV adapter: FLAC samples, resampling and video frames, decoded from a stream in one thread.

Importing this module requires PyAV. `audio` and `video` import it on first use and name the missing
extra.
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
from headrace.formats.contract import ImageMode
from headrace.formats.media.chunkfile import BoxScanner, ChunkFile

Samples = NDArray[np.float32]

# Decoders conceal damage by default. These options make them report it. FLAC frames have a CRC,
# H.264 slices do not.
_STRICT = {"err_detect": "crccheck+explode"}
_PYAV = int(av.__version__.split(".")[0])
# Metadata that is not UTF-8 must not fail the video. PyAV 19 handles it and has no such option.
_ANY_METADATA: dict[str, str] = {"metadata_errors": "replace"} if _PYAV < 19 else {}
_PIXELS: dict[ImageMode, str] = {"RGB": "rgb24", "L": "gray"}
# PyAV 17 added multithreaded scaling and enabled it by default.
_ONE_THREAD: dict[str, int] = {"threads": 1} if _PYAV >= 17 else {}


class _AvInput:
    """The input object that PyAV reads. It cannot seek and never raises.

    FFmpeg drops or rewords the exceptions of its reads. An error therefore ends the stream, and
    `check` raises it.
    """

    def __init__(self, file: ChunkFile, scanner: BoxScanner | None = None) -> None:
        self._file = file
        self._scanner = scanner
        self._error: BaseException | None = None

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes; fewer only at the end or before an error."""
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
        """True if an error ended the stream."""
        return self._error is not None

    def check(self) -> None:
        """Raise the error that ended the stream, if any."""
        if self._error is not None:
            raise self._error


def _open_container(source: _AvInput, demuxer: str, file: ChunkFile, options: dict[str, str]) -> Any:
    """Open the container and read its header and first packets.

    The result is Any because PyAV's types differ by version.
    """
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
    """A FLAC stream. Its rate and channels are read on construction, its samples by `samples`.

    Raises `CorruptError` if the stream is not FLAC and `TruncatedError` if it ends within the
    header.
    """

    def __init__(self, file: ChunkFile) -> None:
        self._file = file
        self._byte = file.position
        info = file.peek(42)  # Magic number and STREAMINFO, the first metadata block.
        if len(info) < 42:
            file.check()
            raise TruncatedError(f"the FLAC header ends after {len(info)} bytes", byte=self._byte + len(info))
        if info[4] & 0x7F != 0:
            raise CorruptError("the FLAC file does not start with STREAMINFO", byte=self._byte)
        packed = int.from_bytes(info[18:26], "big")
        self.sample_rate_hz = packed >> 44
        self.channels = (packed >> 41 & 0x7) + 1
        self._declared_samples = packed & ((1 << 36) - 1)  # 0 if the writer did not know it.
        if self.sample_rate_hz == 0:
            raise CorruptError("the FLAC header states 0 Hz", byte=self._byte)

    def samples(self) -> Iterator[Samples]:
        """Yield samples as float32 [n, channels], full scale -1 .. 1.

        Raises:
            CorruptError: A frame is damaged or missing. Raised after the samples before it.
            TruncatedError: The stream has fewer samples than its header states. Raised after all
                samples.
        """
        source = _AvInput(self._file)
        sample_count = 0
        with _open_container(source, "flac", self._file, {}) as container:
            stream = container.streams.audio[0]
            stream.codec_context.thread_count = 1
            stream.codec_context.options = dict(_STRICT)
            try:
                for frame in container.decode(stream):
                    self._check_frame(frame, sample_count, _to_fraction(stream.time_base))
                    part = _to_floats(frame)
                    sample_count += len(part)
                    yield part
            except FFmpegError as error:
                source.check()
                if not self._file.peek(1):
                    self._check_count(sample_count)
                raise self._corrupt_error(f"{error.strerror} after {sample_count} samples") from error
        source.check()
        self._check_count(sample_count)

    def _check_frame(self, frame: Any, sample_count: int, time_base: Fraction) -> None:
        """Raise CorruptError if the frame does not continue the samples before it.

        FFmpeg drops damaged frames, so the next frame starts at a later sample than expected.
        """
        if frame.pts is not None and frame.pts * time_base * self.sample_rate_hz != sample_count:
            raise self._corrupt_error(f"damaged after {sample_count} samples")
        if frame.sample_rate != self.sample_rate_hz or frame.layout.nb_channels != self.channels:
            raise self._corrupt_error(f"rate or channels change after {sample_count} samples")

    def _check_count(self, sample_count: int) -> None:
        if sample_count < self._declared_samples:
            why = f"the FLAC file ends after {sample_count} of {self._declared_samples} samples"
            raise TruncatedError(why, byte=self._file.position)

    def _corrupt_error(self, why: str) -> CorruptError:
        return CorruptError(f"FLAC: {why}", byte=self._file.position)


def _to_floats(frame: Any) -> Samples:
    """Convert an audio frame to float32 [n, channels]. Integers are scaled to -1 .. 1."""
    data = frame.to_ndarray()
    channels = frame.layout.nb_channels
    data = data.T if frame.format.is_planar else data.reshape(-1, channels)
    if data.dtype.kind == "f":
        return data.astype(np.float32)
    return data.astype(np.float32) * np.float32(1 / (1 << (8 * data.dtype.itemsize - 1)))


def resample(parts: Iterable[Samples], rate_in_hz: int, rate_out_hz: int, byte: int) -> Iterator[Samples]:
    """Yield parts [channels, n] at another rate. FFmpeg resamples each channel separately.

    Raises `CorruptError` at `byte` if FFmpeg has no resampler for these rates.
    """
    resamplers: list[_Resampler] = []
    for part in parts:
        try:
            resamplers = resamplers or [_Resampler(rate_in_hz, rate_out_hz) for _ in part]
        except FFmpegError as error:
            why = f"{rate_in_hz} Hz cannot be resampled to {rate_out_hz} Hz: {error.strerror}"
            raise CorruptError(why, byte=byte) from error
        yield from _stack_channels([r.resample(channel) for r, channel in zip(resamplers, part, strict=True)])
    yield from _stack_channels([r.resample(None) for r in resamplers])


class _Resampler:
    """A resampler of one channel. PyAV's AudioResampler would start one thread per core."""

    def __init__(self, rate_in_hz: int, rate_out_hz: int) -> None:
        self._rate_in_hz = rate_in_hz
        self._done = 0
        graph: Any = Graph()
        if hasattr(graph, "threads"):  # Not all supported PyAV versions have this option.
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

    def resample(self, samples: Samples | None) -> list[Samples]:
        """Return the output arrays [1, n] for the input `samples`. None ends the channel."""
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
            except (
                EOFError,
                BlockingIOError,
            ):  # EOFError at the end, BlockingIOError if more input is needed.
                return out


def _stack_channels(channels: list[list[Samples]]) -> Iterator[Samples]:
    """Combine the parts of the channels, equal in length, into arrays [channels, n]."""
    return (np.concatenate(parts) for parts in zip(*channels, strict=True))


@dataclass(frozen=True, slots=True)
class DecodedFrame:
    """A decoded video frame before pixel conversion.

    `number` counts from 0. `time_s` is the presentation time, or None. `byte` is the read position
    after the frame was decoded.
    """

    number: int
    time_s: Fraction | None
    byte: int
    frame: Any
    scaler: VideoReformatter

    def pixels(self, size_px: tuple[int, int] | None, mode: ImageMode) -> NDArray[np.uint8]:
        """Return the upright pixels as uint8 [height, width, 3 or 1].

        They are resized to `size_px` (height, width) if it is given.

        Raises `CorruptError` for a pixel format that cannot be converted.
        """
        quarter_turns = round(self.frame.rotation / 90) % 4
        height, width = size_px or (None, None)
        if quarter_turns % 2:
            height, width = width, height
        try:
            scaled = self.scaler.reformat(
                self.frame, width, height, _PIXELS[mode], interpolation="BILINEAR", **cast("Any", _ONE_THREAD)
            )
        except (FFmpegError, ValueError) as error:
            why = f"frame {self.number} ({self.frame.format.name}) cannot be converted to {mode}: {error}"
            raise CorruptError(why, byte=self.byte) from error
        upright = np.rot90(cast("NDArray[np.uint8]", scaled.to_ndarray()), quarter_turns)
        return upright if upright.ndim == 3 else upright[:, :, np.newaxis]


def decode_video(
    file: ChunkFile, demuxer: str, scanner: BoxScanner, pixels_max: int
) -> Iterator[DecodedFrame]:
    """Yield the frames of the first video stream in presentation order.

    `demuxer` is "mov" or "matroska".

    Raises `CorruptError` or `TruncatedError` after the frames before the damage. Frames that the
    decoder still holds for reordering, to follow a missing frame, are not yielded.
    """
    source = _AvInput(file, scanner)
    with _open_container(source, demuxer, file, {"max_pixels": str(pixels_max)}) as container:
        if not container.streams.video:
            source.check()
            raise CorruptError("the file has no video stream", byte=file.position)
        stream = container.streams.video[0]
        if stream.codec_context is None:
            source.check()
            raise CorruptError("there is no decoder for the video codec", byte=file.position)
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {**_STRICT, "max_pixels": str(pixels_max)}
        scaler, time_base = VideoReformatter(), _to_fraction(stream.time_base)
        for number, frame in enumerate(_decode_frames(container, stream, source, file)):
            time_s = None if frame.pts is None else frame.pts * time_base
            yield DecodedFrame(number, time_s, file.position, frame, scaler)


def _decode_frames(container: Any, stream: Any, source: _AvInput, file: ChunkFile) -> Iterator[Any]:
    """Yield complete frames in presentation order. Raise at the first damage."""
    packets: Iterator[Any] = container.demux(stream)
    packet_count = 0
    byte, why = file.position, "a damaged frame"
    while True:
        try:
            packet = next(packets, None)
            if packet is None:
                return
            flushes = packet.size == 0 and packet.dts is None
            if flushes and (source.failed or packet_count < min(1, stream.frames)):
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
                raise CorruptError(f"video decoding stopped: {why}", byte=byte)
            yield frame
        packet_count += 1
    source.check()
    if not packet_count:
        raise TruncatedError("the video ends before its first frame", byte=file.position)
    raise CorruptError(f"video decoding stopped: {why}", byte=byte)


def _to_fraction(value: Any) -> Fraction:
    """Convert a rational number of PyAV, which has its own class from version 19 on."""
    return Fraction(value.numerator, value.denominator)
