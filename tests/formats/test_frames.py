"""The cutter itself; what it makes of files is in test_tfrecord.py and test_recordio.py."""

import pytest

from formats.framed_files import recordio
from headrace.core.block import Position
from headrace.core.errors import ConfigError
from headrace.formats.frames import RECORDS_MAX
from headrace.formats.recordio import RecordIOFormat


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
