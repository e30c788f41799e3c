"""Decoded columns (images, frames, audio windows) as a model's input: axes, type and scale.

The blocks come from formats that decode media already. The result is one tensor in the layout of
the model.
"""

from typing import Any

import numpy as np
from typing_extensions import override

from headrace.core.block import Block
from headrace.core.errors import ModelInputError
from headrace.core.tensor import Array, TensorSpec, dtype_of
from headrace.formats.contract import DecodedBlock, Decoder


class ColumnDecoder(Decoder):
    """A decoder of column `column` into the input `spec`.

    Images are [n, H, W, C] uint8. They become [n, C, H, W] if the model's second axis is 1 or 3 and
    its last axis is not. They are multiplied by `scale` if the model takes floats, and are cast.
    For a model with three axes, grey images [n, H, W, 1] become [n, H, W], and mono sound [n,
    samples] becomes [n, 1, samples].

    All images of a stream have one size. So an image of another size than the model's is a
    ModelInputError with both sizes. An input that takes text is a ModelInputError too.
    """

    def __init__(self, model: str, spec: TensorSpec, column: str, *, scale: float = 1.0) -> None:
        self._model = model
        self._spec = spec
        self._column = column
        self._dtype = dtype_of(spec.datatype)
        if self._dtype.kind == "O":
            raise ModelInputError(
                model,
                f"input {spec.name!r} takes text or bytes, but the {column} column is numbers: to pass "
                "the encoded files unchanged, choose --format whole (in a transform: --split none)",
            )
        self._scale = scale if column == "image" and self._dtype.kind == "f" else 1.0
        self._is_image = column == "image"
        self._channels_first = self._is_image and _is_channels_first(spec.shape)

    @override
    def decode(self, block: Block) -> DecodedBlock:
        data = self._arrange_axes(block.columns[self._column])
        self._check_shape(data, block)
        if self._scale != 1.0:
            data = data * np.asarray(self._scale, self._dtype)
        return DecodedBlock({self._spec.name: np.ascontiguousarray(data, self._dtype)})

    def _arrange_axes(self, data: Array) -> Array:
        """Return the data with the channel axis in the model's place, without a copy."""
        axes = 0 if self._spec.shape is None else len(self._spec.shape)
        if self._channels_first:
            return np.moveaxis(data, -1, 1)
        if self._is_image and axes == 3 and data.shape[-1] == 1:
            return data[..., 0]
        if not self._is_image and axes == 3 and data.ndim == 2:
            return data[:, np.newaxis]
        return data

    def _check_shape(self, data: Array, block: Block) -> None:
        shape = self._spec.shape
        if not len(block) or shape is None or _shape_fits(data.shape[1:], shape[1:]):
            return
        raise ModelInputError(
            self._model,
            f"input {self._spec.name!r} takes {list(shape)}, but the {self._column} at {block.first} is "
            f"{[-1, *data.shape[1:]]}; set the model's image size (--image-size, --image-mode) "
            "or audio window (--window-ms, --sample-rate-hz, --audio-channels)",
        )


def _is_channels_first(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and len(shape) == 4 and shape[1] in (1, 3) and shape[3] not in (1, 3)


def _shape_fits(actual: tuple[Any, ...], expected: tuple[int, ...]) -> bool:
    return len(actual) == len(expected) and all(
        expected_size in (-1, actual_size)
        for actual_size, expected_size in zip(actual, expected, strict=True)
    )
