"""What images and frames of video have in common: which channels they get, and which size."""

import math
from typing import Literal, get_args

from headrace.core.errors import ConfigError

ImageMode = Literal["RGB", "L"]
"""Three channels, or one of grey."""


def check_pixels(mode: str, size_px: tuple[int, int] | None, pixels_max: int) -> None:
    """Raises ConfigError for what is no mode, and for a (height, width) that cannot be."""
    if mode not in get_args(ImageMode):
        raise ConfigError(f"image mode {mode!r}: choose {' or '.join(get_args(ImageMode))}")
    if size_px is not None and (min(size_px) < 1 or math.prod(size_px) > pixels_max):
        raise ConfigError(
            f"size_px {size_px}: (height, width) must be positive, and their product at most {pixels_max}"
        )
