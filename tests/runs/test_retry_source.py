"""Failed records are read again into blocks, and no other records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import RAW_BYTES_KEPT_MAX, Failure, FailureKind, Position
from headrace.core.errors import ChangedError, NotFoundError
from headrace.formats.csv import CsvFormat
from headrace.formats.failures import FailedRecord
from headrace.formats.read_options import ReadOptions
from headrace.runs.retry_records import (
    ObjectFailures,
    RetrySource,
    needs_object,
    select_retryable,
    select_rows,
)
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from runs.support import IN, put, tar

CELLS = st.sampled_from([b"1", b"22", b'"a\nb"', b'"q""q"', b"x"])
LINES = st.lists(st.lists(CELLS, min_size=1, max_size=3).map(b",".join), min_size=1, max_size=12)


def object_failures(
    stores: Stores, name: str, numbers: list[int], raws: list[bytes], **more
) -> ObjectFailures:
    info = stores.for_uri(IN).head(IN + name)
    places = (Position(IN + name, record=number, **more) for number in numbers)
    failures = [Failure(p, FailureKind.MODEL, "no", raw) for p, raw in zip(places, raws, strict=True)]
    return select_retryable(info, [FailedRecord(f, 0, 0) for f in failures])


def read(stores: Stores, objects: list[ObjectFailures], options: ReadOptions) -> list[tuple[int, int, bytes]]:
    """Return each record with its object's index and its number among the retryable records."""
    blocks = list(RetrySource(objects, stores, options).blocks())
    return [
        (b.index, b.block.first.record + i, b.block.record(i)) for b in blocks for i in range(len(b.block))
    ]


@given(LINES, st.data(), st.booleans())
def test_records_are_read_from_stored_bytes_or_their_object(lines, data, has_raw_bytes):
    stores = Stores()
    put(stores, {"a.csv": b"".join(line + b"\n" for line in lines)})
    numbers = sorted(data.draw(st.sets(st.integers(0, len(lines) - 1), min_size=1)))
    raws = [lines[n] if has_raw_bytes else b"" for n in numbers]
    objects = [object_failures(stores, "a.csv", numbers, raws)] * 2
    assert needs_object(objects[0], ReadOptions()) != has_raw_bytes
    expected = [(index, i, lines[n]) for index in (0, 1) for i, n in enumerate(numbers)]
    assert read(stores, objects, ReadOptions()) == expected


@given(LINES, st.data())
def test_selected_rows_are_adjacent_lines(lines, data):
    text = b"".join(line + b"\n" for line in lines)
    (block,) = CsvFormat().blocks([text], Position("o"))
    rows = sorted(data.draw(st.sets(st.integers(0, len(block) - 1), min_size=1)))
    picked = select_rows(block, rows, Position("o", record=7))
    assert picked.data == b"".join(lines[row] + b"\n" for row in rows)
    assert [picked.record(i) for i in range(len(picked))] == [lines[row] for row in rows]
    assert picked.position(0).record == 7


@for_each(
    ("name", "raw", "member", "header", "expected"),
    [
        ("a.csv", b"1", None, "none", False),
        ("a.csv", b"1", None, "drop", False),
        ("a.csv", b"1", None, "names", True),
        ("a.jsonl", b"1", None, "names", False),
        ("a.csv.gz", b"1", None, "none", False),
        ("a.csv", b"", None, "none", True),
        ("a.csv", b"1" * RAW_BYTES_KEPT_MAX, None, "none", True),
        ("a.tar", b"1", "b.csv", "none", True),
        ("a.parquet", b"1", None, "none", True),
        ("a.png", b"1", None, "none", True),
    ],
)
def test_object_is_needed_if_stored_bytes_do_not_suffice(name, raw, member, header, expected):
    failure = Failure(Position("o", member), FailureKind.MODEL, "no", raw)
    found = select_retryable(ObjectInfo(f"memory://in/{name}", 1), [FailedRecord(failure, 0, 0)])
    assert needs_object(found, ReadOptions(header=header)) == expected


def test_invalid_format_is_not_retried():
    kinds = [FailureKind.FORMAT, FailureKind.DECODE, FailureKind.MODEL]
    found = [FailedRecord(Failure(Position("o", record=n), kind, "no"), 0, 0) for n, kind in enumerate(kinds)]
    assert select_retryable(ObjectInfo("o", 1), found).retryable == tuple(found[1:])


@for_each("is_deleted", [True, False])
def test_deleted_or_changed_object_is_an_error(is_deleted):
    stores = Stores()
    put(stores, {"a.tar": tar({"x.csv": b"1\n"})})
    found = object_failures(stores, "a.tar", [0], [b"1"], member="x.csv")
    store = stores.for_uri(IN)
    store.delete(IN + "a.tar") if is_deleted else store.put(IN + "a.tar", tar({"x.csv": b"2\n"}))
    with pytest.raises(NotFoundError if is_deleted else ChangedError, match=r"a\.tar"):
        read(stores, [found], ReadOptions())


def test_column_names_come_from_the_object(stores):
    put(stores, {"a.csv": b"p,q\n1,2\n3,4\n"})
    found = object_failures(stores, "a.csv", [1], [b"3,4"])
    (block,) = RetrySource([found], stores, ReadOptions(header="names")).blocks()
    assert block.block.column_names == ("p", "q")
