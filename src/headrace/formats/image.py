"""Images, one to an object or archive member, decoded while their bytes arrive. The one door to Pillow.

JPEG, PNG, GIF (its first frame), BMP and PNM are decoded from the stream: what is held is the header and the
decoder's window. WebP and TIFF cannot be: they are held encoded, up to `held_bytes_max`. Other formats are
not opened at all; some of Pillow's plugins start programs.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, MissingExtraError
from headrace.formats.chunkfile import ChunkFile
from headrace.formats.contract import Buffer
from headrace.formats.pixels import ImageMode, check_pixels

try:
    from PIL import Image, ImageFile
    from PIL.BmpImagePlugin import BmpImageFile
    from PIL.GifImagePlugin import GifImageFile
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile
    from PIL.PpmImagePlugin import PpmImageFile
    from PIL.TiffImagePlugin import TiffImageFile
    from PIL.WebPImagePlugin import WebPImageFile
except ImportError as _error:
    raise MissingExtraError("image", "decoding images") from _error

PIXELS_MAX = 64_000_000
"""The largest image that is decoded by default: a 64-megapixel camera's, 192 MB as RGB."""
HELD_BYTES_MAX = 64 << 20
"""How many encoded bytes of one image are held at most, by default."""
RAW_HEAD_BYTES = 4096
"""How much of its beginning a failed image keeps."""
_HELD_BYTES_MIN = 128 * 1024  # Pillow's decoders read 64 KiB at a time

_ORIENTATION = 0x0112  # the EXIF tag
_SIDEWAYS = (5, 6, 7, 8)  # orientations that swap width and height
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_PNM = tuple(b"P%d%c" % (kind, space) for kind in range(1, 7) for space in b" \t\r\n")


class _Unfit(Exception):  # noqa: N818 - never leaves this module
    """The image cannot become a record; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFormat:
    """One record for each object or member: column `image`, uint8 [1, H, W, C], C = 3 (RGB) or 1 (L).

    `size_px` is (height, width) of every image given; None keeps each image's own. Resizing is bilinear with
    antialiasing, without keeping the aspect ratio; a JPEG at least four times as large is decoded at 1/2, 1/4
    or 1/8, never below twice `size_px`. `mode` is "RGB" or "L" (grey). Palette, CMYK and 16-bit images are
    converted, alpha is dropped, and EXIF orientation is applied: what comes out stands upright. Of an
    animation, the first frame.

    Bounded: `pixels_max` is checked against the header before anything is decoded; `held_bytes_max` bounds
    the encoded bytes held (all of a WebP or TIFF, the header of the others).

    A position has line and byte as they came in, since the record is the whole object. Whatever is not a whole
    image of a known format is a `Failure` (kind FORMAT) with at most the first 4 KiB of it as raw bytes.
    """

    size_px: tuple[int, int] | None = None
    mode: ImageMode = "RGB"
    pixels_max: int = PIXELS_MAX
    held_bytes_max: int = HELD_BYTES_MAX

    def __post_init__(self) -> None:
        if self.pixels_max < 1 or self.held_bytes_max < _HELD_BYTES_MIN:
            raise ConfigError(f"pixels_max must be at least 1 and held_bytes_max at least {_HELD_BYTES_MIN}")
        check_pixels(self.mode, self.size_px, self.pixels_max)

    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        """One block with the image, or with the failure in its place.

        The chunks are read to their end, also behind the image. What they raise passes through unchanged.
        """
        file = ChunkFile(chunks, first.byte)
        head = file.peek(RAW_HEAD_BYTES)
        try:
            image = self._decode(file, head)
        # Pillow's plugins raise nearly anything for bytes that are not as they expect.
        except Exception as error:
            file.check()
            if isinstance(error, MemoryError):
                raise
            yield Block(first, failures=(Failure(first, FailureKind.FORMAT, _why(error), head),))
        else:
            none = np.zeros(1, np.int64)
            yield Block(first, starts=none, ends=none, columns={"image": image[np.newaxis]})
        file.drain()

    def _decode(self, file: ChunkFile, head: bytes) -> NDArray[np.uint8]:
        window = _Window(file, self.held_bytes_max)
        picture = _open(window, head)
        width, height = picture.size
        if width * height > self.pixels_max:
            raise _Unfit(
                f"{width} x {height} pixels is more than pixels_max = {self.pixels_max}: raise it if this "
                "image is meant to be so large"
            )
        self._shrink_while_decoding(picture)
        window.forget()
        picture.load()
        upright = _upright(_converted(picture, self.mode), _orientation(picture))
        if self.size_px is not None and upright.size != (self.size_px[1], self.size_px[0]):
            upright = upright.resize((self.size_px[1], self.size_px[0]), Image.Resampling.BILINEAR)
        pixels = np.asarray(upright, np.uint8)
        return pixels if self.mode == "RGB" else pixels[:, :, np.newaxis]

    def _shrink_while_decoding(self, picture: ImageFile.ImageFile) -> None:
        """Let the JPEG decoder leave out what resizing would throw away."""
        if self.size_px is None or not isinstance(picture, JpegImageFile):
            return
        height, width = self.size_px
        if _orientation(picture) in _SIDEWAYS:
            height, width = width, height
        picture.draft(None, (2 * width, 2 * height))


class _Window(io.RawIOBase):
    """What Pillow reads: forward through the chunks, back within what is held.

    All is held until `forget`; then nothing before the last read.
    """

    def __init__(self, file: ChunkFile, held_bytes_max: int) -> None:
        super().__init__()
        self._file = file
        self._held = bytearray()
        self._origin = 0  # offset of the first held byte
        self._at = 0
        self._held_bytes_max = held_bytes_max
        self._forgets = False

    def forget(self) -> None:
        """From the next read on, drop what was read."""
        self._forgets = True

    def read(self, size: int = -1) -> bytes:
        """As a file's. Raises _Unfit when more would have to be held than allowed."""
        start = self._at - self._origin
        if self._forgets and start > len(self._held):
            self._file.skip(start - len(self._held))
            self._held.clear()
            self._origin, start = self._at, 0
        if size < 0:
            size = self._held_bytes_max + 1 - start
        stop = start + size
        if stop - (start if self._forgets else 0) > self._held_bytes_max:
            stop = self._held_bytes_max + 1
        self._held += self._file.read(max(0, stop - len(self._held)))
        if len(self._held) > self._held_bytes_max:
            raise _Unfit(
                f"it would take more than held_bytes_max = {self._held_bytes_max} encoded bytes in memory to "
                "decode it: raise that, or store it as JPEG or PNG, which are decoded as they arrive"
            )
        data = bytes(self._held[start:stop])
        self._at += len(data)
        if self._forgets:
            del self._held[: start + len(data)]
            self._origin = self._at
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Anywhere ahead, and back to what is still held."""
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the end of a stream is not known")
        target = offset + (self._at if whence == io.SEEK_CUR else 0)
        if target < self._origin:
            raise io.UnsupportedOperation("its parts are not in the order in which they are needed")
        self._at = target
        return target

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._at

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Within what is held."""
        return True


