"""Images against Pillow's own opening of the whole file; damage, bounds, and what is held."""

import builtins
import importlib.util
import io
import struct
import tracemalloc
import zlib

import numpy as np
import PIL
import pytest
from PIL import Image, ImageOps

from headrace.core.block import FailureKind, Position
from headrace.core.errors import ConfigError, MissingExtraError, StorageError, TruncatedError
from headrace.formats import image as image_module
from headrace.formats.image import RAW_HEAD_BYTES, ImageFormat

RNG = np.random.default_rng(7)
FIRST = Position("memory://a.png", member="x", record=0, line=1)
SMOOTH = np.add.outer(np.arange(60), np.arange(90))[:, :, None] * np.array([1, 0.7, 0.3])
PHOTO = Image.fromarray((SMOOTH + RNG.integers(0, 60, SMOOTH.shape)).clip(0, 255).astype(np.uint8))


def encoded(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def block_of(data, **options):
    (block,) = ImageFormat(**options).blocks([data[i : i + 1000] for i in range(0, len(data), 1000)], FIRST)
    return block


def pixels_of(data, **options):
    block = block_of(data, **options)
    assert not block.failures, block.failures
    assert (len(block), block.records, block.data, block.first) == (1, 1, b"", FIRST)
    pixels = block.columns["image"]
    assert pixels.dtype == np.uint8
    assert pixels.shape[0] == 1
    return pixels[0]


def failure_of(data, **options):
    block = block_of(data, **options)
    assert len(block) == 0
    (failure,) = block.failures
    assert (failure.kind, failure.position) == (FailureKind.FORMAT, FIRST)
    assert failure.raw == data[:RAW_HEAD_BYTES]
    return failure.why


def opened(data, mode="RGB"):
    """What Pillow gives for the whole file at once."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    picture.info.pop("transparency", None)
    return np.asarray(picture.convert(mode))


KINDS = {
    "jpeg": ("JPEG", {"quality": 90}),
    "progressive": ("JPEG", {"progressive": True}),
    "png": ("PNG", {}),
    "gif": ("GIF", {}),
    "bmp": ("BMP", {}),
    "ppm": ("PPM", {}),
    "webp": ("WEBP", {"lossless": True}),
    "tiff": ("TIFF", {}),
    "tiff-lzw": ("TIFF", {"compression": "tiff_lzw"}),
}


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_equal_those_of_pillow(kind, mode):
    name, options = KINDS[kind]
    data = encoded(PHOTO, name, **options)
    pixels = pixels_of(data, mode=mode)
    assert pixels.shape == (60, 90, 3 if mode == "RGB" else 1)
    np.testing.assert_array_equal(pixels.squeeze(), opened(data, mode))


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("1", "PNG"),
        ("L", "PNG"),
        ("LA", "PNG"),
        ("P", "PNG"),
        ("RGBA", "PNG"),
        ("RGBA", "WEBP"),
        ("CMYK", "JPEG"),
        ("CMYK", "TIFF"),
        pytest.param(
            "YCbCr",
            "TIFF",
            marks=pytest.mark.skipif(
                PIL.__version__ < "13", reason="Pillow 12 cannot read the TIFF that it writes"
            ),
        ),
    ],
)
def test_every_kind_of_pixel_becomes_the_mode(mode, kind):
    data = encoded(PHOTO.convert(mode), kind)
    for wanted in ("RGB", "L"):
        np.testing.assert_array_equal(pixels_of(data, mode=wanted).squeeze(), opened(data, wanted))


def test_a_palette_with_transparency_loses_it_without_a_warning():
    picture = PHOTO.convert("P")
    data = encoded(picture, "PNG", transparency=bytes(range(256)))
    np.testing.assert_array_equal(pixels_of(data), opened(data))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_keep_their_upper_eight(kind):
    values = RNG.integers(0, 1 << 16, (20, 30)).astype(np.uint16)
    data = encoded(Image.fromarray(values), kind)
    np.testing.assert_array_equal(pixels_of(data, mode="L")[:, :, 0], values >> 8)
    np.testing.assert_array_equal(pixels_of(data)[:, :, 1], values >> 8)


@pytest.mark.parametrize(("dtype", "why"), [(np.float32, "floating-point"), (np.int32, "32-bit integers")])
def test_pixels_of_unknown_range_are_refused(dtype, why):
    values = np.full((4, 4), -5).astype(dtype)
    assert why in failure_of(encoded(Image.fromarray(values), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(PHOTO, kind, exif=exif.tobytes() if kind != "TIFF" else exif)
    pixels = pixels_of(data)
    assert pixels.shape == ((90, 60, 3) if orientation >= 5 else (60, 90, 3))
    np.testing.assert_array_equal(pixels, opened(data))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_does_not_cost_the_picture():
    data = encoded(PHOTO, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12")
    assert pixels_of(data).shape == (60, 90, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_resizing_is_height_by_width_of_the_upright_image(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(PHOTO, kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    expected = np.asarray(upright.resize((40, 30), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(pixels_of(data, size_px=(30, 40)), expected)


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_decoded_small(orientation, monkeypatch):
    """Decoded at 1/8 here, and close to what resizing the whole gives. The draft is for the lying image."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    large = PHOTO.resize((1440, 960), Image.Resampling.BICUBIC)
    data = encoded(large, "JPEG", quality=95, exif=exif)
    decoded_sizes = []
    load = image_module.JpegImageFile.load
    monkeypatch.setattr(
        image_module.JpegImageFile, "load", lambda self: (decoded_sizes.append(self.size), load(self))[1]
    )
    size_px = (60, 90) if orientation == 1 else (90, 60)
    pixels = pixels_of(data, size_px=size_px)
    assert decoded_sizes[0] == (180, 120)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    whole = np.asarray(upright.resize((size_px[1], size_px[0]), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(pixels - whole).mean() < 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_image_is_a_failure(kind):
    name, options = KINDS[kind]
    data = encoded(PHOTO, name, **options)
    for part in (0.3, 0.6, 0.95):
        assert "not a whole image" in failure_of(data[: int(len(data) * part)])


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bytes_never_crash(kind):
    """Each byte run of the file broken in turn: an image of some pixels, or a failure with a reason."""
    name, options = KINDS[kind]
    data = encoded(PHOTO.resize((16, 12)), name, **options)
    for at in range(4, len(data), max(1, len(data) // 60)):
        broken = data[:at] + bytes(b ^ 0xA5 for b in data[at : at + 3]) + data[at + 3 :]
        block = block_of(broken, pixels_max=1_000_000)
        assert block.records == 1
        assert not block.failures or block.failures[0].why


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"\x89PNG\r\n\x1a\n", "not a whole image"),
        (b"a,b\n1,2\n" * 2000, "not a JPEG, PNG, GIF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it starts with b'%!PS"),
    ],
)
def test_what_is_no_image_is_a_failure(data, why):
    """PostScript too: opening it would start a program."""
    assert why in failure_of(data)


def png_header(width, height):
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 1 << 30) + b"IDAT"


@pytest.mark.parametrize("side", [9_000, 12_000, 60_000])
def test_a_bomb_is_refused_by_its_header(side):
    """81, 144 and 3600 megapixels: below, at and above where Pillow itself warns or raises."""
    tracemalloc.start()
    try:
        why = failure_of(png_header(side, side) + b"\0" * 5000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"{side} x {side} pixels is more than pixels_max = 64000000" in why
    assert peak < 1e6


def test_more_pixels_can_be_allowed():
    """Also more than Pillow would warn of."""
    data = encoded(Image.new("1", (10_000, 9_000)), "PNG")
    assert pixels_of(data, mode="L", pixels_max=90_000_000).shape == (9000, 10_000, 1)


def test_formats_that_must_be_held_are_held_up_to_a_bound():
    data = encoded(PHOTO.resize((300, 300)), "TIFF")
    assert "held_bytes_max = 200000" in failure_of(data, held_bytes_max=200_000)
    assert pixels_of(data, held_bytes_max=300_000).shape == (300, 300, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "PPM", "GIF"])
def test_streamed_formats_do_not_hold_their_bytes(kind):
    """Fewer encoded bytes may be held than the image has."""
    noise = Image.fromarray(RNG.integers(0, 256, (700, 700, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    assert len(data) > 290_000
    assert pixels_of(data, held_bytes_max=150_000).shape == (700, 700, 3)


def test_a_huge_header_is_refused():
    """A chunk of 2 GB before the pixels would have to be held."""
    head = png_header(10, 10)[:-8] + struct.pack(">I", 2 << 30) + b"tEXt"

    def chunks():
        yield head
        for _ in range(200):
            yield bytes(1 << 20)

    tracemalloc.start()
    try:
        (block,) = ImageFormat(held_bytes_max=4 << 20).blocks(chunks(), FIRST)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "held_bytes_max" in block.failures[0].why
    assert peak < 24e6


def test_the_first_frame_of_an_animation():
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        assert pixels_of(data)[4, 4, 0] > 200


@pytest.mark.parametrize("at", [10, 2000])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("error", [TruncatedError("cut", byte=3), StorageError("s3://x", "gone")])
def test_errors_of_the_chunks_pass_through(kind, at, error):
    """They are no statement about the image."""
    data = encoded(PHOTO, kind)

    def chunks():
        yield data[:at]
        raise error

    with pytest.raises(type(error)) as caught:
        next(ImageFormat().blocks(chunks(), FIRST))
    assert caught.value is error


def test_errors_behind_the_image_come_after_it():
    """A wrong checksum at the end of a gzip stream must not be missed."""

    def chunks():
        yield encoded(PHOTO, "JPEG") + b"trailing"
        raise TruncatedError("cut", byte=3)

    blocks = ImageFormat().blocks(chunks(), FIRST)
    assert len(next(blocks)) == 1
    with pytest.raises(TruncatedError):
        next(blocks)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "CMYK"},
        {"size_px": (0, 5)},
        {"size_px": (9000, 9000)},
        {"pixels_max": 0},
        {"held_bytes_max": 9},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        ImageFormat(**options)


def test_the_missing_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without_pillow(name, *args, **kwargs):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    spec = importlib.util.spec_from_file_location("without_pillow", image_module.__file__)
    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(MissingExtraError, match=r"headrace\[image\]"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
