"""Decoded columns as a model's input: axes, type, scale, and sizes that do not fit."""

import numpy as np
import pytest

from headrace.core.block import Block, Position
from headrace.core.errors import ModelInputError
from headrace.core.tensor import TensorSpec
from headrace.formats.column_decode import ColumnDecoder

RNG = np.random.default_rng(4)
IMAGES = RNG.integers(0, 256, (5, 6, 8, 3), dtype=np.uint8)
GREY = IMAGES[..., :1]
SOUND = RNG.uniform(-1, 1, (5, 160)).astype(np.float32)


def block(column, data):
    nothing = np.zeros(len(data), np.int64)
    return Block(Position("o", "m.png", record=7), starts=nothing, ends=nothing, columns={column: data})


def decode(column, data, datatype="FP32", shape=None, **options):
    decoder = ColumnDecoder("m", TensorSpec("x", datatype, shape), column, **options)
    decoded = decoder.decode(block(column, data))
    assert decoded.rows is None
    assert decoded.failures == ()
    assert list(decoded.tensors) == ["x"]
    tensor = decoded.tensors["x"]
    assert tensor.flags.c_contiguous
    return tensor


@pytest.mark.parametrize("shape", [(-1, 3, 6, 8), (-1, 3, -1, -1), (4, 3, 6, 8)])
def test_channels_go_first_where_the_model_has_them_first(shape):
    tensor = decode("image", IMAGES, shape=shape)
    assert tensor.shape == (5, 3, 6, 8)
    assert (tensor == IMAGES.transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize("shape", [None, (-1, 6, 8, 3), (-1, -1, -1, 3), (-1, -1, -1, -1)])
def test_channels_stay_last_elsewhere(shape):
    assert (decode("image", IMAGES, shape=shape) == IMAGES).all()


def test_an_image_three_pixels_high_is_not_turned():
    """The last axis says that channels are last already."""
    data = IMAGES[:, :3]
    assert decode("image", data, shape=(-1, 3, 8, 3)).shape == (5, 3, 8, 3)


def test_grey_images():
    assert decode("image", GREY, shape=(-1, 1, 6, 8)).shape == (5, 1, 6, 8)
    assert decode("image", GREY, shape=(-1, 6, 8, 1)).shape == (5, 6, 8, 1)
    assert (decode("image", GREY, shape=(-1, 6, 8)) == GREY[..., 0]).all()


@pytest.mark.parametrize(
    ("datatype", "dtype"), [("FP16", np.float16), ("FP32", np.float32), ("FP64", np.float64)]
)
def test_models_of_floats_get_images_scaled(datatype, dtype):
    tensor = decode("image", IMAGES, datatype, scale=1 / 255)
    assert tensor.dtype == dtype
    np.testing.assert_allclose(tensor, IMAGES / 255, rtol=2e-3 if dtype == np.float16 else 1e-6)
    assert tensor.max() <= 1


@pytest.mark.parametrize(("datatype", "dtype"), [("UINT8", np.uint8), ("INT32", np.int32)])
def test_models_of_whole_numbers_get_pixels_as_they_are(datatype, dtype):
    tensor = decode("image", IMAGES, datatype, scale=1 / 255)
    assert tensor.dtype == dtype
    assert (tensor == IMAGES).all()


def test_sound_is_never_scaled_or_turned():
    tensor = decode("audio", SOUND, "FP64", shape=(-1, 160), scale=1 / 255)
    assert (tensor == SOUND).all()
    assert (decode("audio", SOUND, shape=(-1, 1, -1)) == SOUND[:, np.newaxis]).all()
    stereo = RNG.uniform(-1, 1, (5, 3, 160, 2)).astype(np.float32)
    assert decode("audio", stereo, shape=(-1, 3, 160, 2)).shape == stereo.shape


@pytest.mark.parametrize(
    ("column", "data", "shape"),
    [
        ("image", IMAGES, (-1, 3, 224, 224)),
        ("image", IMAGES, (-1, 224, 224, 3)),
        ("image", GREY, (-1, 3, 6, 8)),
        ("image", IMAGES, (-1, 144)),
        ("image", IMAGES, (-1, 6, 8)),
        ("audio", SOUND, (-1, 400)),
        ("audio", SOUND, (-1, 160, 1)),
    ],
)
def test_what_does_not_fit_is_told_with_both_sizes(column, data, shape):
    with pytest.raises(ModelInputError) as caught:
        decode(column, data, shape=shape)
    message = str(caught.value)
    assert f"model m: input 'x' takes {list(shape)}, but the {column} at o!m.png, record 7" in message
    have = data.transpose(0, 3, 1, 2) if shape[1:2] == (3,) else data
    have = data[:, np.newaxis] if shape == (-1, 160, 1) else have
    assert (
        f"is {[-1, *have.shape[1:]]}; choose the size (--image-size, --image-mode), or the window" in message
    )


def test_a_block_without_records_fits_anything():
    assert decode("image", IMAGES[:0], shape=(-1, 3, 224, 224)).shape == (0, 3, 6, 8)


@pytest.mark.parametrize("column", ["image", "audio"])
def test_a_model_of_text_is_refused(column):
    with pytest.raises(ModelInputError, match=f"takes text or bytes, but the {column} column is numbers"):
        ColumnDecoder("m", TensorSpec("x", "BYTES"), column)


def test_the_column_itself_is_left_alone():
    """A block may be decoded for several models."""
    before = IMAGES.copy()
    tensor = decode("image", IMAGES, "UINT8", shape=(-1, 3, 6, 8))
    tensor[:] = 0
    assert (before == IMAGES).all()
