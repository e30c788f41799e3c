import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from cases import for_each
from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, DataError, TooManyFailuresError, UnavailableError
from headrace.core.tensor import TensorSpec
from headrace.formats.contract import BlockSelection
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.failures import read_failed_records
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.items import Cursor, ScoredBatch, ScoredSpan
from headrace.runs.ledger import Ledger
from headrace.runs.output_settings import TABLES, OutputSettings
from headrace.runs.parts import PART_NAME, PART_SUFFIXES, PartsSink, part_names
from headrace.runs.records import Counts
from headrace.runs.settings import StreamSettings
from headrace.runs.totals import part_totals
from headrace.storage.resolve import MemoryStore
from headrace.testing import ManualClock

OUT = "memory://out/"


class Destination:
    """A destination, and sinks that write to it."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.ledger = Ledger(self.store, OUT)
        self.clock = ManualClock()
        self.ledger.begin({}, "stream")

    def sink(self, *, header=False, on_error="record", encoder=CsvEncoder, **output) -> PartsSink:
        limits = OutputSettings(**{"part_bytes_max": 12, "checkpoint_s": 1e9, **output})
        return PartsSink(
            self.ledger,
            lambda outputs, block: encoder([TensorSpec("y", "FP32", (-1,))], header=header),
            StreamSettings(output=limits, failures=FailurePolicy(on_error=on_error)),
            clock=self.clock,
            state=self.ledger.parts_state(),
        )

    def failed(self, number: int = 0) -> list[tuple[int, int, int]]:
        """Return each failed record of a part: its number, and its row and byte in the output."""
        lines = self.parts()[f"part-{number:05d}.failed.jsonl"].splitlines()
        return [(r.failure.position.record, r.output_row, r.output_byte) for r in read_failed_records(lines)]

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
    assert part_totals(place.ledger.parts(place.ledger.parts_state())).counts == sink.committed


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


def test_failures_have_their_place_in_the_part(place):
    """`retry-failed` inserts the records there."""
    sink = place.sink(part_bytes_max=10_000, header=True)
    for number, (rows, failed) in enumerate([(0, 1), (2, 0), (1, 2), (0, 1)]):
        sink.write(batch(number, rows=rows, failed=failed))
    sink.finish(end=True)
    assert place.parts()["part-00000.csv"] == b"y\n1.0\n1.0\n2.0\n"
    # The batch of one row and two failures has both at its first record.
    assert place.failed() == [(0, 0, 0), (4, 2, 10), (4, 2, 10), (6, 3, 14)]
    (record,) = place.ledger.parts(place.ledger.parts_state())
    assert (record.out_bytes, record.begin_bytes) == (14, 2)
    assert (record.in_part, record.failures) == (Counts(7, 3, 4), {"model: no": 4})


def test_places_begin_anew_with_each_part(place):
    sink = place.sink(part_rows_max=2, part_bytes_max=10_000)
    sink.write(batch(0, rows=2, failed=0))
    sink.write(batch(1, rows=2, failed=1))
    sink.finish(end=True)
    assert place.failed(1) == [(2, 0, 0)]
    assert [p.in_part for p in place.ledger.parts(place.ledger.parts_state())] == [
        Counts(2, 2),
        Counts(3, 2, 1),
    ]


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
    found, expected = (
        [replace(part, attempt="") for part in d.ledger.parts(d.ledger.parts_state())]
        for d in (place, undisturbed)
    )
    assert found == expected


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
    assert place.ledger.parts_state().last is None


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


@for_each("format_", TABLES)
def test_open_part_of_a_table_is_not_stored(place, format_):
    """A table has a footer, so its part is committed whole or not at all."""
    sink = place.sink(part_bytes_max=10_000, format=format_, checkpoint_s=0)
    assert sink.drops_open_part
    sink.write(batch(0))
    sink.checkpoint()
    sink.finish(end=False)
    assert place.records() == []
    assert place.ledger.parts_state().last is None


def test_on_error_job_keeps_the_batches_before_the_failure(place):
    sink = place.sink(part_bytes_max=10_000, on_error="job")
    sink.write(batch(0))
    with pytest.raises(TooManyFailuresError, match=r"a\.csv.*: a record failed, and on_error is job: no"):
        sink.write(batch(1, rows=1, failed=1))
    sink.checkpoint()
    sink.abort()
    state = place.ledger.parts_state()
    assert state.last is not None
    assert (state.last.in_part, state.last.cursor) == (Counts(2, 2), batch(0).end)


class Choosy(CsvEncoder):
    """An encoder that refuses the value 1 as a record's fault, and the value 2 as the run's."""

    def encode(self, selections, outputs):
        if 1 in outputs["y"]:
            raise DataError("lacks the selected value")
        if 2 in outputs["y"]:
            raise ConfigError("cannot share one file")
        return super().encode(selections, outputs)


def test_record_that_cannot_be_written_fails_alone(place):
    sink = place.sink(part_bytes_max=10_000, encoder=Choosy)
    for number in (0, 1, 3):
        sink.write(batch(number, rows=1))
    sink.finish(end=True)
    assert place.parts()["part-00000.csv"] == b"0.0\n3.0\n"
    assert place.failed() == [(2, 1, 4)]
    assert sink.committed == Counts(3, 2, 1)


def test_on_error_job_refuses_a_record_that_cannot_be_written(place):
    sink = place.sink(part_bytes_max=10_000, encoder=Choosy, on_error="job")
    sink.write(batch(0, rows=1))
    with pytest.raises(TooManyFailuresError, match="lacks the selected value"):
        sink.write(batch(1, rows=1))
    sink.abort()


def test_partially_written_batch_is_not_stored(place):
    """Its first records are in the part, but the cursor is still before them."""
    sink = place.sink(part_bytes_max=10_000, encoder=Choosy)
    sink.write(batch(0, rows=1))
    first, second = batch(3, rows=1, failed=1), batch(2, rows=1)
    values = np.concatenate([first.outputs["y"], second.outputs["y"]])
    both = replace(second, spans=first.spans + second.spans, outputs={"y": values}, entries=3)
    with pytest.raises(ConfigError):
        sink.write(both)
    sink.checkpoint()
    sink.abort()
    last = place.ledger.parts_state().last
    assert last is None or (last.in_part, last.cursor) == (Counts(1, 1), batch(0, rows=1).end)


def test_names_of_parts_have_their_number_and_format():
    assert part_names(3, "auto") == ("part-00003.csv", "part-00003.failed.jsonl")
    assert part_names(123_456, "text") == ("part-123456.txt", "part-123456.failed.jsonl")
    for name in (name for format_ in PART_SUFFIXES for name in part_names(7, format_)):
        assert PART_NAME.fullmatch(name)
    for name in ("part-7.csv", "part-00007.json", "part-00007.csv.out", "report.json"):
        assert not PART_NAME.fullmatch(name)
