"""Decode images, one per object or archive member, while their bytes arrive. The Pillow adapter.

JPEG, PNG, GIF (its first frame), BMP and PNM are decoded as streams: only the header and the
decoder's window are in memory. WebP and TIFF cannot be decoded as streams. They are held encoded,
up to `held_bytes_max`. Other formats are rejected, because some Pillow plugins start external
programs.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, MissingExtraError
from headrace.formats.contract import Buffer, Format, ImageMode, check_pixels
from headrace.formats.media.chunkfile import ChunkFile

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
"""Default maximum number of pixels: an image of a 64-megapixel camera, 192 MB as RGB."""
HELD_BYTES_MAX = 64 << 20
"""Default maximum number of encoded bytes of one image in memory."""
RAW_HEAD_BYTES = 4096
"""Number of leading bytes of a failed image that its failure keeps."""
_HELD_BYTES_MIN = 128 * 1024  # Pillow's decoders read 64 KiB at a time.

_ORIENTATION = 0x0112  # EXIF tag.
_SIDEWAYS = (5, 6, 7, 8)  # Orientations that swap width and height.
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


class _UnusableImage(Exception):  # noqa: N818 - never leaves this module
    """The image cannot become a record; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFormat(Format):
    """A format with one image, and one record, per object or member.

    The column is `image`: uint8 [1, H, W, C], C = 3 (RGB) or 1 (L).

    `size_px` is the (height, width) of every image; None keeps each image's own size. Resizing is
    bilinear with antialiasing and does not keep the aspect ratio. A JPEG of four times the size or
    more is decoded at 1/2, 1/4 or 1/8, never below twice `size_px`. `mode` is "RGB" or "L" (grey).
    Palette, CMYK and 16-bit images are converted, alpha is dropped, and the EXIF orientation is
    applied. For an animation, the first frame is used.

    Limits: `pixels_max` is checked against the header before decoding. `held_bytes_max` limits the
    encoded bytes in memory: the whole file for WebP or TIFF, the header for other formats.

    A position keeps the line and byte of `first`, because the record is the whole object. Input
    that is not a complete image of a supported format becomes a `Failure` (kind FORMAT) with up to
    4 KiB of its start as raw bytes.
    """

    size_px: tuple[int, int] | None = None
    mode: ImageMode = "RGB"
    pixels_max: int = PIXELS_MAX
    held_bytes_max: int = HELD_BYTES_MAX

    def __post_init__(self) -> None:
        if self.pixels_max < 1 or self.held_bytes_max < _HELD_BYTES_MIN:
            raise ConfigError(f"pixels_max must be at least 1 and held_bytes_max at least {_HELD_BYTES_MIN}")
        check_pixels(self.mode, self.size_px, self.pixels_max)

    @override
    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        """Yield one block with the image, or with a failure in its place.

        The chunks are read to their end, also after the image. Their exceptions propagate
        unchanged.
        """
        file = ChunkFile(chunks, first.byte)
        head = file.peek(RAW_HEAD_BYTES)
        try:
            image = self._decode(file, head)
        # Pillow's plugins raise almost any exception for unexpected bytes.
        except Exception as error:
            file.check()
            if isinstance(error, MemoryError):
                raise
            yield Block(first, failures=(Failure(first, FailureKind.FORMAT, _failure_reason(error), head),))
        else:
            offsets = np.zeros(1, np.int64)
            yield Block(first, starts=offsets, ends=offsets, columns={"image": image[np.newaxis]})
        file.drain()

    def _decode(self, file: ChunkFile, head: bytes) -> NDArray[np.uint8]:
        source = _PillowInput(file, self.held_bytes_max)
        picture = _open(source, head)
        width, height = picture.size
        if width * height > self.pixels_max:
            raise _UnusableImage(
                f"{width} x {height} pixels is more than pixels_max = {self.pixels_max}: raise it if this "
                "image is meant to be so large"
            )
        self._request_draft(picture)
        source.discard_read_bytes()
        picture.load()
        upright = _rotate_upright(_convert_mode(picture, self.mode), _orientation(picture))
        if self.size_px is not None and upright.size != (self.size_px[1], self.size_px[0]):
            upright = upright.resize((self.size_px[1], self.size_px[0]), Image.Resampling.BILINEAR)
        pixels = np.asarray(upright, np.uint8)
        return pixels if self.mode == "RGB" else pixels[:, :, np.newaxis]

    def _request_draft(self, picture: ImageFile.ImageFile) -> None:
        """Let the JPEG decoder skip the detail that resizing would discard."""
        if self.size_px is None or not isinstance(picture, JpegImageFile):
            return
        height, width = self.size_px
        if _orientation(picture) in _SIDEWAYS:
            height, width = width, height
        picture.draft(None, (2 * width, 2 * height))


