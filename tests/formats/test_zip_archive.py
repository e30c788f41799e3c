"""Tests of zip archives: members by ranges, resumption, names, damage and bounds."""

import bz2
import contextlib
import gzip
import io
import struct
import tracemalloc
import warnings
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, EmptySourceError
from headrace.formats import zip_archive
from headrace.formats.read import is_zip, read_object, read_zip, unreadable_reason
from headrace.formats.read_options import ReadOptions

URI = "memory://box/day.zip"
ROWS = b"".join(b"%d,%d\n" % (i, i) for i in range(3000))


class Unseekable(io.RawIOBase):
    """A pipe, for which `zipfile` writes data descriptors behind the members."""

    def __init__(self):
        self.data = b""

    def writable(self):
        return True

    def write(self, data):
        self.data += bytes(data)
        return len(data)


def make_zip(members, method=zipfile.ZIP_DEFLATED, *, streamed=False):
    """Return an archive of (name, content) pairs; names may be there twice."""
    file = Unseekable() if streamed else io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", method) as archive:
        warnings.simplefilter("ignore", UserWarning)
        for name, content in members:
            archive.writestr(name, content)
    return file.data if streamed else file.getvalue()


def read(data, options=None, resume=None, reads=None):
    """Return the entries of an archive: (member, record number, bytes or reason, kind)."""

    def read_at(start, length):
        if reads is not None:
            reads.append((start, length))
        return data[start : start + length]

    found = []
    for block in read_zip(URI, read_at, len(data), options or ReadOptions(), resume=resume):
        for index in range(len(block)):
            found.append((block.position(index), block.record(index), None))
        found.extend((f.position, f.why, f.kind) for f in block.failures)
    return found


def records(data, options=None):
    return [(position.member, record) for position, record, _ in read(data, options)]


@given(
    st.lists(st.tuples(st.text("abü/", min_size=1, max_size=4), st.binary(max_size=300)), min_size=1),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]),
    st.booleans(),
)
def test_all_files_are_read_in_order(members, method, streamed):
    files = [(name, content) for name, content in members if not name.endswith("/")]
    data = make_zip(members, method, streamed=streamed)
    found = [
        (member.name, member.size, b"".join(member.pieces), member.header_byte)
        for member in zip_archive.members(lambda start, length: data[start : start + length], len(data))
    ]
    assert [(name, size, content) for name, size, content, _ in found] == [(n, len(c), c) for n, c in files]
    assert [byte for *_, byte in found] == sorted({byte for *_, byte in found})


def test_members_have_compressions_and_formats_by_their_names():
    data = make_zip([("a.csv", b"1,2\n3,4\n"), ("d/", b""), ("d/b.jsonl.gz", gzip.compress(b"[5]\n"))])
    assert records(data) == [("a.csv", b"1,2"), ("a.csv", b"3,4"), ("d/b.jsonl.gz", b"[5]")]
    assert records(data, ReadOptions(members=("d/*",))) == [("d/b.jsonl.gz", b"[5]")]


def test_reading_resumes_from_every_entry():
    data = make_zip([("a.csv", b"1\n2\n"), ("a.csv", b"3\n4\n"), ("b.bin", b"no"), ("c.csv", b"5\n6\n")])
    found = read(data)
    assert [record for _, record, kind in found if kind is None] == [b"%d" % i for i in range(1, 7)]
    for index, (at, _, _) in enumerate(found):
        resume = Position(URI, at.member, record=at.record, member_byte=at.member_byte)
        assert read(data, resume=resume) == found[index:]


def test_resuming_does_not_read_earlier_members(monkeypatch):
    monkeypatch.setattr(zip_archive, "RANGE_BYTES", 4096)
    data = make_zip([("a.csv", ROWS * 10), ("b.csv", b"1\n")], zipfile.ZIP_STORED)
    last = read(data)[-1][0]
    reads: list[tuple[int, int]] = []
    read(data, resume=Position(URI, "b.csv", member_byte=last.member_byte), reads=reads)
    assert min(start for start, _ in reads) >= last.member_byte - 4096
    reads.clear()
    read(data, ReadOptions(members=("b.csv",)), reads=reads)
    assert sum(length for _, length in reads) < 100_000 < len(data)


