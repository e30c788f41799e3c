"""Which modes and sizes of pictures can be."""

import pytest

from headrace.core.errors import ConfigError
from headrace.formats.pixels import check_pixels


@pytest.mark.parametrize(("mode", "size_px"), [("RGB", None), ("L", (1, 1)), ("RGB", (4, 25))])
def test_what_can_be(mode, size_px):
    check_pixels(mode, size_px, 100)


@pytest.mark.parametrize(
    ("mode", "size_px", "why"),
    [
        ("CMYK", None, "image mode 'CMYK': choose RGB or L"),
        ("RGB", (0, 5), r"size_px \(0, 5\)"),
        ("L", (-4, -5), "must be positive"),
        ("L", (4, 26), "product at most 100"),
    ],
)
def test_what_cannot_be(mode, size_px, why):
    with pytest.raises(ConfigError, match=why):
        check_pixels(mode, size_px, 100)
