"""Decoded columns (images, frames, audio windows) to a model's input: axes, type and scale.

Arrives: blocks whose format decoded already. Leaves: one tensor, in the model's layout.
"""

from typing import Any

import numpy as np

from headrace.core.block import Block
from headrace.core.errors import ModelInputError
from headrace.core.tensor import Array, TensorSpec, dtype_of
from headrace.formats.contract import Decoded


class ColumnDecoder:
    """Feeds column `column` to the input `spec`.

    Images are [n, H, W, C] uint8: they are turned to [n, C, H, W] when the model's second axis is 1 or 3 and its last is
    not, multiplied by `scale` when the model wants floats, and cast. Grey ones, [n, H, W, 1], come as [n, H, W], and
    sound of one channel, [n, samples], as [n, 1, samples], to a model of so many axes. An image whose size does not
    fit is a ModelInputError naming both sizes, since all images of a stream are brought to one size; so is an input
    that takes text.
    """

    def __init__(self, model: str, spec: TensorSpec, column: str, *, scale: float = 1.0) -> None:
        self._model = model
        self._spec = spec
        self._column = column
        self._dtype = dtype_of(spec.datatype)
        if self._dtype.kind == "O":
            raise ModelInputError(
                model,
                f"input {spec.name!r} takes text or bytes, but the {column} column is numbers: for encoded files as "
                "they stand choose --format whole (of a transform: --split none)",
            )
        self._scale = scale if column == "image" and self._dtype.kind == "f" else 1.0
        self._is_image = column == "image"
        self._channels_first = self._is_image and _is_channels_first(spec.shape)

    def decode(self, block: Block) -> Decoded:
        """The block's column as the model's input; every record decodes."""
        data = self._arranged(block.columns[self._column])
        self._check(data, block)
        if self._scale != 1.0:
            data = data * np.asarray(self._scale, self._dtype)
        return Decoded({self._spec.name: np.ascontiguousarray(data, self._dtype)})

    def _arranged(self, data: Array) -> Array:
        """With the axis of channels where the model has it; its data are not copied."""
        axes = 0 if self._spec.shape is None else len(self._spec.shape)
        if self._channels_first:
            return np.moveaxis(data, -1, 1)
        if self._is_image and axes == 3 and data.shape[-1] == 1:
            return data[..., 0]
        if not self._is_image and axes == 3 and data.ndim == 2:
            return data[:, np.newaxis]
        return data

    def _check(self, data: Array, block: Block) -> None:
        shape = self._spec.shape
        if not len(block) or shape is None or _fits(data.shape[1:], shape[1:]):
            return
        raise ModelInputError(
            self._model,
            f"input {self._spec.name!r} takes {list(shape)}, but the {self._column} at {block.first} is "
            f"{[-1, *data.shape[1:]]}; choose the size (--image-size, --image-mode), or the window "
            "(--window-ms, --sample-rate, --audio-channels), that the model takes",
        )


def _is_channels_first(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and len(shape) == 4 and shape[1] in (1, 3) and shape[3] not in (1, 3)


def _fits(have: tuple[Any, ...], want: tuple[int, ...]) -> bool:
    return len(have) == len(want) and all(w in (-1, h) for h, w in zip(have, want, strict=True))
