"""Video frames, every n-th or one every t ms, decoded while the file arrives. MP4 and Matroska (WebM)."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError, TruncatedError
from headrace.formats.boxes import MatroskaElements, Mp4Boxes, Scanner
from headrace.formats.chunkfile import ChunkFile
from headrace.formats.contract import Buffer
from headrace.formats.pixels import ImageMode, check_pixels

FRAMES_MAX = 16
"""How many frames a block holds at most; fewer when they would pass BLOCK_PIXEL_BYTES_MAX, but at least one."""
BLOCK_PIXEL_BYTES_MAX = 8 << 20
"""Pixels of a block: a 1080p frame has 6.2 million bytes, one of 224 x 224 has 150 thousand."""
PIXELS_MAX = 40_000_000
"""The largest frame that is decoded: 8K has 33 million pixels."""

_EBML = b"\x1a\x45\xdf\xa3"
_MP4_STARTS = (b"ftyp", b"styp", b"moov", b"moof", b"mdat", b"free", b"skip", b"wide", b"pnot")

_Wanted = Callable[[int, Fraction | None], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFormat:
    """Frames of an object's or member's first video stream; one record for each frame that is chosen.

    Columns of a block of n frames:

    - `image`: uint8 [n, H, W, C], C = 3 (`mode` RGB) or 1 (`mode` L, grey), upright (the file's rotation in quarter turns
      is applied); of `size_px` (height, width) when given, bilinear, without keeping the aspect ratio.
    - `time_ms`: float64 [n], presentation time as the file says it; NaN where it says none.
    - `frame`: int64 [n], the frame's number among all frames in presentation order, from 0.

    Chosen is every frame, unless one of these is given, not both:

    - `every_frames` = k: frames 0, k, 2k, ...
    - `every_ms` = t: frame 0, and then, for each of the times t, 2t, 3t, ... after it, the first frame shown at that time
      or later. A frame is given once, also when it is the first one for several of these times.

    A block has at most FRAMES_MAX frames of one size. Decoding is in one thread, so the same file gives the same
    pixels. Sound and further streams are passed over.

    Positions: `record` counts the chosen frames; `line` and `byte` are those of the file's start; times are in the column.

    Errors: `CorruptError` for what is not MP4 or Matroska, for an MP4 file whose index comes last (it cannot be
    streamed; noticed at the header of the media, before its bytes), and at the first damage; `TruncatedError` for what
    ends early. Frames before that have been given, but for the few that the decoder held back to show them after a
    missing one: no frame comes after a gap. Damage that neither the container nor the codec can tell
    from a picture is not noticed. Constructing one without PyAV raises `MissingExtraError` (video).
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
        _container()

    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        """Blocks of chosen frames. Reads the chunks to their end."""
        file = ChunkFile(chunks, first.byte)
        demuxer, scanner = _kind(file)
        chosen = self._chosen(file, demuxer, scanner)
        gathered = _Gathered(first)
        while True:
            try:
                picture = next(chosen, None)
            except Exception:
                # Frames that wait for a full block are not to be lost with the rest.
                yield from gathered.flush()
                raise
            if picture is None:
                break
            yield from gathered.add(*picture)
        yield from gathered.flush()
        file.drain()

    def _chosen(
        self, file: ChunkFile, demuxer: str, scanner: Scanner
    ) -> Iterator[tuple[NDArray[np.uint8], float, int]]:
        """Pixels, time in ms and number of each frame that is wanted; the others are never converted."""
        wanted = self._rule(file)
        for picture in _container().pictures(file, demuxer, scanner, PIXELS_MAX):
            if not wanted(picture.number, picture.time_s):
                continue
            time_ms = math.nan if picture.time_s is None else float(picture.time_s * 1000)
            yield picture.pixels(self.size_px, self.mode), time_ms, picture.number

    def _rule(self, file: ChunkFile) -> _Wanted:
        """Which frames are wanted; called once for every frame, in order."""
        if self.every_ms is None:
            step = self.every_frames or 1
            return lambda number, _: number % step == 0
        period_s = Fraction(self.every_ms) / 1000
        start_s: Fraction | None = None
        due = 0  # in periods after the first frame

        def shown_when_due(number: int, time_s: Fraction | None) -> bool:
            nonlocal start_s, due
            if time_s is None:
                raise CorruptError(
                    f"frame {number} has no presentation time: choose by every_frames", byte=file.position
                )
            if start_s is None:
                start_s = time_s
            periods = (time_s - start_s) // period_s
            if periods < due:
                return False
            due = periods + 1
            return True

        return shown_when_due


def _kind(file: ChunkFile) -> tuple[str, Scanner]:
    """Which demuxer reads the file, and what watches its structure."""
    head = file.peek(12)
    if head.startswith(_EBML):
        return "matroska", MatroskaElements(file.position)
    if head[4:8] in _MP4_STARTS:
        return "mov", Mp4Boxes(file.position)
    if len(head) < 12:
        file.check()
        raise TruncatedError(f"it has {len(head)} bytes: not an MP4 or Matroska file", byte=file.position)
    raise CorruptError(f"not an MP4 or Matroska (WebM) file: it starts with {head!r}", byte=file.position)


def _container() -> ModuleType:
    """The door to PyAV."""
    try:
        from headrace.formats import container  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingExtraError("video", "decoding video") from error
    return container


class _Gathered:
    """Collects frames of one size until they make a block."""

    def __init__(self, first: Position) -> None:
        self._first = first
        self._given = 0
        self._images: list[NDArray[np.uint8]] = []
        self._times_ms: list[float] = []
        self._numbers: list[int] = []

    def add(self, image: NDArray[np.uint8], time_ms: float, number: int) -> Iterator[Block]:
        """The blocks that this frame completes."""
        if self._images and self._images[0].shape != image.shape:
            yield from self.flush()
        self._images.append(image)
        self._times_ms.append(time_ms)
        self._numbers.append(number)
        frames_max = max(1, min(FRAMES_MAX, BLOCK_PIXEL_BYTES_MAX // image.nbytes))
        if len(self._images) >= frames_max:
            yield from self.flush()

    def flush(self) -> Iterator[Block]:
        """The frames collected so far, if any, as a block."""
        n = len(self._images)
        if not n:
            return
        none = np.zeros(n, np.int64)
        columns = {
            "image": np.stack(self._images),
            "time_ms": np.array(self._times_ms, np.float64),
            "frame": np.array(self._numbers, np.int64),
        }
        position = replace(self._first, record=self._first.record + self._given)
        self._given += n
        self._images, self._times_ms, self._numbers = [], [], []
        yield Block(position, starts=none, ends=none, columns=columns)
