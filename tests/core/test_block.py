from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from formats.framed_files import recordio
from headrace.core import Block, Failure, FailureKind, Position
from headrace.core.block import RAW_BYTES_KEPT_MAX
from headrace.formats.read import make_format, position_after
from headrace.formats.read_options import ReadOptions


def block_of(*records: bytes, first: Position | None = None) -> Block:
    data = b"".join(r + b"\n" for r in records)
    ends = np.cumsum([len(r) + 1 for r in records]) - 1
    starts = np.concatenate([[0], ends[:-1] + 1])
    return Block(first or Position("s3://b/k"), data, starts.astype(np.int64), ends.astype(np.int64))


def test_record_excludes_its_terminator():
    block = block_of(b"a,1", b"", b"c,3")
    assert [block.record(i) for i in range(len(block))] == [b"a,1", b"", b"c,3"]


def test_position_counts_newlines_inside_records():
    block = block_of(
        b'"a\nb",1', b"c,2", first=Position("o", "m", record=5, line=7, byte=100, member_byte=512)
    )
    position = block.position(1)
    assert (position.record, position.line, position.byte) == (6, 9, 108)
    assert (position.object, position.member, position.member_byte) == ("o", "m", 512)


def test_position_is_relative_to_the_first_record():
    whole = block_of(b"aa", b"bb", b"cc")
    later = Block(Position("o", record=1, line=2, byte=3), whole.data, whole.starts[1:], whole.ends[1:])
    assert later.position(1).byte == 6
    assert later.position(1).line == 3


def test_failure_keeps_a_bounded_part_of_its_record():
    failure = block_of(b"x" * (RAW_BYTES_KEPT_MAX + 1)).failure(0, FailureKind.DECODE, "too long")
    assert len(failure.raw) == RAW_BYTES_KEPT_MAX
    assert not failure.ok


def test_records_include_failures():
    block = block_of(b"a")
    failing = Block(
        block.first,
        block.data,
        block.starts,
        block.ends,
        failures=(block.failure(0, FailureKind.MODEL, "no"),),
    )
    assert (len(failing), failing.records) == (1, 2)


def test_position_as_text():
    assert str(Position("s3://b/k.tar", "m.csv", 3, 4, 50)) == "s3://b/k.tar!m.csv, record 3, line 4, byte 50"


def test_positions_scan_the_block_once():
    """A block with many failures must not take quadratic time."""

    class CountingBytes(bytes):
        scans = 0

        def count(self, *arguments):
            CountingBytes.scans += 1
            return super().count(*arguments)

    plain = block_of(*(b'"a\nb",%d' % i for i in range(100)))
    block = replace(plain, data=CountingBytes(plain.data))
    assert [block.position(i).line for i in range(100)] == [1 + 2 * i for i in range(100)]
    assert CountingBytes.scans <= 1


def test_framed_record_position_is_its_header():
    data = b"HHone\n\n.HHtwo."
    block = Block(
        Position("o", record=4, byte=100), data, np.array([2, 10]), np.array([7, 13]), header_bytes=2
    )
    assert [block.record(i) for i in range(2)] == [b"one\n\n", b"two"]
    assert block.position(1) == Position("o", record=5, line=1, byte=108)


def cut(data: bytes, kind: str) -> list[Block]:
    return list(make_format(f"a.{kind}", kind, ReadOptions()).blocks([data], Position("o", line=3, byte=7)))


TEXTS = {
    "csv": b'1,2\n"a\nb",3\n\n4,5\r\n6,7\n8',
    "jsonl": b'{"a": 1}\r\n{"a": 2}\r\n{"a": 3}\r\n',
    "line": b"\xc3\xa4\n\nb\n" + b"c" * 50,
    "json": b' \n{"a":\n1}\n',
    "recordio": recordio([b"ab", b"", b"cdefg", b"h"]),
}


@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 31))
def test_taken_records_keep_their_bytes_and_positions(kind, chosen):
    for block in cut(TEXTS[kind], kind):
        check_taken(block, chosen)


def check_taken(block: Block, chosen: int) -> None:
    rows = np.flatnonzero([chosen >> index & 1 for index in range(len(block))])
    taken = block.take(rows)
    assert taken.texts() == [block.record(row) for row in rows]
    assert [taken.position(i) for i in range(len(taken))] == [block.position(row) for row in rows]
    assert [taken.number(i) for i in range(len(taken))] == [block.number(row) for row in rows]
    assert [taken.index_of(block.number(row)) for row in rows] == list(range(len(rows)))
    assert len(taken.data) <= len(block.data)
    again = taken.take(np.arange(len(taken))[::2])
    assert [again.position(i) for i in range(len(again))] == [block.position(row) for row in rows[::2]]
    if len(rows):
        assert taken.first == taken.position(0)
        # The next record of the source begins after the last one, as in the whole block.
        through_last = block.slice(0, int(rows[-1]) + 1)
        after, expected = position_after(taken), position_after(through_last)
        assert (after.record, after.line) == (expected.record, expected.line)


def test_taken_rows_of_columns_and_failures():
    failure = Failure(Position("o", record=9), FailureKind.FORMAT, "no")
    columns = {"image": np.arange(12).reshape(4, 3)}
    zeros = np.zeros(4, np.int64)
    block = Block(Position("o", record=5), starts=zeros, ends=zeros, columns=columns, failures=(failure,))
    taken = block.take(np.array([1, 3]), (failure,))
    assert taken.columns["image"].tolist() == [[3, 4, 5], [9, 10, 11]]
    assert [taken.number(entry) for entry in range(4)] == [6, 8, 9, 10]
    assert taken.position(1) == Position("o", record=8)
    alone = block.take(np.array([], np.int64), (failure,))
    assert (alone.records, alone.first, alone.number(1)) == (1, failure.position, 10)
    empty = block.take(np.array([], np.int64))
    assert (empty.records, empty.first, empty.number(0)) == (0, block.first, 5)
