import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.dynamic import CloseReason
from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import LimitError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.read_options import ReadOptions
from headrace.runs.feed import Feed
from headrace.runs.items import Cursor, ReadBlock, Replay
from headrace.runs.mapping import Mapper
from headrace.runs.sequences import Sequencer
from headrace.runs.settings import FlowSettings, MappingOptions

METADATA = ModelMetadata("m", inputs=(TensorSpec("x", "FP32", (-1, 1)),), max_batch_rows=4)


def feed_with(**settings) -> Feed:
    mapper = Mapper(METADATA, MappingOptions(), ReadOptions())
    return Feed(mapper, METADATA, FlowSettings(**settings))


def read_block(start: int, records: list[bytes], failures: int = 0) -> ReadBlock:
    ends = np.cumsum([len(r) + 1 for r in records], dtype=np.int64) - 1
    starts = np.array([e - len(r) for e, r in zip(ends, records, strict=True)], np.int64)
    failed = tuple(
        Failure(
            Position("memory://b/a.csv", record=start + len(records) + i), FailureKind.FORMAT, "no", b"raw"
        )
        for i in range(failures)
    )
    first = Position("memory://b/a.csv", record=start)
    return ReadBlock(Block(first, b"".join(r + b"\n" for r in records), starts, ends, failures=failed), 0)


def numbers(batch) -> list[float]:
    return [] if batch.request is None else batch.request.inputs[0].data[:, 0].tolist()


def test_batch_closes_at_the_models_rows_by_default():
    batches = feed_with().add(read_block(0, [b"1"] * 9), now=0.0)
    assert [(b.number, b.entries, b.reason) for b in batches] == [
        (0, 4, CloseReason.ROWS),
        (1, 4, CloseReason.ROWS),
    ]
    assert [b.entries for b in feed_with(batch_rows_max=3).add(read_block(0, [b"1"] * 9), 0.0)] == [3, 3, 3]


def test_batch_closes_at_bytes():
    (batch,) = feed_with(batch_bytes_max=30, batch_rows_max=100).add(read_block(0, [b"1" * 10] * 4), 0.0)
    assert (batch.entries, batch.reason) == (3, CloseReason.BYTES)


def test_batch_closes_after_its_delay():
    feed = feed_with(batch_delay_ms=50)
    assert feed.add(read_block(0, [b"1"]), now=10.0) == []
    feed.add(read_block(1, [b"2"]), now=10.04)
    assert feed.due() == pytest.approx(10.05)
    assert feed.poll(10.049) is None
    batch = feed.poll(10.051)
    assert (numbers(batch), batch.reason) == ([1, 2], CloseReason.DELAY)
    assert feed.due() is None


def test_without_delay_nothing_is_due():
    feed = feed_with()
    feed.add(read_block(0, [b"1"]), now=0.0)
    assert feed.due() is None
    assert feed.poll(1e9) is None


def test_undecodable_records_are_entries_without_rows():
    feed = feed_with(batch_rows_max=3)
    mixed, failed = feed.add(read_block(0, [b"1", b"x", b"2"], failures=3), 0.0)
    assert (numbers(mixed), mixed.entries, failed.entries, failed.request) == ([1, 2], 3, 3, None)
    assert [f.position.record for s in failed.spans for f in s.failures] == [3, 4, 5]


def test_cursor_of_a_batch_is_the_start_of_the_next():
    first, second = feed_with(batch_rows_max=2).add(read_block(5, [b"1"] * 5), 0.0)
    assert (first.end.position.record, second.end.position.record) == (7, 9)


@given(
    blocks=st.lists(st.tuples(st.lists(st.sampled_from([b"1", b"x", b"7"]), max_size=9), st.integers(0, 3))),
    rows=st.integers(1, 7),
)
def test_every_entry_is_in_exactly_one_batch_in_order(blocks, rows):
    feed = feed_with(batch_rows_max=rows)
    batches, start, expected = [], 0, 0
    for records, failures in blocks:
        block = read_block(start, records, failures)
        batches += feed.add(block, 0.0) if block.block.records else []
        start += len(records) + failures
        expected += sum(r != b"x" for r in records)
    rest = feed.flush(0.0)
    batches += [rest] if rest else []
    assert [b.number for b in batches] == list(range(len(batches)))
    assert all(b.entries == rows for b in batches[:-1])
    seen = [
        record
        for b in batches
        for s in b.spans
        for record in sorted(
            [s.selection.block.first.record + int(i) for i in _rows(s.selection)]
            + [f.position.record for f in s.failures]
        )
    ]
    assert seen == list(range(start))
    assert sum(len(numbers(b)) for b in batches) == expected


def _rows(selection):
    from headrace.runs.items import selected_rows

    return selected_rows(selection)


def test_images_of_different_sizes_raise_with_advice():
    def images(height: int) -> ReadBlock:
        pixels = np.zeros((1, height, 2, 3), np.uint8)
        at = np.zeros(1, np.int64)
        return ReadBlock(Block(Position(f"memory://b/{height}.png"), b"", at, at, {"image": pixels}), 0)

    metadata = ModelMetadata("m", max_batch_rows=2)
    feed = Feed(Mapper(metadata, MappingOptions(), ReadOptions()), metadata, FlowSettings())
    assert feed.add(images(5), 0.0) == []
    with pytest.raises(ModelInputError, match=r"different shapes, \[5, 2, 3\] and \[6, 2, 3\].*--image-size"):
        feed.add(images(6), 0.0)


def test_batch_error_is_raised_after_earlier_batches():
    metadata = ModelMetadata(
        "m", inputs=METADATA.inputs, max_batch_rows=1, is_stateful=True, sequences_live_max=1
    )
    mapping = MappingOptions(sequence=0)
    settings = FlowSettings()
    feed = Feed(
        Mapper(metadata, mapping, ReadOptions()), metadata, settings, Sequencer(metadata, mapping, settings)
    )
    (good,) = feed.add(read_block(0, [b"a,1", b"b,2"]), 0.0)
    assert numbers(good) == [1]
    for call in (feed.flush, feed.poll, lambda now: feed.add(read_block(2, [b"a,1"]), now)):
        with pytest.raises(LimitError):
            call(0.0)


def test_batch_has_its_start_for_a_replay():
    mapping = MappingOptions(sequence=0)
    metadata = ModelMetadata("m", inputs=METADATA.inputs, max_batch_rows=2, is_stateful=True)
    sequencer = Sequencer(metadata, mapping, FlowSettings())
    start = Cursor(0, Position("memory://b/a.csv", record=7))
    feed = Feed(Mapper(metadata, mapping, ReadOptions()), metadata, FlowSettings(), sequencer, start=start)
    one, two = feed.add(read_block(7, [b"a,1", b"b,2", b"a,3", b"a,4"]), 0.0)
    assert (one.replay, two.replay) == (Replay(start, 2), Replay(start, 4))
    assert two.request["sequence_start"].tolist() == [False, False]
