"""Tests of whole objects: layers by name, members and globs, resumption, and damage."""

import bz2
import dataclasses
import gzip
import io
import itertools
import tarfile

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, EmptySourceError, TruncatedError
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.json_array import JsonArrayFormat, JsonOrArrayFormat
from headrace.formats.line import JsonFormat, JsonLinesFormat, LineFormat, WholeFormat
from headrace.formats.read import (
    csv_dialect,
    format_name,
    is_seekable,
    make_format,
    position_after,
    read_object,
    unreadable_reason,
)
from headrace.formats.read_options import ReadOptions

COMPRESS = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
URI = "memory://box/in/"


def make_tar(members, format_=tarfile.PAX_FORMAT):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format_) as out:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return file.getvalue()


def cut(data, edges):
    edges = [0, *sorted(edges), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def reuse_buffer(data, cuts):
    buffer = bytearray(len(data))
    for start, stop in itertools.pairwise([0, *sorted(cuts), len(data)]):
        buffer[: stop - start] = data[start:stop]
        yield memoryview(buffer)[: stop - start]
        buffer[:] = b"\xaa" * len(data)


def entries(blocks):
    """Return every record and failure in order: (position, bytes or reason, kind)."""
    found = []
    for block in blocks:
        assert block.records, "an empty block"
        for index in range(len(block)):
            found.append((block.position(index), block.record(index), None))
        found.extend((f.position, f.why, f.kind) for f in block.failures)
    return found


def read(uri, data, options=None, *, chunks=None, **resume):
    """Return the entries, and the error that ended them or None."""
    found, error = [], None
    try:
        for block in read_object(uri, chunks or [data], options or ReadOptions(), **resume):
            found.extend(entries([block]))
    except CorruptError as caught:
        error = caught
    return found, error


def texts(found):
    return [what for _, what, kind in found if kind is None]


# Names


@for_each(
    ("name", "expected"),
    [
        ("a.csv", "csv"),
        ("A.CSV", "csv"),
        ("a.tsv.gz", "csv"),
        ("a.txt", "csv"),
        ("a.jsonl", "jsonl"),
        ("a.ndjson.zst", "jsonl"),
        ("a.json", "json"),
        ("a.tfrecord", "tfrecord"),
        ("a.tfrecords.gz", "tfrecord"),
        ("a.rec", "recordio"),
        ("a.parquet", "parquet"),
        ("a.recordio", "recordio"),
        ("a.json.gz", "json"),
        ("dir.csv/a.jsonl.bz2", "jsonl"),
        ("a.png", "image"),
        ("a.JPeG", "image"),
        ("a.wav", "audio"),
        ("a.mp4", "video"),
        ("a.gz", None),
        ("a", None),
        (".csv", None),
        ("https://host/a.csv?version=1.2", "csv"),
        ("https://host/a.csv.gz?sig=x/y.z", "csv"),
        ("s3://box/a?.csv", "csv"),
        ("http?/a.csv", "csv"),
    ],
)
def test_format_by_name(name, expected):
    assert format_name(name, ReadOptions()) == expected
    assert format_name(name, ReadOptions(format="whole")) == "whole"


@for_each(
    ("name", "options", "expected"),
    [
        ("a.csv", {}, ","),
        ("a.tsv", {}, "\t"),
        ("a.tsv.gz", {}, "\t"),
        ("a.tsv", {"delimiter": ";"}, ";"),
        ("a.csv", {"delimiter": "|"}, "|"),
    ],
)
def test_delimiter_by_name(name, options, expected):
    assert csv_dialect(name, ReadOptions(**options)).delimiter == expected.encode()


@for_each(
    ("name", "options", "expected"),
    [
        ("a.tar", {}, True),
        ("A.TAR", {}, True),
        ("a.tar.gz", {}, False),
        ("a.tgz", {}, False),
        ("a.csv", {}, False),
        ("a.bin", {"archive": "tar"}, True),
        ("a.bin", {"archive": "tar", "compression": "zstd"}, False),
        ("a.tar.gz", {"compression": "none"}, True),
        ("a.tar", {"archive": "none"}, False),
    ],
)
def test_only_uncompressed_archives_are_seekable(name, options, expected):
    assert is_seekable(name, ReadOptions(**options)) == expected


@for_each("wrong", [{"compression": "zip"}, {"archive": "rar"}, {"format": "xml"}])
def test_unknown_options_are_rejected_at_once(wrong):
    ((option, value),) = wrong.items()
    with pytest.raises(ConfigError, match=f"{option} must be one of auto, .*, not '{value}'"):
        ReadOptions(**wrong)


def test_formats_are_configured_by_the_options():
    options = ReadOptions(header="names", record_bytes_max=99)
    assert make_format("a.tsv", "csv", options) == CsvFormat(
        dialect=CsvDialect(b"\t"), header="names", record_bytes_max=99
    )
    assert make_format("a", "jsonl", options) == JsonLinesFormat(record_bytes_max=99)
    assert make_format("a", "json", options) == JsonOrArrayFormat(record_bytes_max=99)
    assert make_format("a", "json", dataclasses.replace(options, format="json")) == JsonFormat(
        record_bytes_max=99
    )
    assert make_format("a", "jsonarray", options) == JsonArrayFormat(record_bytes_max=99)
    assert make_format("a", "line", options) == LineFormat(record_bytes_max=99)
    assert make_format("a", "whole", options) == WholeFormat(record_bytes_max=99)


def test_media_formats_are_configured_by_the_options():
    options = ReadOptions(
        size_px=(4, 6),
        image_mode="L",
        window_ms=20,
        hop_ms=10,
        sample_rate_hz=8000,
        audio_channels="keep",
        every_frames=3,
    )
    image = make_format("a.png", "image", options)
    assert (image.size_px, image.mode) == ((4, 6), "L")
    audio = make_format("a.wav", "audio", options)
    assert (audio.window_ms, audio.hop_ms, audio.sample_rate_hz, audio.channels) == (20, 10, 8000, "keep")
    video = make_format("a.mp4", "video", options)
    assert (video.every_frames, video.size_px, video.mode) == (3, (4, 6), "L")
    with pytest.raises(ConfigError, match=r"a\.wav is audio: .*--window-ms"):
        make_format("a.wav", "audio", ReadOptions())


def test_unknown_name_raises_with_the_format_option():
    with pytest.raises(ConfigError, match=r"memory://box/in/data\.bin: .*--format"):
        list(read_object(f"{URI}data.bin", [b"1\n"], ReadOptions()))


@for_each(
    ("name", "options"),
    [("a.parquet", {}), ("a.bin", {"format": "parquet"}), ("a.tar", {"format": "parquet"})],
)
def test_format_of_random_access_is_not_read_as_a_stream(name, options):
    read_options = ReadOptions(**options)
    assert "can be neither compressed nor members of archives" in unreadable_reason(
        f"{URI}{name}", read_options
    )
    with pytest.raises(ConfigError, match="can be neither compressed nor members of archives"):
        make_format(name, "parquet", read_options)
    if name != "a.tar":
        with pytest.raises(
            ConfigError, match=rf"{URI}{name}: .* can be neither compressed nor members of archives"
        ):
            list(read_object(f"{URI}{name}", [b""], read_options))


def test_format_of_random_access_in_an_archive_fails_that_member():
    found, error = read(f"{URI}a.tar", make_tar({"a.parquet": b"PAR1", "b.csv": b"1"}))
    assert error is None
    assert [(p.member, kind) for p, _, kind in found] == [("a.parquet", FailureKind.OBJECT), ("b.csv", None)]
    assert "can be neither compressed nor members of archives" in found[0][1]


# Layers

CSV = b'\xef\xbb\xbfone,1\r\n"two\nlines",2\r\n\r\nthree,3'
RECORDS = [b"one,1", b'"two\nlines",2', b"three,3"]
PLACES = [(0, 1, 3), (1, 2, 10), (2, 5, 27)]  # record, line, byte


@for_each("suffix", COMPRESS)
def test_single_object_with_every_compression(suffix):
    uri = f"{URI}a.csv{suffix}"
    found, error = read(uri, COMPRESS[suffix](CSV))
    assert error is None
    assert texts(found) == RECORDS
    assert [f[0] for f in found] == [Position(uri, None, *place) for place in PLACES]


@for_each("inner", COMPRESS)
@for_each(
    ("uri", "outer"),
    [
        ("a.tar", ""),
        ("a.tar.gz", ".gz"),
        ("a.tgz", ".gz"),
        ("a.tar.bz2", ".bz2"),
        ("a.tbz2", ".bz2"),
        ("a.tar.zst", ".zst"),
        ("a.tzst", ".zst"),
    ],
)
def test_compressed_members_of_compressed_archives(uri, outer, inner):
    """Positions count the decompressed bytes of the member.

    No record crosses the end of a member.
    """
    name = f"folder/b.csv{inner}"
    data = make_tar({f"a.csv{inner}": COMPRESS[inner](CSV), "empty.csv": b"", name: COMPRESS[inner](CSV)})
    found, error = read(f"{URI}{uri}", COMPRESS[outer](data))
    assert error is None
    assert texts(found) == RECORDS * 2
    second = found[3][0].member_byte
    assert [f[0] for f in found[3:]] == [
        Position(f"{URI}{uri}", name, *place, member_byte=second) for place in PLACES
    ]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert second == archive.getmember(name).offset


def test_options_override_the_name():
    data = make_tar({"x.bin": b"[1]\n[2]"})
    options = ReadOptions(compression="gzip", archive="tar", format="jsonl")
    assert texts(read(f"{URI}a.csv", gzip.compress(data), options)[0]) == [b"[1]", b"[2]"]
    assert texts(read(f"{URI}a.csv.gz", b"1,2", ReadOptions(compression="none"))[0]) == [b"1,2"]
    assert texts(read(f"{URI}a.tar", b"1", ReadOptions(archive="none", format="csv"))[0]) == [b"1"]


def test_every_member_has_its_own_header():
    data = make_tar({"a.csv": b"x,y\n1,2\n", "b.csv": b"z,w\n3,4\n", "c.csv": b"q,r\n"})
    blocks = list(read_object(f"{URI}a.tar", [data], ReadOptions(header="names")))
    assert [(b.texts(), b.column_names, b.first.line) for b in blocks] == [
        ([b"1,2"], ("x", "y"), 2),
        ([b"3,4"], ("z", "w"), 2),
        ([], ("q", "r"), 2),
    ]


def test_whole_members_are_records_even_if_empty():
    found, _ = read(f"{URI}a.tar", make_tar({"a": b"\0\1", "b": b""}), ReadOptions(format="whole"))
    assert texts(found) == [b"\0\1", b""]


# Members


@for_each(
    ("globs", "expected"),
    [
        ((), ["a.csv", "d/b.csv", "d/e/c.tsv"]),
        (("*.csv",), ["a.csv", "d/b.csv"]),
        (("d/*",), ["d/b.csv", "d/e/c.tsv"]),
        (("d/*.csv", "a.*"), ["a.csv", "d/b.csv"]),
        (("[bc].?sv",), ["d/b.csv", "d/e/c.tsv"]),
        (("*/e/*",), ["d/e/c.tsv"]),
    ],
)
def test_members_are_selected_by_globs(globs, expected):
    data = make_tar({"a.csv": b"1", "d/b.csv": b"1", "d/e/c.tsv": b"1"})
    found, _ = read(f"{URI}x.tar", data, ReadOptions(members=globs))
    assert [f[0].member for f in found] == expected


def test_globs_are_case_sensitive():
    with pytest.raises(EmptySourceError):
        read(f"{URI}x.tar", make_tar({"a.csv": b"1"}), ReadOptions(members=("*.CSV",)))


@for_each("names", [["a.csv"], list("abcde"), list("abcdefg")])
def test_globs_without_a_match_raise_with_the_members(names):
    data = make_tar(dict.fromkeys(names, b"1"))
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    with pytest.raises(EmptySourceError) as caught:
        read(f"{URI}x.tar", data, ReadOptions(members=("*.parquet", "z/*")))
    assert str(caught.value) == f"{URI}x.tar: no member matches *.parquet, z/*; the members are {shown}"


@for_each("data", [b"", bytes(1024), make_tar({})])
def test_archives_without_files_are_empty_sources(data):
    with pytest.raises(EmptySourceError, match="the archive holds no files"):
        read(f"{URI}x.tar", data)


def test_members_without_records_are_not_an_empty_source():
    assert read(f"{URI}x.tar", make_tar({"a.csv": b"", "b.csv": b"\n\n"})) == ([], None)


@for_each(
    ("name", "why"),
    [
        (
            "readme",
            "the name does not determine the format; choose it with --format (in a transform: --split)",
        ),
        ("inner.tar", "an archive within an archive is not supported"),
        ("inner.tgz", "an archive within an archive is not supported"),
        ("inner.tar.gz", "an archive within an archive is not supported"),
    ],
)
def test_unreadable_members_fail_alone(name, why):
    data = make_tar({"a.csv": b"1", name: b"?" * 3000, "b.csv": b"2"})
    found, error = read(f"{URI}x.tar", data)
    assert error is None
    assert texts(found) == [b"1", b"2"]
    position, reason, kind = found[1]
    assert (kind, position.member, position.record) == (FailureKind.OBJECT, name, 0)
    assert reason.startswith(f"{name} in {URI}x.tar: {why}")


def test_sparse_member_fails_alone():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name, records in (("s.csv", {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}), ("b.csv", {})):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = 2, records
            out.addfile(info, io.BytesIO(b"2\n"))
    found, error = read(f"{URI}x.tar", file.getvalue())
    assert (texts(found), error) == ([b"2"], None)
    assert found[0][1].startswith(f"s.csv in {URI}x.tar: it is a sparse file")


# Damage


def test_damaged_member_fails_its_rest_and_the_archive_continues():
    """The whole records of a truncated gzip member are read, and the failure has its position."""
    text = b"".join(b"%d,%d\r\n" % (i, i * i) for i in range(20_000))
    short = gzip.compress(text)[:-2000]
    data = make_tar({"a.csv.gz": short, "b.csv": b"next"})
    found, error = read(f"{URI}x.tar", data)
    assert error is None
    assert text.splitlines()[: len(found) - 2] == texts(found)[:-1]
    assert texts(found)[-1] == b"next"
    position, why, kind = found[-2]
    assert kind is FailureKind.OBJECT
    assert f"a.csv.gz in {URI}x.tar: the gzip stream ends early, after {len(short)} compressed bytes" in why
    assert why.endswith("; the rest of this member is not read")
    # The failure stands at the place of the first missing record.
    records = len(found) - 2
    assert (position.record, position.line) == (records, records + 1)
    assert position.byte == len(b"".join(text.splitlines(keepends=True)[:records]))


@for_each("ending", [b"\n", b"\r\n"])
@for_each("text", [b'a,"1\n2"', b"a"])
def test_position_of_the_damage_counts_lines_within_quotes(text, ending):
    lines = (text + ending) * 3000
    broken = gzip.compress(lines) + b"garbage"
    found, _ = read(f"{URI}x.tar", make_tar({"a.csv.gz": broken}))
    assert found[-1][0].record == 3000
    assert found[-1][0].line == 1 + lines.count(b"\n")
    assert found[-1][0].byte == len(lines)


def test_members_with_misleading_names_fail():
    data = make_tar({"a.csv.gz": b"1,2\n", "b.csv": b"\x1f\x8b\0\0", "c.csv": b"3"})
    found, error = read(f"{URI}x.tar", data)
    assert error is None
    assert [f[2] for f in found] == [FailureKind.OBJECT, FailureKind.OBJECT, None]
    assert "not with the gzip magic bytes" in found[0][1]
    assert "not CSV text: NUL byte" in found[1][1]


@for_each("lacks", [1100, 1030, 700, 1])
def test_damaged_archive_raises_after_all_whole_records(lacks):
    """Damage within a member is damage to the object, with member and offset."""
    data = make_tar({"a.csv": b"1\n2\n", "b.csv": b"line\n" * 300}, tarfile.USTAR_FORMAT)[: 1024 + 512 + 1500]
    found, error = read(f"{URI}x.tar", data[:-lacks])
    assert isinstance(error, TruncatedError)
    whole = (len(data) - lacks - 1536) // 5
    # There is no failure: the error itself reports the loss.
    assert [f[1:] for f in found] == [(text, None) for text in (b"1", b"2", *[b"line"] * whole)]
    assert (error.object, error.member) == (f"{URI}x.tar", "b.csv")
    assert error.byte == len(data) - lacks
    assert str(error).startswith(f"b.csv in {URI}x.tar: the archive ends early, at byte {error.byte}")


def test_truncated_compressed_archive_names_the_compressed_offset():
    data = gzip.compress(make_tar({"a.csv": b"1\n" * 5000, "b.csv": b"2\n" * 5000}))
    for lacks in (1, 20):
        found, error = read(f"{URI}x.tar.gz", data[:-lacks])
        assert isinstance(error, TruncatedError)
        assert (error.object, error.byte) == (f"{URI}x.tar.gz", len(data) - lacks)
        assert texts(found)[:5000] == [b"1"] * 5000
    # This holds even if all bytes of the archive were read: the checksum is missing.
    assert len(read(f"{URI}x.tar.gz", data[:-1])[0]) == 10_000


def test_wrong_checksum_after_the_end_of_the_archive_raises():
    data = bytearray(gzip.compress(make_tar({"a.csv": b"1\n"})))
    data[-6] ^= 1
    assert type(read(f"{URI}x.tar.gz", bytes(data))[1]) is CorruptError


def test_damaged_object_raises_with_its_name():
    found, error = read(f"{URI}a.csv.gz", gzip.compress(b"1\n2\n") + b"garbage")
    assert texts(found) == [b"1", b"2"]
    assert (error.object, error.member) == (f"{URI}a.csv.gz", None)
    assert str(error).startswith(f"{URI}a.csv.gz: the bytes from compressed byte")


@for_each(
    ("uri", "data", "why"),
    [
        ("a.csv.gz", b"a,b\n1,2\n", "pass --compression none"),
        ("a.csv.zst", gzip.compress(b"1", mtime=0), "zstd magic bytes"),
        ("a.tar", b"a,b\n1,2\n" * 100, "not a tar archive"),
        ("a.tar", gzip.compress(make_tar({"a.csv": bytes(99)}), mtime=0) + bytes(600), "not a tar archive"),
        ("a.tgz", make_tar({"a.csv": b"1"}), "gzip magic bytes"),
    ],
)
def test_misleading_names_raise(uri, data, why):
    found, error = read(f"{URI}{uri}", data)
    assert found == []
    assert why in str(error)
    assert error.object == f"{URI}{uri}"


def test_compressed_bytes_without_the_suffix_are_not_text():
    found, error = read(f"{URI}a.csv", gzip.compress(b"1,2\n"))
    assert error is None
    assert [f[2] for f in found] == [FailureKind.OBJECT]


# Independent of chunks, and resumed at any entry.

LAYERED = {
    "a.csv": CSV,
    "b.csv.gz": gzip.compress(CSV) + gzip.compress(b"\nfour,4"),
    "no/suffix": b"?",
    "long.csv": b"1,2\n" + b"x" * 60 + b"\n3,4\n",
    "c.jsonl.zst": COMPRESS[".zst"](b'{"a":1}\n\n{"a":2}'),
    "short.csv.gz": gzip.compress(b"5,6\n" * 150)[:-9],
    "quote.csv": b'7,8\n"never closed',
    "d.csv": b"9,10\n",
}
OBJECTS = {
    "a.csv": CSV,
    "a.jsonl.gz": gzip.compress(b'{"a":1}\r\n{"a":2}'),
    "a.tar": make_tar(LAYERED),
    "a.tar.gz": gzip.compress(make_tar(LAYERED), mtime=0),
    "a.tar.zst": COMPRESS[".zst"](make_tar(LAYERED)),
    "cut.tar": make_tar(LAYERED).rstrip(b"\0")[:-3],
    "cut.csv.gz": gzip.compress(b"1,2\n" * 150)[:-4],
}
OPTIONS = ReadOptions(record_bytes_max=40)
each_object = pytest.mark.parametrize("name", OBJECTS)


def outcome(found_and_error):
    found, error = found_and_error
    return found, error and (type(error), str(error), error.byte)


@each_object
@settings(max_examples=levels.examples(0.4))
@given(choice=st.data())
def test_entries_are_independent_of_chunks(name, choice):
    """Records, failures, positions and error are the same for chunks in a reused buffer."""
    data = OBJECTS[name]
    cuts = choice.draw(st.lists(st.integers(0, len(data)), max_size=12))
    chunks = reuse_buffer(data, cuts)
    assert outcome(read(URI + name, data, OPTIONS, chunks=chunks)) == outcome(read(URI + name, data, OPTIONS))


@each_object
@for_each("size", [1, 511, 513])
def test_entries_are_independent_of_the_chunk_size(name, size):
    data = OBJECTS[name]
    cuts = range(size, len(data), size)
    chunks = reuse_buffer(data, cuts)
    assert outcome(read(URI + name, data, OPTIONS, chunks=chunks)) == outcome(read(URI + name, data, OPTIONS))


@each_object
def test_reading_resumes_from_every_entry(name):
    """A cursor gives exactly the rest, from the start of the object or of the member."""
    data = OBJECTS[name]
    found, error = read(URI + name, data, OPTIONS)
    assert len(found) > 1
    starts = [f[0] for f in found]
    # The position after the last entry is the cursor of a run that stops just before its end.
    starts.append(dataclasses.replace(starts[-1], record=starts[-1].record + 1))
    for index, position in enumerate(starts):
        # The fields of a position that a ledger stores.
        resume = Position(
            position.object, position.member, record=position.record, member_byte=position.member_byte
        )
        rest = read(URI + name, data, OPTIONS, resume=resume)
        assert outcome(rest) == outcome((found[index:], error))
        if is_seekable(URI + name, OPTIONS):
            at = position.member_byte
            rest = read(URI + name, data[at:], OPTIONS, resume=resume, start_byte=at)
            assert outcome(rest) == outcome((found[index:], error))


def test_resuming_after_the_last_record_is_not_an_empty_source():
    data = make_tar({"a.csv": b"1\n", "b.txt": b"no"})
    options = ReadOptions(members=("*.csv",))
    last = Position(f"{URI}a.tar", "a.csv", record=1)
    assert read(f"{URI}a.tar", data, options, resume=last) == ([], None)


def test_resuming_keeps_header_and_record_number():
    text = b"x,y\n" + b"".join(b"%d,0\n" % i for i in range(50))
    resume = Position(f"{URI}a.csv", record=20)
    blocks = list(read_object(f"{URI}a.csv", [text], ReadOptions(header="names"), resume=resume))
    assert blocks[0].first == Position(f"{URI}a.csv", record=20, line=22, byte=4 + 10 * 4 + 10 * 5)
    assert {b.column_names for b in blocks} == {("x", "y")}
    assert sum(map(len, blocks)) == 30


def test_resuming_within_a_block_of_records_and_failures(monkeypatch):
    first = Position(f"{URI}a.csv")
    failures = tuple(
        Failure(dataclasses.replace(first, record=r, line=r + 1, byte=2 * r), FailureKind.FORMAT, f"no {r}")
        for r in (2, 3)
    )
    starts = np.array([0, 2])
    blocks = [Block(first, b"a\nb\n", starts, starts + 1, failures=failures)]

    class Ready:
        def blocks(self, chunks, first):
            return iter(blocks)

    monkeypatch.setattr("headrace.formats.read.make_format", lambda *_, **__: Ready())
    whole, _ = read(f"{URI}a.csv", b"")
    assert [f[1] for f in whole] == [b"a", b"b", "no 2", "no 3"]
    for record in range(5):
        resume = Position(f"{URI}a.csv", record=record)
        assert read(f"{URI}a.csv", b"", resume=resume) == (whole[record:], None)
        for block in read_object(f"{URI}a.csv", [], ReadOptions(), resume=resume):
            assert block.first == whole[record][0]


def test_position_after_a_block_is_the_start_of_the_next_record():
    data = b'1,2\n"3\n",4\r\n5'
    block, last = CsvFormat().blocks([data], Position("o", "m", member_byte=512))
    parts = [dataclasses.replace(block, starts=block.starts[:n], ends=block.ends[:n]) for n in (1, 2)] + [
        last
    ]
    for record, (part, end) in enumerate(zip(parts, [4, 12, 13], strict=True), start=1):
        line = 1 + data.count(b"\n", 0, end)
        assert position_after(part) == Position("o", "m", record=record, line=line, byte=end, member_byte=512)
    failed = Block(block.first, failures=(Failure(block.first, FailureKind.FORMAT, "no"),))
    assert position_after(failed) == dataclasses.replace(block.first, record=1)


def test_resuming_within_media_cuts_their_columns():
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, np.arange(4000) / 5000, 8000, format="WAV")
    options = ReadOptions(window_ms=10)
    whole = list(read_object(f"{URI}a.wav", [file.getvalue()], options))
    resume = Position(f"{URI}a.wav", record=7)
    rest = list(read_object(f"{URI}a.wav", [file.getvalue()], options, resume=resume))
    sound = np.concatenate([b.columns["audio"] for b in whole])
    assert len(sound) == 50
    assert (np.concatenate([b.columns["audio"] for b in rest]) == sound[7:]).all()
    assert rest[0].first.record == 7


def test_closing_early_closes_the_chunks():
    closed = []

    def chunks():
        try:
            for at in range(0, len(data), 700):
                yield data[at : at + 700]
        finally:
            closed.append(True)

    data = gzip.compress(make_tar({"a.csv.gz": gzip.compress(b"1,2\n" * 90_000)}), 0)
    blocks = read_object(f"{URI}a.tar.gz", chunks(), ReadOptions())
    next(blocks)
    assert not closed
    blocks.close()
    assert closed