def test_small_members_share_a_read():
    data = make_zip([(f"{i}.csv", b"1\n") for i in range(100)])
    reads: list[tuple[int, int]] = []
    assert len(read(data, reads=reads)) == 100
    assert len(reads) <= 6


def test_names_without_a_mark_are_utf8_or_code_page_437():
    data = make_zip([("ab.csv", b"1\n"), ("/abs.csv", b"2\n"), ("../up.csv", b"3\n")])
    assert [name for name, _ in records(data)] == ["ab.csv", "/abs.csv", "../up.csv"]
    assert records(data.replace(b"ab.csv", "ü.csv".encode()))[0] == ("ü.csv", b"1")
    assert records(data.replace(b"ab.csv", b"\x81b.csv"))[0] == ("üb.csv", b"1")


def test_links_are_skipped():
    link = zipfile.ZipInfo("link.csv")
    link.external_attr = 0o120777 << 16
    assert records(make_zip([(link, b"a.csv"), ("a.csv", b"1\n")])) == [("a.csv", b"1")]


def test_zip64_members_are_read():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, archive.open("a.csv", "w", force_zip64=True) as member:
        member.write(ROWS)
    assert len(read(file.getvalue())) == 3000


def _flip(data, name, at):
    place = data.index(name) + len(name) + at
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


def _marked(data, name, *, flags=0, method=None):
    """Set the flags and the method of a member, in its header and in the directory."""
    changed = bytearray(data)
    for mark, flags_at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        name_at = (30, 46)[flags_at == 8]
        at = next(
            i for i in range(len(data)) if data[i : i + 4] == mark and data[i + name_at :].startswith(name)
        )
        changed[at + flags_at] |= flags
        if method is not None:
            struct.pack_into("<H", changed, at + flags_at + 2, method)
    return bytes(changed)


@for_each("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_member_fails_alone(method):
    data = make_zip([("a.csv", b"1\n"), ("b.csv", ROWS), ("c.csv", b"3\n")], method)
    found = read(_flip(data, b"b.csv", 20))
    (failure,) = [entry for entry in found if entry[2] is not None]
    assert (failure[0].member, failure[2]) == ("b.csv", FailureKind.OBJECT)
    assert f"b.csv in {URI}: it is damaged in the zip archive (" in failure[1]
    assert (found[0][1], found[-1][1]) == (b"1", b"3")


@for_each(
    ("change", "why"),
    [
        ({"flags": 1}, "it is encrypted; write the archive again without a password"),
        ({"method": 9}, "its compression method 9 is not supported; write the archive again with deflate"),
    ],
)
def test_unreadable_member_fails_alone(change, why):
    data = make_zip([("a.csv", b"1\n"), ("b.csv", b"2\n"), ("c.csv", b"3\n")])
    first, failed, last = read(_marked(data, b"b.csv", **change))
    assert (first[1], last[1]) == (b"1", b"3")
    assert failed[1] == f"b.csv in {URI}: {why}; the rest of this member is not read"


def test_wrong_size_in_the_directory_fails_the_member():
    data = bytearray(make_zip([("a.csv", b"1\n2\n"), ("b.csv", b"3\n")]))
    struct.pack_into("<I", data, data.index(b"PK\1\2") + 24, 2)
    found = read(bytes(data))
    assert [kind for _, _, kind in found] == [FailureKind.OBJECT, None]
    struct.pack_into("<I", data, data.index(b"PK\1\2") + 24, 9)
    assert "it has 4 bytes, but the directory of the zip archive states 9" in read(bytes(data))[-2][1]


@given(
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]),
    st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=3),
)
def test_any_damage_is_a_failure_or_a_corrupt_archive(method, changes):
    data = bytearray(make_zip([("a.csv", b"1,2\n" * 9), ("ü.csv", b"3\n"), ("d/", b"")], method))
    for place, byte in changes:
        data[int(place * len(data))] = byte
    with contextlib.suppress(CorruptError, EmptySourceError):
        assert all(kind in {None, FailureKind.OBJECT, FailureKind.FORMAT} for *_, kind in read(bytes(data)))


