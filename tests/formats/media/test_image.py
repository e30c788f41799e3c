"""Tests of `ImageFormat`: pixels equal to Pillow's, damaged files, limits, memory."""

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

from cases import for_each
from headrace.core.block import FailureKind, Position
from headrace.core.errors import ConfigError, MissingExtraError, StorageError, TruncatedError
from headrace.formats.contract import check_pixels
from headrace.formats.media import image as image_module
from headrace.formats.media.image import RAW_HEAD_BYTES, ImageFormat

RNG = np.random.default_rng(7)
FIRST = Position("memory://a.png", member="x", record=0, line=1)
SMOOTH = np.add.outer(np.arange(60), np.arange(90))[:, :, None] * np.array([1, 0.7, 0.3])
PHOTO = Image.fromarray((SMOOTH + RNG.integers(0, 60, SMOOTH.shape)).clip(0, 255).astype(np.uint8))


def encode(picture, kind, **options):
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


def decode_reference(data, mode="RGB"):
    """Return the pixels that Pillow decodes from the whole file."""
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


@for_each("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_equal_those_of_pillow(kind, mode):
    name, options = KINDS[kind]
    data = encode(PHOTO, name, **options)
    pixels = pixels_of(data, mode=mode)
    assert pixels.shape == (60, 90, 3 if mode == "RGB" else 1)
    np.testing.assert_array_equal(pixels.squeeze(), decode_reference(data, mode))


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
def test_every_pixel_mode_is_converted(mode, kind):
    data = encode(PHOTO.convert(mode), kind)
    for target_mode in ("RGB", "L"):
        np.testing.assert_array_equal(
            pixels_of(data, mode=target_mode).squeeze(), decode_reference(data, target_mode)
        )


def test_palette_transparency_is_dropped_without_a_warning():
    picture = PHOTO.convert("P")
    data = encode(picture, "PNG", transparency=bytes(range(256)))
    np.testing.assert_array_equal(pixels_of(data), decode_reference(data))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_images_keep_their_upper_8_bits(kind):
    values = RNG.integers(0, 1 << 16, (20, 30)).astype(np.uint16)
    data = encode(Image.fromarray(values), kind)
    np.testing.assert_array_equal(pixels_of(data, mode="L")[:, :, 0], values >> 8)
    np.testing.assert_array_equal(pixels_of(data)[:, :, 1], values >> 8)


@for_each(("dtype", "why"), [(np.float32, "floating-point"), (np.int32, "32-bit integers")])
def test_pixels_of_unknown_range_are_a_failure(dtype, why):
    values = np.full((4, 4), -5).astype(dtype)
    assert why in failure_of(encode(Image.fromarray(values), "TIFF"))


@for_each("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(PHOTO, kind, exif=exif.tobytes() if kind != "TIFF" else exif)
    pixels = pixels_of(data)
    assert pixels.shape == ((90, 60, 3) if orientation >= 5 else (60, 90, 3))
    np.testing.assert_array_equal(pixels, decode_reference(data))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_is_ignored():
    data = encode(PHOTO, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12")
    assert pixels_of(data).shape == (60, 90, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@for_each("orientation", [1, 6])
def test_resizing_applies_to_the_upright_image(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(PHOTO, kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    expected = np.asarray(upright.resize((40, 30), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(pixels_of(data, size_px=(30, 40)), expected)


@pytest.mark.parametrize("orientation", [1, 6])
def test_large_jpeg_is_decoded_at_reduced_size(orientation, monkeypatch):
    """The image is decoded at 1/8. The result is close to a resize of the full image."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    large = PHOTO.resize((1440, 960), Image.Resampling.BICUBIC)
    data = encode(large, "JPEG", quality=95, exif=exif)
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
def test_truncated_image_is_a_failure(kind):
    name, options = KINDS[kind]
    data = encode(PHOTO, name, **options)
    for part in (0.3, 0.6, 0.95):
        assert "not a whole image" in failure_of(data[: int(len(data) * part)])


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bytes_yield_an_image_or_a_failure(kind):
    """Each run of bytes is damaged in turn."""
    name, options = KINDS[kind]
    data = encode(PHOTO.resize((16, 12)), name, **options)
    for at in range(4, len(data), max(1, len(data) // 60)):
        broken = data[:at] + bytes(b ^ 0xA5 for b in data[at : at + 3]) + data[at + 3 :]
        block = block_of(broken, pixels_max=1_000_000)
        assert block.records == 1
        assert not block.failures or block.failures[0].why


@for_each(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"\x89PNG\r\n\x1a\n", "not a whole image"),
        (b"a,b\n1,2\n" * 2000, "not a JPEG, PNG, GIF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it starts with b'%!PS"),
    ],
)
def test_non_image_input_is_a_failure(data, why):
    """This includes PostScript: Pillow would start a program to open it."""
    assert why in failure_of(data)


def png_header(width, height):
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 1 << 30) + b"IDAT"


@pytest.mark.parametrize("side", [9_000, 12_000, 60_000])
def test_oversized_image_is_rejected_by_its_header(side):
    """81, 144 and 3600 megapixels are below, at and above the limits where Pillow warns or raises."""
    tracemalloc.start()
    try:
        why = failure_of(png_header(side, side) + b"\0" * 5000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"{side} x {side} pixels is more than pixels_max = 64000000" in why
    assert peak < 1e6


def test_pixels_max_replaces_the_limit_of_pillow(monkeypatch):
    """Pillow raises for images of more than twice MAX_IMAGE_PIXELS."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    data = encode(PHOTO, "PNG")
    assert pixels_of(data, pixels_max=60 * 90).shape == (60, 90, 3)
    assert "more than pixels_max = 5399" in failure_of(data, pixels_max=60 * 90 - 1)


@pytest.mark.slow
def test_pixels_max_can_be_raised():
    data = encode(Image.new("1", (10_000, 9_000)), "PNG")
    assert pixels_of(data, mode="L", pixels_max=90_000_000).shape == (9000, 10_000, 1)


def test_formats_held_in_memory_are_limited():
    data = encode(PHOTO.resize((300, 300)), "TIFF")
    assert "held_bytes_max = 200000" in failure_of(data, held_bytes_max=200_000)
    assert pixels_of(data, held_bytes_max=300_000).shape == (300, 300, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "PPM", "GIF"])
def test_streamed_formats_are_not_held_in_memory(kind):
    """The limit for held bytes is smaller than the encoded image."""
    shape = (700, 700) if kind == "GIF" else (700, 700, 3)  # a GIF in colour is slow to quantize
    noise = Image.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8))
    data = encode(noise, kind)
    assert len(data) > 290_000
    assert pixels_of(data, held_bytes_max=150_000).shape == (700, 700, 3)


def test_header_above_the_limit_is_rejected():
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


def test_animation_yields_its_first_frame():
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        data = encode(frames[0], kind, save_all=True, append_images=frames[1:])
        assert pixels_of(data)[4, 4, 0] > 200


@for_each("at", [10, 2000])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("error", [TruncatedError("cut", byte=3), StorageError("s3://x", "gone")])
def test_chunk_errors_propagate(kind, at, error):
    """They are not errors of the image."""
    data = encode(PHOTO, kind)

    def chunks():
        yield data[:at]
        raise error

    with pytest.raises(type(error)) as caught:
        next(ImageFormat().blocks(chunks(), FIRST))
    assert caught.value is error


def test_errors_after_the_image_are_raised_after_it():
    """A wrong checksum at the end of a gzip stream must be detected."""

    def chunks():
        yield encode(PHOTO, "JPEG") + b"trailing"
        raise TruncatedError("cut", byte=3)

    blocks = ImageFormat().blocks(chunks(), FIRST)
    assert len(next(blocks)) == 1
    with pytest.raises(TruncatedError):
        next(blocks)


@for_each(
    "options",
    [
        {"mode": "CMYK"},
        {"size_px": (0, 5)},
        {"size_px": (9000, 9000)},
        {"pixels_max": 0},
        {"held_bytes_max": 9},
    ],
)
def test_invalid_options_are_rejected(options):
    with pytest.raises(ConfigError):
        ImageFormat(**options)


def test_missing_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without_pillow(name, *args, **kwargs):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    spec = importlib.util.spec_from_file_location("without_pillow", image_module.__file__)
    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(MissingExtraError, match=r"headrace\[image\]"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# Modes and sizes of images and video frames


@for_each(("mode", "size_px"), [("RGB", None), ("L", (1, 1)), ("RGB", (4, 25))])
def test_valid_modes_and_sizes_pass(mode, size_px):
    check_pixels(mode, size_px, 100)


@for_each(
    ("mode", "size_px", "why"),
    [
        ("CMYK", None, "image mode 'CMYK': choose RGB or L"),
        ("RGB", (0, 5), r"size_px \(0, 5\)"),
        ("L", (-4, -5), "must be positive"),
        ("L", (4, 26), "product at most 100"),
    ],
)
def test_invalid_modes_and_sizes_are_rejected(mode, size_px, why):
    with pytest.raises(ConfigError, match=why):
        check_pixels(mode, size_px, 100)
