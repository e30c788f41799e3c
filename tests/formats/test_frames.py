"""The cutter itself; what it makes of files is in test_tfrecord.py and test_recordio.py."""

import pytest

from formats.framed_files import recordio
from headrace.core.block import Position
from headrace.core.errors import ConfigError
from headrace.formats.frames import RECORDS_MAX, cut_frames
from headrace.formats.recordio import RecordIOFormat, _Framing


@pytest.mark.parametrize("wrong", [{"record_bytes_max": 0}, {"block_bytes_max": 0}])
def test_bounds_of_nothing_are_refused(wrong):
    with pytest.raises(ConfigError, match="must be at least 1"):
        list(RecordIOFormat(**wrong).blocks([], Position()))


def test_a_block_has_so_many_records_at_most():
    """Of empty ones, many would fit."""
    blocks = list(RecordIOFormat().blocks([recordio([b""]) * (RECORDS_MAX + 5)], Position()))
    assert [len(block) for block in blocks] == [RECORDS_MAX, 5]


def test_a_block_holds_so_many_bytes_at_most_unless_it_is_one_record():
    data = recordio([b"x" * 10] * 5 + [b"y" * 500] + [b"z" * 10] * 2)
    blocks = list(RecordIOFormat(block_bytes_max=50).blocks([data], Position()))
    assert [len(block) for block in blocks] == [2, 2, 1, 1, 2]
    assert all(len(block.data) <= 50 for block in blocks if len(block) > 1)


def test_no_more_is_held_than_a_record_and_a_block():
    """Of a chunk however large."""
    chunk = memoryview(bytearray(recordio([b"x" * 100] * 10_000)))
    blocks = RecordIOFormat(block_bytes_max=1000).blocks([chunk], Position())
    assert sum(len(block) for block in blocks) == 10_000


class Counting:
    """RecordIO's frames, counting how often they are looked at."""

    what, header_bytes, joint = _Framing.what, _Framing.header_bytes, _Framing.joint

    def __init__(self):
        self.looks = 0

    def scan(self, data, bounds):
        self.looks += 1
        return _Framing().scan(data, bounds)

    def head(self, header):
        return _Framing().head(header)

    def flaw(self, frame):
        return _Framing().flaw(frame)


def test_a_long_record_in_small_chunks_is_looked_at_when_all_of_it_is_there():
    """Else each chunk would cost a copy of all that came before."""
    framing, data = Counting(), recordio([b"x" * 1_000_000, b"y"])
    chunks = [data[i : i + 100] for i in range(0, len(data), 100)]
    blocks = cut_frames(chunks, Position(), framing, record_bytes_max=1 << 20, block_bytes_max=1 << 20)
    assert sum(len(block) for block in blocks) == 2
    assert framing.looks < 10