def test_member_without_a_name_fails_alone():
    data = make_zip([("x.csv", b"1\n"), ("b.csv", b"2\n")]).replace(b"x.csv", b"\0.csv")
    failed, record = read(data)
    assert "the name does not determine the format" in failed[1]
    assert record[1] == b"2"


@for_each("lacks", [1, 30, 200])
def test_archive_without_its_end_cannot_be_read(lacks):
    data = make_zip([("a.csv", b"1\n"), ("b.csv", b"2\n")])
    with pytest.raises(CorruptError, match=f"{URI}: the directory at the end of the zip archive cannot"):
        read(data[:-lacks])


def test_too_long_directory_is_refused(monkeypatch):
    monkeypatch.setattr(zip_archive, "RANGE_BYTES", 4096)
    monkeypatch.setattr(zip_archive, "DIRECTORY_BYTES_MAX", 70_000)
    with pytest.raises(CorruptError, match="the directory of the zip archive has more than 70000 bytes"):
        read(make_zip([(f"{i}.csv", b"") for i in range(2000)]))


def test_bombs_are_read_in_pieces():
    data = make_zip([("a.bin", bytes(64 << 20))])
    assert len(data) < 100_000
    tracemalloc.start()
    found = zip_archive.members(lambda start, length: data[start : start + length], len(data))
    size = sum(len(piece) for member in found for piece in member.pieces)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (size, peak < 8 << 20) == (64 << 20, True)


def test_entries_of_the_same_bytes_are_one_member():
    data = make_zip([("a.csv", b"1\n")])
    at, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    entry = data[at:end]
    tail = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 3, 3, 3 * len(entry), at, 0)
    assert len(records(data[:at] + entry * 3 + tail)) == 1


def test_archives_are_recognized_by_name_or_option():
    assert is_zip("a.ZIP", ReadOptions())
    assert is_zip("a.docx", ReadOptions(archive="zip"))
    assert not is_zip("a.docx", ReadOptions())
    assert not is_zip("a.zip", ReadOptions(archive="none"))


def test_zip_within_other_layers_is_refused():
    assert "a zip archive is read from its end" in unreadable_reason("a.zip.gz", ReadOptions())
    inner = make_zip([("b.zip", make_zip([("a.csv", b"1\n")])), ("c.csv", b"2\n")])
    failed, record = read(inner)
    assert "an archive within an archive is not supported" in failed[1]
    assert record[1] == b"2"


def test_zip_is_not_read_as_a_stream_or_without_a_size():
    with pytest.raises(ConfigError):
        list(read_object(URI, [b""], ReadOptions()))
    with pytest.raises(ConfigError, match="read from its end"):
        list(read_object(f"{URI}.bz2", [bz2.compress(b"")], ReadOptions()))
    with pytest.raises(CorruptError, match=f"{URI}: its size is unknown"):
        list(read_zip(URI, lambda _start, _length: b"", None, ReadOptions()))


@for_each(
    ("members", "why"), [([], "holds no files"), ([("a.csv", b"1\n")], "no member matches x.csv; .*a.csv")]
)
def test_archives_without_a_selected_member_are_empty_sources(members, why):
    with pytest.raises(EmptySourceError, match=why):
        read(make_zip(members), ReadOptions(members=("x.csv",)))


def test_errors_of_the_store_propagate():
    class GoneError(Exception):
        pass

    data = make_zip([("a.csv", ROWS)])

    def read_at(start, length):
        if start == 0:
            raise GoneError
        return data[start : start + length]

    with pytest.raises(GoneError):
        list(read_zip(URI, read_at, len(data), ReadOptions()))
