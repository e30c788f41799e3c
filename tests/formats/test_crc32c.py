"""The checksum, against values that its standard gives (RFC 3720, B.4)."""

import importlib
import sys

import pytest

from headrace.core.errors import MissingExtraError
from headrace.formats.crc32c import crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_known_values(data, expected):
    assert crc32c(data) == expected


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    monkeypatch.delitem(sys.modules, "headrace.formats.crc32c")
    with pytest.raises(MissingExtraError, match=r"headrace\[tfrecord\]"):
        importlib.import_module("headrace.formats.crc32c")
