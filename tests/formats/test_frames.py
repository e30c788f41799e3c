"""Tests of `FrameCutter`. The file formats are tested in test_tfrecord.py and test_recordio.py."""

import pytest

from cases import for_each
from formats.framed_files import recordio
from headrace.core.block import Position
from headrace.core.errors import ConfigError
from headrace.formats.frames import RECORDS_MAX, FrameCutter, RecordIOFormat, _RecordIOFraming


@for_each("wrong", [{"record_bytes_max": 0}, {"block_bytes_max": 0}])
def test_zero_limits_are_rejected(wrong):
    with pytest.raises(ConfigError, match="must be at least 1"):
        list(RecordIOFormat(**wrong).blocks([], Position()))


def test_records_per_block_are_limited():
    """Many empty records would fit in a block by their bytes."""
    blocks = list(RecordIOFormat().blocks([recordio([b""]) * (RECORDS_MAX + 5)], Position()))
    assert [len(block) for block in blocks] == [RECORDS_MAX, 5]


def test_bytes_per_block_are_limited_unless_one_record_is_longer():
    data = recordio([b"x" * 10] * 5 + [b"y" * 500] + [b"z" * 10] * 2)
    blocks = list(RecordIOFormat(block_bytes_max=50).blocks([data], Position()))
    assert [len(block) for block in blocks] == [2, 2, 1, 1, 2]
    assert all(len(block.data) <= 50 for block in blocks if len(block) > 1)


def test_large_chunk_yields_all_records():
    chunk = memoryview(bytearray(recordio([b"x" * 100] * 10_000)))
    blocks = RecordIOFormat(block_bytes_max=1000).blocks([chunk], Position())
    assert sum(len(block) for block in blocks) == 10_000


class CountingFraming:
    """A framing of RecordIO that counts its scans."""

    format_name, header_bytes, separator = (
        _RecordIOFraming.format_name,
        _RecordIOFraming.header_bytes,
        _RecordIOFraming.separator,
    )

    def __init__(self):
        self.scans = 0

    def scan(self, data, bounds):
        self.scans += 1
        return _RecordIOFraming().scan(data, bounds)

    def parse_header(self, header):
        return _RecordIOFraming().parse_header(header)

    def defect(self, frame):
        return _RecordIOFraming().defect(frame)


def test_long_record_in_small_chunks_is_scanned_once_complete():
    """Otherwise each chunk would cost a copy of all bytes before it."""
    framing, data = CountingFraming(), recordio([b"x" * 1_000_000, b"y"])
    chunks = [data[i : i + 100] for i in range(0, len(data), 100)]
    cutter = FrameCutter(framing, Position(), record_bytes_max=1 << 20, block_bytes_max=1 << 20)
    blocks = [block for chunk in chunks for block in cutter.feed(chunk)]
    cutter.finish()
    assert sum(len(block) for block in blocks) == 2
    assert framing.scans < 10