class _PillowInput(io.RawIOBase):
    """The file object that Pillow reads.

    It reads chunks forward and seeks back within the held bytes.

    It holds all bytes until `discard_read_bytes`, and afterwards no bytes before the last read.
    """

    def __init__(self, file: ChunkFile, held_bytes_max: int) -> None:
        super().__init__()
        self._file = file
        self._held = bytearray()
        self._origin = 0  # Offset of the first held byte.
        self._position = 0
        self._held_bytes_max = held_bytes_max
        self._discards = False

    def discard_read_bytes(self) -> None:
        """Drop bytes once they were read, beginning with the next read."""
        self._discards = True

    @override
    def read(self, size: int = -1) -> bytes:
        start = self._position - self._origin
        if self._discards and start > len(self._held):
            self._file.skip(start - len(self._held))
            self._held.clear()
            self._origin, start = self._position, 0
        if size < 0:
            size = self._held_bytes_max + 1 - start
        stop = start + size
        if stop - (start if self._discards else 0) > self._held_bytes_max:
            stop = self._held_bytes_max + 1
        self._held += self._file.read(max(0, stop - len(self._held)))
        if len(self._held) > self._held_bytes_max:
            raise _UnusableImage(
                f"decoding it would hold more than held_bytes_max = {self._held_bytes_max} encoded bytes in "
                "memory: raise held_bytes_max, or store the image as JPEG or PNG, which need no such buffer"
            )
        data = bytes(self._held[start:stop])
        self._position += len(data)
        if self._discards:
            del self._held[: start + len(data)]
            self._origin = self._position
        return data

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the end of a stream is not known")
        target = offset + (self._position if whence == io.SEEK_CUR else 0)
        if target < self._origin:
            raise io.UnsupportedOperation("its parts are not in the order in which they are needed")
        self._position = target
        return target

    @override
    def tell(self) -> int:
        return self._position

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True


def _open(source: _PillowInput, head: bytes) -> ImageFile.ImageFile:
    """Return the image with its header read and its pixels not decoded.

    The plugin classes are called by signature instead of `Image.open`. `Image.open` would warn
    about sizes that `pixels_max` allows, and would try every plugin.
    """
    if not head:
        raise _UnusableImage("it is empty (0 bytes), not an image")
    if head.startswith(b"\xff\xd8\xff"):
        return JpegImageFile(cast("Any", source))
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return PngImageFile(cast("Any", source))
    if head.startswith((b"GIF87a", b"GIF89a")):
        return GifImageFile(cast("Any", source))
    if head.startswith(b"BM"):
        return BmpImageFile(cast("Any", source))
    if head.startswith(_PNM):
        return PpmImageFile(cast("Any", source))
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return WebPImageFile(io.BytesIO(source.read()))
    if head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return TiffImageFile(io.BytesIO(source.read()))
    raise _UnusableImage(f"not a JPEG, PNG, GIF, BMP, PNM, WebP or TIFF image: it starts with {head[:12]!r}")


def _convert_mode(picture: Image.Image, mode: str) -> Image.Image:
    """Convert the image to `mode` with 8 bits per channel. 16-bit grey keeps its upper 8 bits."""
    if picture.mode == "F":
        raise _UnusableImage(
            "its pixels are floating-point numbers of unknown range: convert the image to 8 or 16 bits"
        )
    if picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise _UnusableImage(
                "its pixels are 32-bit integers of unknown range: convert it to 8 or 16 bits first"
            )
        picture = Image.fromarray((values >> 8).astype(np.uint8))
    if picture.mode == mode:
        return picture
    # Remove the transparency here, because Pillow warns when a conversion drops it.
    picture.info.pop("transparency", None)
    return picture.convert(mode)


def _orientation(picture: Image.Image) -> int:
    """Return the EXIF orientation, 1..8; 1 (upright) if it is absent or unreadable."""
    try:
        return int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - broken metadata must not cost the picture
        return 1


def _rotate_upright(picture: Image.Image, orientation: int) -> Image.Image:
    transpose = _UPRIGHT.get(orientation)
    return picture if transpose is None else picture.transpose(transpose)


def _failure_reason(error: Exception) -> str:
    if isinstance(error, _UnusableImage):
        return str(error)
    return f"not a whole image: {error or type(error).__name__}"
