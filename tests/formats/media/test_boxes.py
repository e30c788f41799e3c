"""Tests of the structure scanners: every cut inside a part is detected, for any read size."""

import struct

import pytest

from cases import for_each
from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.media.video import HELD_BYTES_MAX, MatroskaElements, Mp4Boxes


def box(name, body=b"", size=None):
    return struct.pack(">I4s", 8 + len(body) if size is None else size, name) + body


def long_box(name, body):
    return struct.pack(">I4sQ", 1, name, 16 + len(body)) + body


MP4 = box(b"ftyp", b"isom") + box(b"free") + box(b"moov", b"x" * 9) + long_box(b"mdat", b"y" * 20)
EBML = b"\x1a\x45\xdf\xa3\x83abc"


def element(name, body):
    return name + bytes([0x80 | len(body)]) + body


CLUSTER = element(b"\x1f\x43\xb6\x75", element(b"\xe7", b"\0") + element(b"\xa3", b"block"))
MKV = EBML + element(b"\x18\x53\x80\x67", element(b"\x15\x49\xa9\x66", b"info") + CLUSTER + CLUSTER)
UNKNOWN_SIZE = (
    EBML + b"\x18\x53\x80\x67\x01" + b"\xff" * 7 + b"\x1f\x43\xb6\x75\xff" + element(b"\xa3", b"block")
)


def scan(scanner, data, size):
    for at in range(0, len(data), size):
        scanner.feed(data[at : at + size])
    scanner.check_end()


# Number of bytes after which no more bytes are required: the index, or a cluster of unknown size,
# is complete.
CLEAN_CUTS = {MP4: {37}, MKV: set(), UNKNOWN_SIZE: {25}}


@for_each("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("scanner", "data"),
    [(Mp4Boxes, MP4), (MatroskaElements, MKV), (MatroskaElements, UNKNOWN_SIZE)],
    ids=["mp4", "matroska", "endless"],
)
def test_only_complete_files_pass(scanner, data, size):
    scan(scanner(), data, size)
    for cut in set(range(len(data))) - CLEAN_CUTS[data]:
        with pytest.raises(TruncatedError) as caught:
            scan(scanner(100), data[:cut], size)
        assert caught.value.byte == 100 + cut


def test_fragments_and_an_open_ended_box_pass():
    scan(Mp4Boxes(), box(b"ftyp") + box(b"moov") + box(b"moof") + box(b"mdat", b"yy"), 5)
    scan(Mp4Boxes(), box(b"moov") + box(b"mdat", b"y" * 50, size=0), 5)


@for_each(
    ("scanner", "data", "byte", "why"),
    [
        (Mp4Boxes, box(b"ftyp", b"isom") + box(b"mdat", b"", size=5000), 12, "movflags"),
        (Mp4Boxes, MP4 + box(b"\0\0\0\0"), len(MP4), "not an MP4 box"),
        (Mp4Boxes, box(b"ftyp") + box(b"free", size=3), 8, "not an MP4 box"),
        (Mp4Boxes, box(b"moov", size=HELD_BYTES_MAX + 1), 0, "more than"),
        (MatroskaElements, MKV + b"\0\0", len(MKV), "does not start a Matroska element"),
        (MatroskaElements, EBML + b"\xa3\0", len(EBML), "no valid size"),
        (MatroskaElements, EBML + b"\xa3\x08" + b"\xff" * 5, len(EBML), "claims"),
    ],
)
@for_each("size", [1, 1000])
def test_invalid_header_is_rejected_at_its_offset(scanner, data, byte, why, size):
    with pytest.raises(CorruptError, match=why) as caught:
        scan(scanner(), data, size)
    assert caught.value.byte == byte