def _open(window: _Window, head: bytes) -> ImageFile.ImageFile:
    """The image with its header read and nothing decoded.

    The plugins' classes are called by their signatures instead of `Image.open`, which would warn about sizes that
    `pixels_max` may well allow, and would start with every plugin there is.
    """
    if not head:
        raise _Unfit("it is empty (0 bytes), not an image")
    if head.startswith(b"\xff\xd8\xff"):
        return JpegImageFile(cast("Any", window))
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return PngImageFile(cast("Any", window))
    if head.startswith((b"GIF87a", b"GIF89a")):
        return GifImageFile(cast("Any", window))
    if head.startswith(b"BM"):
        return BmpImageFile(cast("Any", window))
    if head.startswith(_PNM):
        return PpmImageFile(cast("Any", window))
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return WebPImageFile(io.BytesIO(window.read()))
    if head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return TiffImageFile(io.BytesIO(window.read()))
    raise _Unfit(f"not a JPEG, PNG, GIF, BMP, PNM, WebP or TIFF image: it starts with {head[:12]!r}")


def _converted(picture: Image.Image, mode: str) -> Image.Image:
    """The image in `mode`, 8 bits a channel; 16-bit grey keeps its upper 8 bits."""
    if picture.mode == "F":
        raise _Unfit(
            "its pixels are floating-point numbers of unknown range: convert it to 8 or 16 bits first"
        )
    if picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise _Unfit("its pixels are 32-bit integers of unknown range: convert it to 8 or 16 bits first")
        picture = Image.fromarray((values >> 8).astype(np.uint8))
    if picture.mode == mode:
        return picture
    # Pillow would warn that transparency gets lost; losing it is what we promise.
    picture.info.pop("transparency", None)
    return picture.convert(mode)


def _orientation(picture: Image.Image) -> int:
    """The EXIF orientation, 1..8; 1 (upright) when there is none or it cannot be read."""
    try:
        return int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - broken metadata must not cost the picture
        return 1


def _upright(picture: Image.Image, orientation: int) -> Image.Image:
    turn = _UPRIGHT.get(orientation)
    return picture if turn is None else picture.transpose(turn)


def _why(error: Exception) -> str:
    if isinstance(error, _Unfit):
        return str(error)
    return f"not a whole image: {error or type(error).__name__}"
