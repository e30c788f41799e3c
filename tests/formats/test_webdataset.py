"""Tests of WebDataset shards: members with one key are one record, for any chunks, names and damage."""

import contextlib
import io
import json
import re
import tarfile
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from formats.chunks import cut
from headrace.core.block import FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, EmptySourceError, TruncatedError
from headrace.formats.read import make_format, read_object, read_zip
from headrace.formats.read_options import ReadOptions
from headrace.formats.webdataset import split_name

READ = ReadOptions(format="webdataset")
READ_ERRORS = (TruncatedError, EmptySourceError)


def tar(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def read(data, *, name="a.tar", options=READ, chunks=None, **more):
    return list(read_object(name, chunks or [data], options, **more))


def contents(block):
    """Return the fields of a record: JSON values, and the bytes of files."""
    (text,) = block.texts()
    files = {name: column[0].tobytes() for name, column in block.columns.items()}
    return json.loads(text) | files


RECORD = [
    ("d/1.jpg", b"\xff\xd8"),
    ("d/1.json", b'{\r\n"a": 1.10}\n'),
    ("d/1.cls", b" 7\n"),
    ("d/1.txt", "é\n".encode()),
    ("d/1.seg.PNG", b"png"),
    ("d/1.en.txt", b"hi"),
]


def test_members_with_one_key_are_one_record():
    (block,) = read(tar(RECORD))
    files = {"jpg": b"\xff\xd8", "seg.png": b"png"}
    values = {"json": {"a": 1.1}, "cls": 7, "txt": "é\n", "en.txt": "hi"}
    assert contents(block) == {"__key__": "d/1"} | values | files
    assert b'{  "a": 1.10}' in block.data
    assert b"\n" not in block.data
    assert block.first == Position("a.tar", "d/1")
    assert block.nbytes == max(len(block.data), 5)


NAMES = st.sampled_from(
    [
        "a.jpg",
        "a.txt",
        "a.json",
        "b.jpg",
        "b.b.txt",
        "x/a.txt",
        "x/b.JPG",
        "x.y/c.txt",
        "README",
        ".hidden",
        "__meta__/a.txt",
        "__info__.txt",
        "x/__info__.txt",
        "a.",
        "./a.txt",
    ]
)


def by_webdataset(names):
    """Return the keys and fields as the library groups them."""
    groups = []
    for name in names:
        found = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
        if found is None or not found[2] or re.match(r"__[^/]*__($|/)", name):
            continue
        if not groups or groups[-1][0] != found[1]:
            groups.append((found[1], []))
        groups[-1][1].append(found[2].lower())
    return groups


@given(st.lists(NAMES, min_size=1, max_size=12), st.lists(st.integers(1, 4000), max_size=5))
def test_groups_are_those_of_the_library(names, cuts):
    data = tar([(name, b"1") for name in names])
    expected = by_webdataset(names)
    blocks = read(data, chunks=cut(data, [at for at in sorted(set(cuts)) if at < len(data)]))
    assert [block.first.member for block in blocks] == [key for key, _ in expected]
    for block, (key, fields) in zip(blocks, expected, strict=True):
        if len(set(fields)) < len(fields):
            (failure,) = block.failures
            assert "twice" in failure.why
        else:
            assert set(contents(block)) == {"__key__", *fields}
            assert contents(block)["__key__"] == key


@for_each(
    ("name", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("x/y/a.Seg.PNG", ("x/y/a", "seg.png")),
        ("x.d/a.txt", ("x.d/a", "txt")),
        ("a", None),
        ("x.d/a", None),
        (".a.txt", None),
        ("a.", None),
        ("__a__", None),
        ("__a__/b.txt", None),
        ("x/__a__/b.txt", ("x/__a__/b", "txt")),
        ("__a.txt", ("__a", "txt")),
    ],
)
def test_name_has_a_key_and_a_field(name, expected):
    assert split_name(name) == expected


@for_each(
    ("field", "data", "why"),
    [
        ("txt", b"a\xff", "field txt: not UTF-8 at byte 1"),
        ("json", b"{", "field json: not JSON"),
        ("cls", b"1.5", r"field cls: not an integer: b'1\.5'"),
        ("cls", b"", "field cls: not an integer"),
        ("id", b"9223372036854775808", "field id: not an integer"),
        ("png", b"x" * 100, "field png: the record is longer than record_bytes_max"),
    ],
)
def test_bad_field_costs_its_record(field, data, why):
    members = [("1.txt", b"a"), (f"2.{field}", data), ("2.jpg", b"b"), ("3.txt", b"c")]
    options = ReadOptions(format="webdataset", record_bytes_max=99)
    first, failed, last = read(tar(members), options=options)
    assert [contents(block)["txt"] for block in (first, last)] == ["a", "c"]
    (failure,) = failed.failures
    assert (failure.position.member, failure.kind) == ("2", FailureKind.FORMAT)
    assert re.match(why, failure.why)


@given(st.integers(0, 6 * 1536))
def test_cut_archive_gives_all_records_that_another_one_follows(size):
    members = [(f"{n}.{field}", b"%d" % n * 700) for n in range(3) for field in ("txt", "bin")]
    data = tar(members)
    whole = [contents(block) for block in read(data)]
    found = []
    # An archive may end at any header.
    expected = contextlib.nullcontext() if size % 1536 == 0 and size else pytest.raises(READ_ERRORS)
    with expected:
        found.extend(map(contents, read_object("a.tar", [data[:size]], READ)))
    # A record is complete when the header of the next one is there.
    complete = sum(size >= n * 2 * 1536 + 512 for n in (1, 2))
    assert found[:complete] == whole[:complete]
    assert len(found) == complete or size % 1536 == 0


def test_damage_to_the_archive_is_named():
    def chunks():
        yield tar([("1.txt", b"x" * 2000)])[:1500]
        raise CorruptError("the gzip stream is damaged", byte=7)

    with pytest.raises(CorruptError, match="the gzip stream is damaged"):
        read(b"", chunks=chunks())


def test_reading_resumes_at_any_record():
    members = [(f"{n}.{field}", b"%d" % n) for n in range(4) for field in ("txt", "bin")]
    data = tar(members)
    whole = read(data)
    for index, block in enumerate(whole):
        before, at = block.first, block.first.member_byte
        assert [contents(b) for b in read(data, resume=before)] == [contents(b) for b in whole[index:]]
        resumed = read(b"", chunks=[data[at:]], resume=before, start_byte=at)
        assert [contents(b) for b in resumed] == [contents(b) for b in whole[index:]]
        after = Position("a.tar", before.member, record=1, member_byte=at)
        assert [contents(b) for b in read(data, resume=after)] == [contents(b) for b in whole[index + 1 :]]


def test_members_are_selected_before_they_are_grouped():
    options = ReadOptions(format="webdataset", members=("*.txt", "*.jpg"))
    (block,) = read(tar(RECORD), options=options)
    assert set(contents(block)) == {"__key__", "txt", "en.txt", "jpg"}
    with pytest.raises(EmptySourceError, match=r"no member matches \*\.wav; the members are d/1\.jpg"):
        read(tar(RECORD), options=ReadOptions(format="webdataset", members=("*.wav",)))


def test_damaged_file_of_a_zip_archive_costs_its_record():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in ("1.txt", "1.jpg", "2.txt", "3.txt"):
            archive.writestr(name, b"text of " + name.encode())
    data = out.getvalue().replace(b"text of 2", b"test of 2")
    blocks = list(read_zip("a.zip", lambda start, size: data[start : start + size], len(data), READ))
    assert [block.first.member for block in blocks] == ["1", "2", "3"]
    assert contents(blocks[0])["jpg"] == b"text of 1.jpg"
    assert "field txt:" in blocks[1].failures[0].why


def test_shard_must_be_an_archive():
    for attempt in (lambda: read(b"", name="a.jpg"), lambda: make_format("a.jpg", "webdataset", READ)):
        with pytest.raises(ConfigError, match=r"a\.jpg: a WebDataset shard is an archive"):
            attempt()
