"""Decode video frames, every n-th or one per t ms, while the file arrives. MP4 and Matroska (WebM).

The decoder accepts damaged input: it ends silently where a file is cut off, and searches for the next
frame after damage. The scanners of the top-level structure detect both cases. They hold one header at
a time.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError, TruncatedError
from headrace.formats.contract import Buffer, Format, ImageMode, check_pixels
from headrace.formats.media.chunkfile import BoxScanner, ChunkFile

FRAMES_MAX = 16
"""Maximum number of frames in one block. BLOCK_PIXEL_BYTES_MAX may lower the number, down to one frame."""
BLOCK_PIXEL_BYTES_MAX = 8 << 20
"""Maximum pixel bytes of one block. A 1080p frame has 6.2 million bytes, a 224 x 224 frame 150 thousand."""
PIXELS_MAX = 40_000_000
"""Maximum number of pixels of a decoded frame. An 8K frame has 33 million."""
HELD_BYTES_MAX = 64 << 20
"""Maximum size of an MP4 index and of one Matroska element. The decoder holds both in memory."""

INDEX_AFTER_MEDIA = (
    "the index (moov) follows the media (mdat), so the file cannot be decoded as a stream: rewrite it with "
    "`ffmpeg -i IN -c copy -movflags +faststart OUT`, or write it fragmented"
)

_EBML = b"\x1a\x45\xdf\xa3"
_MP4_STARTS = (b"ftyp", b"styp", b"moov", b"moof", b"mdat", b"free", b"skip", b"wide", b"pnot")

_FrameFilter = Callable[[int, Fraction | None], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFormat(Format):
    """A format of the frames of the first video stream, with one record per selected frame.

    Columns of a block of n frames:

    - `image`: uint8 [n, H, W, C], C = 3 (`mode` RGB) or 1 (`mode` L, grey), upright (the file's
      rotation in quarter turns is applied). With `size_px` (height, width) it is resized
      bilinearly, without keeping the aspect ratio.
    - `time_ms`: float64 [n], the presentation time in the file; NaN if the frame has none.
    - `frame`: int64 [n], the frame's number among all frames in presentation order, from 0.

    Every frame is selected unless one of these options is set (setting both is an error):

    - `every_frames` = k: frames 0, k, 2k, ...
    - `every_ms` = t: frame 0, and then, for each of the times t, 2t, 3t, ... after it, the first
      frame shown at that time or later. A frame is selected once, even if it is the first one for
      several of these times.

    The chunks are read to their end. A block has at most FRAMES_MAX frames of one size. Decoding
    runs in one thread, so the same file yields the same pixels. Audio and further streams are
    skipped.

    Positions: `record` counts the selected frames. `line` and `byte` are those of the start of the
    file; times are in the column.

    Frames before an error are yielded, except the few that the decoder held to show them after a
    missing frame: no frame follows a gap. Damage that neither the container nor the codec can
    distinguish from image data is not detected.

    Raises:
        CorruptError: The file is neither MP4 nor Matroska, or it is damaged. Also raised for an MP4
            file whose index comes last, because it cannot be streamed; this is detected at the
            header of the media, before its bytes.
        TruncatedError: The file ends early.
        MissingExtraError: Raised on construction if PyAV (extra `video`) is not installed.
    """

    every_frames: int | None = None
    every_ms: float | None = None
    size_px: tuple[int, int] | None = None
    mode: ImageMode = "RGB"

    def __post_init__(self) -> None:
        if self.every_frames is not None and self.every_ms is not None:
            raise ConfigError("every_frames and every_ms contradict each other: give one")
        if self.every_frames is not None and self.every_frames < 1:
            raise ConfigError(f"every_frames = {self.every_frames}: it must be at least 1")
        if self.every_ms is not None and not 0 < self.every_ms < math.inf:
            raise ConfigError(f"every_ms = {self.every_ms}: it must be positive")
        check_pixels(self.mode, self.size_px, PIXELS_MAX)
        _load_container()

    @override
    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        file = ChunkFile(chunks, first.byte)
        demuxer, scanner = _detect_container(file)
        selected = self._selected_frames(file, demuxer, scanner)
        builder = _BlockBuilder(first)
        while True:
            try:
                frame = next(selected, None)
            except Exception:
                # Emit the frames that wait for a full block before the error ends the iteration.
                yield from builder.flush()
                raise
            if frame is None:
                break
            yield from builder.add(*frame)
        yield from builder.flush()
        file.drain()

    def _selected_frames(
        self, file: ChunkFile, demuxer: str, scanner: BoxScanner
    ) -> Iterator[tuple[NDArray[np.uint8], float, int]]:
        """Yield the pixels, time in ms and number of each selected frame.

        Other frames are not converted.
        """
        is_selected = self._make_filter(file)
        for frame in _load_container().decode_video(file, demuxer, scanner, PIXELS_MAX):
            if not is_selected(frame.number, frame.time_s):
                continue
            time_ms = math.nan if frame.time_s is None else float(frame.time_s * 1000)
            yield frame.pixels(self.size_px, self.mode), time_ms, frame.number

    def _make_filter(self, file: ChunkFile) -> _FrameFilter:
        """Return the frame filter. Call it once for every frame, in order."""
        if self.every_ms is None:
            step = self.every_frames or 1
            return lambda number, _: number % step == 0
        period_s = Fraction(self.every_ms) / 1000
        start_s: Fraction | None = None
        next_period = 0  # Counted in periods after the first frame.

        def is_due(number: int, time_s: Fraction | None) -> bool:
            nonlocal start_s, next_period
            if time_s is None:
                raise CorruptError(
                    f"frame {number} has no presentation time: select frames with every_frames",
                    byte=file.position,
                )
            if start_s is None:
                start_s = time_s
            periods = (time_s - start_s) // period_s
            if periods < next_period:
                return False
            next_period = periods + 1
            return True

        return is_due


def _detect_container(file: ChunkFile) -> tuple[str, BoxScanner]:
    """Return the demuxer for the file and the scanner that checks its structure."""
    head = file.peek(12)
    if head.startswith(_EBML):
        return "matroska", MatroskaElements(file.position)
    if head[4:8] in _MP4_STARTS:
        return "mov", Mp4Boxes(file.position)
    if len(head) < 12:
        file.check()
        raise TruncatedError(f"not an MP4 or Matroska file: it has {len(head)} bytes", byte=file.position)
    raise CorruptError(f"not an MP4 or Matroska (WebM) file: it starts with {head!r}", byte=file.position)


def _load_container() -> ModuleType:
    """Import the PyAV adapter. Raise MissingExtraError if PyAV is not installed."""
    try:
        from headrace.formats.media import container  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingExtraError("video", "decoding video") from error
    return container


class _BlockBuilder:
    """A collector of frames of one size for the next block."""

    def __init__(self, first: Position) -> None:
        self._first = first
        self._emitted = 0
        self._images: list[NDArray[np.uint8]] = []
        self._times_ms: list[float] = []
        self._numbers: list[int] = []

    def add(self, image: NDArray[np.uint8], time_ms: float, number: int) -> Iterator[Block]:
        """Add a frame and yield the blocks that it completes."""
        if self._images and self._images[0].shape != image.shape:
            yield from self.flush()
        self._images.append(image)
        self._times_ms.append(time_ms)
        self._numbers.append(number)
        frames_max = max(1, min(FRAMES_MAX, BLOCK_PIXEL_BYTES_MAX // image.nbytes))
        if len(self._images) >= frames_max:
            yield from self.flush()

    def flush(self) -> Iterator[Block]:
        """Yield the collected frames, if any, as a block."""
        n = len(self._images)
        if not n:
            return
        offsets = np.zeros(n, np.int64)
        columns = {
            "image": np.stack(self._images),
            "time_ms": np.array(self._times_ms, np.float64),
            "frame": np.array(self._numbers, np.int64),
        }
        position = replace(self._first, record=self._first.record + self._emitted)
        self._emitted += n
        self._images, self._times_ms, self._numbers = [], [], []
        yield Block(position, starts=offsets, ends=offsets, columns=columns)


class _HeaderScanner(BoxScanner):
    """A scanner that alternates between collecting a header and skipping a body."""

    def __init__(self, start_byte: int) -> None:
        self._position = start_byte  # Offset of the next byte.
        self._next_header = start_byte  # Offset of the next header.
        self._header = bytearray()

    @override
    def feed(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            step = min(len(data) - offset, self._next_header - self._position)
            if step <= 0:
                step = 1
                self._header += data[offset : offset + 1]
                self._next_header += self._read_header()
            self._position += step
            offset += step

    def _read_header(self) -> int:
        """Return the distance to add to `_next_header`.

        The distance is 1 while the header is incomplete, then 1 plus the number of bytes to skip.
        """
        raise NotImplementedError

    def _header_start(self) -> int:
        """Return the offset of the current header."""
        return self._position - len(self._header) + 1


class Mp4Boxes(_HeaderScanner):
    """A scanner of the top-level boxes of MP4 (ISO base media).

    It rejects files whose index follows the media.
    """

    def __init__(self, start_byte: int = 0) -> None:
        super().__init__(start_byte)
        self._name = b""
        self._indexed = False
        self._open_ended = False

    @override
    def check_end(self) -> None:
        if self._open_ended:
            return
        if self._header:
            raise TruncatedError("the MP4 file ends inside the header of a box", byte=self._position)
        if self._position < self._next_header:
            missing = self._next_header - self._position
            raise TruncatedError(
                f"the MP4 file ends inside the box {self._name!r}, {missing} bytes early", byte=self._position
            )
        if not self._indexed:
            raise TruncatedError("the MP4 file ends before its index (moov)", byte=self._position)

    @override
    def _read_header(self) -> int:
        header = bytes(self._header)
        if len(header) < 8:
            return 1
        size, self._name = int.from_bytes(header[:4], "big"), header[4:8]
        if size == 1:  # The size is in the next eight bytes.
            if len(header) < 16:
                return 1
            size = int.from_bytes(header[8:], "big")
        self._check(size, len(header))
        self._header.clear()
        if size == 0:  # The last box extends to the end of the file.
            self._open_ended = True
            return 1 << 62
        return 1 + size - len(header)

    def _check(self, size: int, header_bytes: int) -> None:
        if not all(0x20 <= c < 0x7F or c == 0xA9 for c in self._name) or 0 < size < header_bytes:
            raise CorruptError(
                f"{self._name!r} with {size} bytes is not an MP4 box", byte=self._header_start()
            )
        if self._name == b"mdat" and not self._indexed:
            raise CorruptError(INDEX_AFTER_MEDIA, byte=self._header_start())
        if self._name not in (b"moov", b"moof"):
            return
        self._indexed = True
        if size > HELD_BYTES_MAX:
            raise CorruptError(
                f"the index {self._name!r} has {size} bytes, more than {HELD_BYTES_MAX}: split the file",
                byte=self._header_start(),
            )


_SEGMENT, _CLUSTER = 0x18538067, 0x1F43B675


class MatroskaElements(_HeaderScanner):
    """A scanner of Matroska and WebM elements.

    It checks the elements at the top level, in the segment and in its clusters.
    """

    def __init__(self, start_byte: int = 0) -> None:
        super().__init__(start_byte)
        self._end = 0  # Highest end offset that a segment or cluster declares.
        self._clusters = 0

    @override
    def check_end(self) -> None:
        end = max(self._end, self._next_header)
        if self._header or self._position < end:
            raise TruncatedError(
                f"the Matroska file ends {end - self._position} bytes early", byte=self._position
            )
        if not self._clusters:
            raise TruncatedError("the Matroska file ends before its first cluster", byte=self._position)

    @override
    def _read_header(self) -> int:
        header = bytes(self._header)
        id_bytes = _vint_bytes(header[0])
        if id_bytes > 4:
            raise CorruptError(
                f"byte {header[0]:#04x} does not start a Matroska element", byte=self._header_start()
            )
        if len(header) <= id_bytes:
            return 1
        size_bytes = _vint_bytes(header[id_bytes])
        if size_bytes > 8:
            raise CorruptError("a Matroska element has no valid size", byte=self._header_start())
        if len(header) < id_bytes + size_bytes:
            return 1
        skipped = self._skip_length(header[:id_bytes], header[id_bytes:])
        self._header.clear()
        return 1 + skipped

    def _skip_length(self, name: bytes, size_field: bytes) -> int:
        """Return the number of body bytes to skip.

        It is zero for a segment or cluster, because their elements follow.
        """
        element = int.from_bytes(name, "big")
        unknown = (1 << 7 * len(size_field)) - 1
        size = int.from_bytes(size_field, "big") & unknown
        if element not in (_SEGMENT, _CLUSTER):
            if size > HELD_BYTES_MAX:  # This includes the unknown size: all ones in eight bytes.
                raise CorruptError(
                    f"Matroska element {element:#x} claims {size} bytes", byte=self._header_start()
                )
            return size
        self._clusters += element == _CLUSTER
        if size != unknown:
            self._end = max(self._end, self._position + 1 + size)
        return 0


def _vint_bytes(first: int) -> int:
    """Return the length of a variable-size integer in bytes; 9 for a zero byte.

    The leading zeros of the first byte encode the length.
    """
    return 9 - first.bit_length()
