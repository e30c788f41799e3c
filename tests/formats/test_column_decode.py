"""Tests of decoded columns as a model's input: axes, type, scale and sizes."""

import numpy as np
import pytest

from cases import for_each
from headrace.core.block import Block, Position
from headrace.core.errors import ModelInputError
from headrace.core.tensor import TensorSpec
from headrace.formats.column_decode import ColumnDecoder

RNG = np.random.default_rng(4)
IMAGES = RNG.integers(0, 256, (5, 6, 8, 3), dtype=np.uint8)
GREY = IMAGES[..., :1]
SOUND = RNG.uniform(-1, 1, (5, 160)).astype(np.float32)


def block_of(column, data):
    nothing = np.zeros(len(data), np.int64)
    return Block(Position("o", "m.png", record=7), starts=nothing, ends=nothing, columns={column: data})


def decode(column, data, datatype="FP32", shape=None, **options):
    decoder = ColumnDecoder("m", TensorSpec("x", datatype, shape), column, **options)
    decoded = decoder.decode(block_of(column, data))
    assert decoded.rows is None
    assert decoded.failures == ()
    assert list(decoded.tensors) == ["x"]
    tensor = decoded.tensors["x"]
    assert tensor.flags.c_contiguous
    return tensor


@for_each("shape", [(-1, 3, 6, 8), (-1, 3, -1, -1), (4, 3, 6, 8)])
def test_channels_move_first_for_a_channels_first_model(shape):
    tensor = decode("image", IMAGES, shape=shape)
    assert tensor.shape == (5, 3, 6, 8)
    assert (tensor == IMAGES.transpose(0, 3, 1, 2)).all()


@for_each("shape", [None, (-1, 6, 8, 3), (-1, -1, -1, 3), (-1, -1, -1, -1)])
def test_channels_stay_last_for_other_models(shape):
    assert (decode("image", IMAGES, shape=shape) == IMAGES).all()


def test_image_three_pixels_high_is_not_transposed():
    """The last axis shows that the model takes channels last."""
    data = IMAGES[:, :3]
    assert decode("image", data, shape=(-1, 3, 8, 3)).shape == (5, 3, 8, 3)


def test_grey_images():
    assert decode("image", GREY, shape=(-1, 1, 6, 8)).shape == (5, 1, 6, 8)
    assert decode("image", GREY, shape=(-1, 6, 8, 1)).shape == (5, 6, 8, 1)
    assert (decode("image", GREY, shape=(-1, 6, 8)) == GREY[..., 0]).all()


@for_each(("datatype", "dtype"), [("FP16", np.float16), ("FP32", np.float32), ("FP64", np.float64)])
def test_images_are_scaled_for_models_of_floats(datatype, dtype):
    tensor = decode("image", IMAGES, datatype, scale=1 / 255)
    assert tensor.dtype == dtype
    np.testing.assert_allclose(tensor, IMAGES / 255, rtol=2e-3 if dtype == np.float16 else 1e-6)
    assert tensor.max() <= 1


@for_each(("datatype", "dtype"), [("UINT8", np.uint8), ("INT32", np.int32)])
def test_images_are_unchanged_for_models_of_integers(datatype, dtype):
    tensor = decode("image", IMAGES, datatype, scale=1 / 255)
    assert tensor.dtype == dtype
    assert (tensor == IMAGES).all()


def test_sound_is_neither_scaled_nor_transposed():
    tensor = decode("audio", SOUND, "FP64", shape=(-1, 160), scale=1 / 255)
    assert (tensor == SOUND).all()
    assert (decode("audio", SOUND, shape=(-1, 1, -1)) == SOUND[:, np.newaxis]).all()
    stereo = RNG.uniform(-1, 1, (5, 3, 160, 2)).astype(np.float32)
    assert decode("audio", stereo, shape=(-1, 3, 160, 2)).shape == stereo.shape


@for_each(
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
def test_mismatched_size_raises_with_both_sizes(column, data, shape):
    with pytest.raises(ModelInputError) as caught:
        decode(column, data, shape=shape)
    message = str(caught.value)
    assert f"model m: input 'x' takes {list(shape)}, but the {column} at o!m.png, record 7" in message
    have = data.transpose(0, 3, 1, 2) if shape[1:2] == (3,) else data
    have = data[:, np.newaxis] if shape == (-1, 160, 1) else have
    assert (
        f"is {[-1, *have.shape[1:]]}; set the model's image size (--image-size, --image-mode) or audio window"
        in message
    )


def test_block_without_records_fits_any_size():
    assert decode("image", IMAGES[:0], shape=(-1, 3, 224, 224)).shape == (0, 3, 6, 8)


@for_each("column", ["image", "audio"])
def test_model_of_text_is_rejected(column):
    with pytest.raises(ModelInputError, match=f"takes text or bytes, but the {column} column is numbers"):
        ColumnDecoder("m", TensorSpec("x", "BYTES"), column)


def test_column_is_not_modified():
    """A block may be decoded for several models."""
    before = IMAGES.copy()
    tensor = decode("image", IMAGES, "UINT8", shape=(-1, 3, 6, 8))
    tensor[:] = 0
    assert (before == IMAGES).all()
