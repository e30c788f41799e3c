"""Checks of the modes and sizes of images and video frames."""

import math
from typing import Literal, get_args

from headrace.core.errors import ConfigError

ImageMode = Literal["RGB", "L"]
"""Channels of an image: three (RGB) or one (L, grey)."""


def check_pixels(mode: str, size_px: tuple[int, int] | None, pixels_max: int) -> None:
    """Raise ConfigError for an unknown mode or an invalid (height, width)."""
    if mode not in get_args(ImageMode):
        raise ConfigError(f"image mode {mode!r}: choose {' or '.join(get_args(ImageMode))}")
    if size_px is not None and (min(size_px) < 1 or math.prod(size_px) > pixels_max):
        raise ConfigError(
            f"size_px {size_px}: (height, width) must be positive, and their product at most {pixels_max}"
        )
