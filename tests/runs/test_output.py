import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Failure, FailureKind, Position
from headrace.core.errors import ConfigError, DataError
from headrace.formats.contract import BlockSelection
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.encode import output_columns
from headrace.formats.failures import read_failed_records
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.items import ScoredSpan
from headrace.runs.output import OTHER_REASONS, REASONS_MAX, RecordOutput, SpooledOutput, suppresses_output
from headrace.runs.records import Counts
from headrace.storage.draft import DraftPublisher
from headrace.storage.resolve import MemoryStore
from runs.support import make_settings

OUT = "memory://out/"


def block_of(count: int, first: int = 0):
    text = b"".join(b"%d\n" % (first + i) for i in range(count))
    (block,) = CsvFormat().blocks([text], Position("memory://in/a.csv", record=first, line=first + 1))
    return block


def output_of(store=None, *, header: bool = False, **more) -> RecordOutput:
    store = store or MemoryStore()
    return RecordOutput(
        policy=FailurePolicy(),
        make_encoder=lambda outputs, _: CsvEncoder(output_columns(outputs), header=header),
        out=SpooledOutput(store, OUT + "d.out"),
        failed=SpooledOutput(store, OUT + "d.failed"),
        **more,
    )


def written(output: RecordOutput) -> tuple[bytes, list]:
    store = MemoryStore()
    publisher = DraftPublisher(store, OUT, drafts=OUT + "_drafts/")
    output.out.publish(OUT + "out", publisher)
    output.failed.publish(OUT + "failed", publisher)
    publisher.flush()
    publisher.close()
    return store.get(OUT + "out"), list(read_failed_records(store.get(OUT + "failed").splitlines()))


def span_of(block, bad, kind=FailureKind.DECODE) -> ScoredSpan:
    good = np.array([i for i in range(len(block)) if i not in bad], np.int64)
    failures = tuple(block.failure(i, kind, f"reason {i}x") for i in sorted(bad))
    return ScoredSpan(BlockSelection(block, 0, len(block), good if bad else None), failures)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sets(st.integers(0, 5))), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_failures_have_their_output_position(parts, header, together):
    output = output_of(header=header)
    spans, number = [], 0
    for count, bad in parts:
        block = block_of(count, number)
        spans.append(span_of(block, {b for b in bad if b < count}))
        number += count
    batches = [spans] if together else [[span] for span in spans]
    good = []
    for batch in batches:
        values = [
            s.selection.block.first.record + int(i)
            for s in batch
            for i in np.atleast_1d(
                np.arange(len(s.selection.block)) if s.selection.rows is None else s.selection.rows
            )
        ]
        good += values
        output.add(batch, {"y": np.array(values, np.int64)} if values else {})
    out, failed = written(output)
    lines = [b"%d\n" % v for v in good]
    assert out == (b"y\n" if header and good else b"") + b"".join(lines)
    for place in failed:
        record = place.failure.position.record
        before = [b"%d\n" % v for v in good if v < record]
        assert place.output_row == len(before)
        assert place.output_byte == sum(map(len, before)) + (2 if header and before else 0)
    assert [p.failure.position.record for p in failed] == sorted(set(range(number)) - set(good))
    assert output.counts == Counts(number, len(good), number - len(good))
    assert output.entries == number
    assert output.counts.has_failures == bool(failed)
    assert output.begin_bytes == (2 if header and good else 0)


def test_broken_object_is_not_a_record():
    output = output_of()
    failure = Failure(Position("o", record=3), FailureKind.OBJECT, "gone")
    block = block_of(2)
    output.add([ScoredSpan(BlockSelection(block, 0, 2), (failure,))], {"y": np.arange(2)})
    assert output.counts == Counts(2, 2, 0, 1)
    assert (output.entries, output.counts.has_failures) == (3, True)
    assert output.failures == {"object: gone": 1}
    out, (failed,) = written(output)
    assert (out, failed.output_row) == (b"0\n1\n", 2)


def test_header_of_an_earlier_process_is_not_repeated():
    output = output_of(header=True, counts=Counts(3, 2, 1), begin_bytes=2, failures={"a": 1})
    output.add([span_of(block_of(2), set())], {"y": np.arange(2)})
    assert written(output)[0] == b"0\n1\n"
    assert (output.counts, output.begin_bytes, output.entries) == (Counts(5, 4, 1), 2, 2)
    assert output.failures == {"a": 1}


def test_header_is_written_with_the_first_prediction():
    output = output_of(header=True, counts=Counts(3, 0, 3))
    output.add([span_of(block_of(1), set())], {"y": np.arange(1)})
    assert written(output)[0] == b"y\n0\n"


def test_header_before_a_record_that_cannot_be_written_is_not_repeated():
    class Refusing(CsvEncoder):
        def encode(self, selections, outputs):
            raise DataError("lacks the selected value")

    before = output_of(header=True)
    before._make_encoder = lambda outputs, _: Refusing(output_columns(outputs), header=True)
    before.add([span_of(block_of(1), set())], {"y": np.arange(1)})
    assert (before.counts, before.failures) == (Counts(1, 0, 1), {"format: lacks the selected value": 1})
    resumed = output_of(header=True, counts=before.counts, begin_bytes=before.begin_bytes)
    resumed.out.write(written(before)[0])
    resumed.add([span_of(block_of(1, 1), set())], {"y": np.arange(1)})
    assert written(resumed)[0] == b"y\n0\n"


def test_output_without_records_has_the_bytes_of_its_empty_encoder():
    for make_empty, expected in (
        (None, b""),
        (lambda: None, b""),
        (lambda: CsvEncoder(output_columns({"y": np.empty(0)}), header=True), b"y\n"),
    ):
        output = output_of()
        output.end(make_empty)
        assert written(output) == (expected, [])
        assert output.begin_bytes == len(expected)


def test_number_of_reasons_is_limited():
    output = output_of()
    block = block_of(REASONS_MAX + 20)
    failures = tuple(block.failure(i, FailureKind.MODEL, f"reason x{i}") for i in range(len(block)))
    output.add([ScoredSpan(BlockSelection(block, 0, len(block), np.empty(0, np.int64)), failures)], {})
    assert len(output.failures) == REASONS_MAX + 1
    assert output.failures[OTHER_REASONS] == 20
    again = block.failure(0, FailureKind.MODEL, "reason x0")
    output.add([ScoredSpan(BlockSelection(block, 0, 0, np.empty(0, np.int64)), (again,))], {})
    assert output.failures["model: reason x0"] == 2


def test_encoder_error_is_raised():
    def refuse(*_):
        raise ConfigError("cannot be written")

    output = output_of()
    output._make_encoder = refuse
    with pytest.raises(ConfigError):
        output.add([span_of(block_of(1), set())], {"y": np.arange(1)})


@for_each(
    ("on_error", "failed", "suppressed"),
    [("record", True, False), ("object", True, True), ("object", False, False)],
)
def test_on_error_object_suppresses_output_with_failures(on_error, failed, suppressed):
    assert suppresses_output(make_settings(failures={"on_error": on_error}), failed=failed) is suppressed
