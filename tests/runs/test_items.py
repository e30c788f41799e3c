import numpy as np

from cases import for_each
from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.formats.contract import BlockSelection, DecodedBlock
from headrace.runs.items import BlockEntries, Cursor, ReadBlock, ScoredBatch, ScoredSpan, selected_rows

FIRST = Position("memory://b/a.tar", "m.csv", record=10, line=11, byte=40, member_byte=512)


def block_of(records: int, failures: int = 0) -> Block:
    """Return records of one digit from number 10 on, then failures of the block."""
    starts = np.arange(records, dtype=np.int64) * 2
    block = Block(FIRST, b"0\n1\n2\n3\n4\n5\n"[: 2 * records], starts, starts + 1)
    positions = (Position("memory://b/a.tar", "m.csv", record=10 + records + i) for i in range(failures))
    own = tuple(
        block_failure for p in positions for block_failure in [_failure(p, FailureKind.FORMAT, "too long")]
    )
    return Block(FIRST, block.data, block.starts, block.ends, failures=own)


def _failure(position, kind, why):
    from headrace.core.block import Failure

    return Failure(position, kind, why)


def fed(
    records: int = 5, *, bad: tuple[int, ...] = (), failures: int = 0, last: bool = False
) -> BlockEntries:
    block = block_of(records, failures)
    good = [i for i in range(records) if i not in bad]
    decoded = DecodedBlock(
        {"x": np.array(good, np.float32)},
        np.array(good) if bad else None,
        tuple(block.failure(i, FailureKind.DECODE, "bad") for i in bad),
    )
    return BlockEntries(ReadBlock(block, 3, last=last), decoded)


@for_each("cut", range(8))
def test_spans_of_a_split_block_cover_every_entry_once(cut):
    whole = fed(5, bad=(1, 3), failures=2)
    parts = [whole.span(0, cut), whole.span(cut, 7)]
    rows = [int(r) for s in parts for r in selected_rows(s.selection)]
    assert rows == [0, 2, 4]
    assert [float(v) for s in parts for v in s.tensors["x"]] == [0, 2, 4]
    assert [f.position.record for s in parts for f in s.failures] == [11, 13, 15, 16]
    assert [len(selected_rows(s.selection)) + len(s.failures) for s in parts] == [cut, 7 - cut]


def test_cursor_in_a_block_names_the_next_record():
    cursor = fed(5).cursor_after(2)
    assert (cursor.index, cursor.position.record, cursor.position.member_byte) == (3, 12, 512)


def test_cursor_after_a_block_has_line_and_byte():
    position = fed(5).cursor_after(5).position
    assert (position.record, position.line, position.byte) == (15, 16, 50)


def test_cursor_after_the_last_block_is_the_next_object():
    assert fed(0, failures=1, last=True).cursor_after(1) == Cursor(4)
    assert fed(1, failures=1, last=True).cursor_after(1).index == 3


def test_cursor_round_trips_through_json():
    for cursor in (Cursor(), Cursor(3), fed(5).cursor_after(5)):
        assert Cursor.from_json(cursor.to_json()) == cursor


def test_outcomes_are_one_per_record_in_source_order():
    whole = fed(5, bad=(1, 3), failures=1)
    span = whole.span(0, 6)
    batch = ScoredBatch(
        (ScoredSpan(span.selection, span.failures),), {"y": span.tensors["x"] * 2}, 6, whole.cursor_after(6)
    )
    outcomes = batch.outcomes()
    assert [o.position.record for o in outcomes] == [10, 11, 12, 13, 14, 15]
    assert [o.outputs["y"] if o.ok else o.why for o in outcomes] == [0, "bad", 4, "bad", 8, "too long"]
    assert [o.record for o in outcomes if o.ok] == [b"0", b"2", b"4"]
    assert (batch.rows, len(batch.failures), batch.broken) == (3, 3, 0)


def test_batch_may_span_blocks():
    one, two = fed(2).span(1, 2), fed(3, bad=(0,)).span(0, 2)
    batch = ScoredBatch(
        tuple(ScoredSpan(s.selection, s.failures) for s in (one, two)),
        {"y": np.array([7.0, 8.0])},
        3,
        Cursor(),
    )
    assert [o.outputs["y"] if o.ok else o.why for o in batch.outcomes()] == [7.0, "bad", 8.0]


def test_selected_rows_are_all_or_the_named_ones():
    block = block_of(5)
    assert selected_rows(BlockSelection(block, 1, 4)).tolist() == [1, 2, 3]
    assert selected_rows(BlockSelection(block, 1, 4, np.array([3]))).tolist() == [3]


def test_failures_of_a_span_are_found_by_bisection():
    """A block may have tens of thousands of failures, and each batch takes a part of them."""
    looked: list[int] = []

    class Counted(tuple):
        __slots__ = ()

        def __getitem__(self, index):
            if isinstance(index, int):
                looked.append(index)
            return super().__getitem__(index)

    failures = tuple(Failure(Position("o", record=n), FailureKind.DECODE, "no") for n in range(1000))
    block = Block(Position("o"), b"", np.zeros(1000, np.int64), np.zeros(1000, np.int64))
    fed = BlockEntries(ReadBlock(block, 0), DecodedBlock({}, np.empty(0, np.int64), failures))
    object.__setattr__(fed, "failures", Counted(fed.failures))
    span = fed.span(300, 310)
    assert [f.position.record for f in span.failures] == list(range(300, 310))
    assert len(looked) < 50
