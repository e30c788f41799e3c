import gzip
import io
import tarfile

import pytest

import levels
from cases import for_each
from headrace.core.block import Position
from headrace.core.errors import EmptySourceError
from headrace.formats.contract import DecodedBlock
from headrace.formats.read import ReadOptions
from headrace.runs.items import BlockEntries, Cursor, ReadBlock
from headrace.runs.objects import select_objects
from headrace.runs.reader import Reader
from headrace.runs.settings import FlowSettings
from headrace.storage.resolve import Stores

CUT = gzip.compress(b"".join(b"%d,1\n" % i for i in range(3000)))[:-900]


def reader_over(
    objects: dict[str, bytes], start: Cursor | None = None, *, stop=None, appended=False, change=None
) -> Reader:
    stores = Stores()
    store = stores.for_uri("memory://b/")
    for name, data in objects.items():
        store.put(f"memory://b/{name}", data)
    plan = select_objects("memory://b/", stores)
    for name, data in (change or {}).items():
        store.put(f"memory://b/{name}", data) if data is not None else store.delete(f"memory://b/{name}")
    return Reader(
        stores, plan, ReadOptions(), FlowSettings(), start or Cursor(), stop=stop, appended=appended
    )


def read(reader: Reader) -> list[tuple[int, int, list[str]]]:
    """Return index, number of records and failure reasons of every block."""
    found = [(r.index, len(r.block), [f.why for f in r.block.failures]) for r in reader.blocks()]
    reader.close()
    return found


def test_objects_are_read_in_order_and_counted():
    reader = reader_over({"a.csv": b"1\n2\n", "b.csv": b"", "c.csv": b"3\n"})
    assert read(reader) == [(0, 2, []), (2, 1, [])]
    assert (reader.objects_read, reader.bytes_read) == (3, 6)


@for_each(
    ("change", "why"),
    [
        ({"b.csv": None}, "no such object"),
        ({"b.csv": b"2\n3\n"}, "has changed (ETag"),
    ],
)
def test_missing_or_changed_object_fails_alone(change, why):
    found = read(reader_over({"a.csv": b"1\n", "b.csv": b"2\n", "c.csv": b"3\n"}, change=change))
    assert [(index, rows) for index, rows, _ in found] == [(0, 1), (1, 0), (2, 1)]
    (texts,) = found[1][2]
    assert why in texts
    assert texts.endswith("the rest of memory://b/b.csv is not read")


def test_broken_object_yields_earlier_records_and_its_position():
    reader = reader_over({"a.csv.gz": CUT, "b.csv": b"3\n"})
    blocks = list(reader.blocks())
    reader.close()
    lost = blocks[-2].block.failures[0]
    records = sum(len(r.block) for r in blocks[:-2])
    assert records > 0
    assert (lost.position.record, lost.position.line) == (records, records + 1)
    assert blocks[-2].last
    assert blocks[-1].block.first.object == "memory://b/b.csv"


def test_resumed_broken_object_fails_at_the_same_position():
    whole = reader_over({"a.csv.gz": CUT})
    *_, before, lost = whole.blocks()
    whole.close()
    position = lost.block.first
    resumed = reader_over({"a.csv.gz": CUT}, Cursor(0, position))
    (again,) = resumed.blocks()
    resumed.close()
    assert again.block.failures[0].position.record == position.record
    assert before.block.first.record < position.record


def test_empty_archive_raises_only_as_the_whole_source():
    with pytest.raises(EmptySourceError):
        read(reader_over({"a.tar": bytes(1024)}))
    (only,) = read(reader_over({"a.tar": bytes(1024)}, appended=True))
    assert "the archive holds no files" in only[2][0]
    assert len(read(reader_over({"a.tar": bytes(1024), "b.csv": b"1\n"}))) == 2


def test_object_of_unknown_format_fails_alone():
    (first, second) = read(reader_over({"a": b"1\n", "b.csv": b"1\n"}))
    assert "memory://b/a: the name does not determine the format; choose it with --format" in first[2][0]
    assert second == (1, 1, [])


def archive(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return file.getvalue()


MEMBERS = archive({"x.csv": b"4\n5\n6\n", "broken.csv.gz": CUT[:700], "none.csv": b"", "y.csv": b"7\n8\n"})
MANY = {
    "a.csv": b"1\n2\n3\n",
    "b.tar": MEMBERS,
    "c.tar.gz": gzip.compress(MEMBERS),
    "d.csv": b"",
    "e.csv.gz": CUT[:900],
    "f.csv": b"9\n10\n",
}


def entries(reader: Reader) -> list[tuple[ReadBlock, int, str]]:
    """Return every record and failure, with its block and its index in it."""
    found = []
    for read in reader.blocks():
        block = read.block
        found += [(read, i, block.record(i).decode()) for i in range(len(block))]
        found += [(read, len(block) + i, f.why) for i, f in enumerate(block.failures)]
    reader.close()
    return found


def test_reads_up_to_and_from_a_cursor_cover_everything():
    whole = entries(reader_over(MANY))
    texts = [(read.index, text) for read, _, text in whole]
    assert len(texts) > 100
    assert sum("the rest of" in text for _, text in texts) == 3
    for at in range(0, len(whole), levels.by_level(5, 1, 1)):
        read, before, _ = whole[at]
        stop = BlockEntries(read, DecodedBlock({})).cursor_after(before + 1)
        upto = [(r.index, text) for r, _, text in entries(reader_over(MANY, stop=stop))]
        assert upto == texts[: at + 1]
        if at % 35 == 0:
            rest = [(r.index, text) for r, _, text in entries(reader_over(MANY, stop))]
            assert upto + rest == texts


def test_read_up_to_the_start_is_empty():
    assert entries(reader_over(MANY, stop=Cursor())) == []
    start = Cursor(0, Position("memory://b/a.csv", record=2))
    assert entries(reader_over(MANY, start, stop=start)) == []
