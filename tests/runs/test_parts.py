import tracemalloc

import numpy as np
import pytest

from cases import for_each
from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import UnavailableError
from headrace.core.tensor import TensorSpec
from headrace.formats.contract import BlockSelection
from headrace.formats.csv_encode import CsvEncoder
from headrace.runs.items import Cursor, ScoredBatch, ScoredSpan
from headrace.runs.part_ledger import Ledger
from headrace.runs.parts import Sink
from headrace.runs.settings import OutputSettings
from headrace.storage.memory import MemoryStore
from headrace.testing import ManualClock

OUT = "memory://out/"


class Destination:
    """A destination, and sinks that write to it."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.ledger = Ledger(self.store, OUT)
        self.clock = ManualClock()
        self.ledger.begin({}, [])

    def sink(self, *, header=False, **output) -> Sink:
        settings = OutputSettings(**{"part_bytes_max": 12, "checkpoint_s": 1e9, **output})
        return Sink(
            self.store,
            OUT,
            self.ledger,
            lambda outputs, block: CsvEncoder([TensorSpec("y", "FP32", (-1,))], header=header),
            settings,
            state=self.ledger.state(),
            clock=self.clock,
        )

    def parts(self) -> dict[str, bytes]:
        return {i.uri.removeprefix(OUT): self.store.get(i.uri) for i in self.store.list(OUT + "part-")}

    def records(self) -> list[str]:
        return [i.uri.rpartition("/")[2] for i in self.store.list(OUT + "_headrace/part-")]


@pytest.fixture
def place() -> Destination:
    return Destination()


def batch(number: int, rows: int = 2, failed: int = 0) -> ScoredBatch:
    """Return batch `number` of two entries; its cursor identifies it."""
    at = Position("memory://in/a.csv", record=number * 2)
    starts = np.arange(rows, dtype=np.int64)
    failures = tuple(Failure(at, FailureKind.MODEL, "no", b"raw") for _ in range(failed))
    span = ScoredSpan(BlockSelection(Block(at, b"x" * rows, starts, starts + 1), 0, rows), failures)
    end = Cursor(0, Position("memory://in/a.csv", record=number * 2 + rows + failed))
    return ScoredBatch((span,), {"y": np.full(rows, number, np.float32)} if rows else {}, rows + failed, end)


def test_part_ends_with_the_batch_that_fills_it(place):
    sink = place.sink()
    for number in range(5):
        sink.write(batch(number))
    sink.finish(end=True)
    assert place.parts() == {
        "part-00000.csv": b"0.0\n0.0\n1.0\n1.0\n",
        "part-00001.csv": b"2.0\n2.0\n3.0\n3.0\n",
        "part-00002.csv": b"4.0\n4.0\n",
    }
    assert (sink.parts, sink.committed.records_in) == (3, 10)
    assert place.ledger.count(place.ledger.state()) == sink.committed


def test_part_ends_at_its_row_limit(place):
    sink = place.sink(part_rows_max=2)
    for number in range(2):
        sink.write(batch(number))
    sink.finish(end=True)
    assert len(place.parts()) == 2


def test_failed_records_take_no_more_memory_than_their_lines(place):
    """orjson allocates 4 KiB for each line."""
    sink = place.sink(part_bytes_max=1 << 20)
    many = batch(0, rows=0, failed=1000)
    sink.write(many)
    tracemalloc.start()
    try:
        sink.write(many)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
        sink.abort()


def test_failures_are_written_with_their_part_or_alone(place):
    sink = place.sink()
    sink.write(batch(0, rows=0, failed=2))
    sink.write(batch(1, rows=1, failed=1))
    sink.finish(end=True)
    parts = place.parts()
    assert list(parts) == ["part-00000.failed.jsonl", "part-00001.csv", "part-00001.failed.jsonl"]
    assert parts["part-00000.failed.jsonl"].count(b"\n") == 2


@for_each("header", [False, True])
@for_each("stop_after", range(1, 5))
def test_sink_continues_from_a_checkpoint(stop_after, header):
    """The first sink is abandoned, as after a kill."""
    place = Destination()
    undisturbed = Destination()
    sink = undisturbed.sink(part_bytes_max=25, header=header)
    for number in range(6):
        sink.write(batch(number, rows=1, failed=number % 2))
    sink.finish(end=True)

    first = place.sink(part_bytes_max=25, header=header, checkpoint_s=0)
    for number in range(stop_after):
        first.write(batch(number, rows=1, failed=number % 2))
    first.finish(end=False)
    second = place.sink(part_bytes_max=25, header=header)
    assert second.cursor == batch(stop_after - 1, rows=1, failed=(stop_after - 1) % 2).end
    for number in range(stop_after, 6):
        second.write(batch(number, rows=1, failed=number % 2))
    second.finish(end=True)
    assert place.parts() == undisturbed.parts()
    assert not [r for r in place.records() if "checkpoint" in r]


def test_checkpoints_follow_the_clock(place):
    sink = place.sink(part_bytes_max=10_000, checkpoint_s=5)
    for number, seconds in enumerate((0, 4.9, 0.1, 0, 5)):
        place.clock.advance(seconds)
        sink.write(batch(number))
    sink.abort()
    assert [r for r in place.records() if r.endswith(".json")] == [
        "part-00000.checkpoint-0001.json",
        "part-00000.checkpoint-0002.json",
    ]


def test_checkpoint_without_news_writes_nothing(place):
    sink = place.sink()
    sink.checkpoint()
    sink.write(batch(0, rows=1))
    sink.checkpoint()
    before = place.records()
    sink.checkpoint()
    sink.abort()
    assert place.records() == before != []


def test_publishing_error_is_raised_and_the_part_not_committed():
    class Broken(MemoryStore):
        def writer(self, uri):
            raise UnavailableError(uri, "no room")

    place = Destination(Broken())
    sink = place.sink()
    sink.write(batch(0, rows=5))
    with pytest.raises(UnavailableError, match=r"part-00000.csv: no room"):
        sink.finish(end=True)
    sink.abort()
    assert place.ledger.state().last is None


def test_end_without_rows_publishes_nothing(place):
    sink = place.sink()
    sink.finish(end=True)
    assert place.parts() == {}


def test_resume_replaces_an_uncommitted_part(place):
    """With batches that close by delay, the new part may have other records."""
    for name in ("part-00000.csv", "part-00000.failed.jsonl", "part-00001.csv"):
        place.store.put(OUT + name, b"left behind")
    sink = place.sink()
    sink.write(batch(0, rows=0, failed=1))
    sink.end_part()
    sink.write(batch(1, rows=0, failed=1))
    sink.finish(end=True)
    assert sorted(place.parts()) == ["part-00000.failed.jsonl", "part-00001.csv", "part-00001.failed.jsonl"]
