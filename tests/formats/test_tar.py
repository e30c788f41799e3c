"""Tests of the tar reader: members equal to tarfile's for any chunks, damage with its offset."""

import io
import struct
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import for_each
from formats.chunks import cut, reuse_buffer
from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.tar import EXTENDED_HEADER_BYTES_MAX, members
from levels import examples

SIZES = [1, 7, 511, 512, 513, 4096, 1 << 20]
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG = "folder/" * 30 + "a-name-longer-than-any-header-holds-" * 3 + ".csv"
LENGTHS = [0, 1, 511, 512, 513, 1024, 3000]


def read_members(chunks, **options):
    """Return (name, bytes, header offset) of each member, and the error or None."""
    members_read, error = [], None
    try:
        for member in members(chunks, **options):
            data = b"".join(bytes(piece) for piece in member.pieces)
            assert len(data) == member.size
            members_read.append((member.name, data, member.header_byte))
    except CorruptError as caught:
        error = caught
    return members_read, error


def read_with_tarfile(data):
    """Return (name, bytes, offset) of each member, read by tarfile.

    Its offset excludes extended headers.
    """
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(m.name, archive.extractfile(m).read(), m.offset) for m in archive if m.isreg()]


def body(length, seed=0):
    return bytes((i * 7 + seed) % 251 for i in range(length))


def entry(name, kind=tarfile.REGTYPE, data=b"", **fields):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def archive(entries, format_=tarfile.USTAR_FORMAT, **options):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format_, **options) as out:
        for info, data in entries:
            out.addfile(info, io.BytesIO(data))
    return file.getvalue()


def files(*lengths, format_=tarfile.USTAR_FORMAT):
    return archive([entry(f"f{i}.csv", data=body(n, i)) for i, n in enumerate(lengths)], format_)


def header(name=b"x", *, size=0, kind=b"0", magic=b"ustar\x0000", **fields):
    """Return a handmade header block with the right checksum."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = size if isinstance(size, bytes) else b"%011o\0" % size
    block[156:157] = kind
    block[257 : 257 + len(magic)] = magic
    for at, value in fields.get("at", {}).items():
        block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(data):
    return data + bytes(-len(data) % 512)


def pax(**records):
    """Return the records of a pax extended header for the next member."""
    text = b""
    for key, value in records.items():
        pair = f" {key}={value}\n".encode("utf-8", "surrogateescape")
        length = len(pair) + len(str(len(pair)))
        length = len(pair) + len(str(length))
        text += str(length).encode() + pair
    return text


def pax_header(kind=b"x", **records):
    text = pax(**records)
    return header(b"pax", size=len(text), kind=kind) + padded(text)


END = bytes(1024)


# Comparison with tarfile


@for_each("size", SIZES)
@pytest.mark.parametrize("format_", FORMATS)
def test_members_match_tarfile(format_, size):
    """Short and long names, directories, links, and files of all lengths around a block."""
    long = "x" * 90 + "/" + "y" * 90 + ".csv" if format_ == "ustar" else LONG
    data = archive(
        [
            entry("folder", tarfile.DIRTYPE),
            *[entry(f"folder/{n}.csv", data=body(n)) for n in LENGTHS],
            entry("link", tarfile.SYMTYPE, linkname="folder/0.csv"),
            entry("hard", tarfile.LNKTYPE, linkname="folder/0.csv"),
            entry(long, data=body(700)),
            entry("target", tarfile.SYMTYPE, linkname=long[:99] if format_ == "ustar" else long),
            entry("pipe", tarfile.FIFOTYPE),
            entry("device", tarfile.CHRTYPE, devmajor=1, devminor=3),
            entry("ünï/日本.csv", data=b"last"),
        ],
        FORMATS[format_],
    )
    members_read, error = read_members(reuse_buffer(data, size))
    expected = read_with_tarfile(data)
    assert error is None
    assert [f[:2] for f in members_read] == [e[:2] for e in expected]
    assert len(members_read) == len(LENGTHS) + 2
    # Reading may begin at any of these offsets: extended headers belong to their member.
    for name, content, byte in members_read:
        rest, _ = read_members([data[byte:]], start_byte=byte)
        assert rest[0] == (name, content, byte)


@given(choice=st.data())
def test_any_archive_at_any_chunk_edges(choice):
    format_ = choice.draw(st.sampled_from(sorted(FORMATS.values())))
    lengths = choice.draw(st.lists(st.integers(0, 1600), max_size=5))
    names = st.text(st.sampled_from("ab/é."), min_size=1, max_size=60)
    entries = [entry(f"m{choice.draw(names)}{i}", data=body(n, i)) for i, n in enumerate(lengths)]
    data = archive(entries, format_)
    edges = choice.draw(st.lists(st.integers(0, len(data)), max_size=10))
    members_read, error = read_members(cut(data, edges))
    assert error is None
    assert [f[:2] for f in members_read] == [e[:2] for e in read_with_tarfile(data)]
    assert members_read == read_members([data])[0]


@for_each("size", [1, 513, 1 << 20])
def test_unread_members_are_skipped(size):
    """A reader that skips members, or stops within one, finds the next member."""
    data = files(3000, 1000, 0, 2000)
    names = []
    for index, member in enumerate(members(reuse_buffer(data, size))):
        names.append(member.name)
        if index % 2:
            next(member.pieces, None)
    assert names == ["f0.csv", "f1.csv", "f2.csv", "f3.csv"]


def test_large_members_are_views_of_the_chunks():
    data = files(100_000)
    member = next(members([data]))
    pieces = list(member.pieces)
    assert [type(p) for p in pieces] == [memoryview]
    assert pieces[0].obj is data


def test_sizes_in_base_256_and_in_pax_records():
    """Both encode sizes that are too large for octal digits."""
    data = body(600)
    base256 = header(b"gnu", size=b"\x80" + (600).to_bytes(11, "big")) + padded(data)
    by_pax = pax_header(size=600, path="pax") + header(b"no") + padded(data)
    members_read, error = read_members([base256 + by_pax + END])
    assert ([f[:2] for f in members_read], error) == ([("gnu", data), ("pax", data)], None)


def test_pax_global_records_apply_unless_overridden():
    data = pax_header(b"g", path="all") + header(b"a") + pax_header(path="own") + header(b"b") + header(b"c")
    assert [f[0] for f in read_members([data + END])[0]] == ["all", "own", "all"]


def test_solaris_pax_header_type_is_supported():
    assert read_members([pax_header(b"X", path="long") + header(b"short") + END])[0] == [("long", b"", 0)]


def test_non_utf8_names_round_trip():
    (members_read,), _ = read_members([header(b"caf\xe9.csv") + END])
    assert members_read[0].encode("utf-8", "surrogateescape") == b"caf\xe9.csv"


def test_pre_posix_archives_are_supported():
    """They have no magic or prefix, and directories end with a slash.

    Some writers summed signed bytes.
    """
    folder = header(b"dir/", kind=b"\0", magic=b"")
    file = header(b"dir/f", size=3, kind=b"\0", magic=b"", at={345: b"junk"}) + padded(b"abc")
    signed = bytearray(header(b"\xe9"))
    signed[148:156] = b"%06o\0 " % (sum(signed) - sum(signed[148:156]) + 8 * 32 - 256)
    assert [f[0] for f in read_members([folder + file + bytes(signed) + END])[0]] == ["dir/f", "\udce9"]


def test_link_with_a_size_has_no_content():
    """Some archivers state the size of the link's target."""
    data = header(b"l", size=5000, kind=b"1") + header(b"f", size=1) + padded(b"1") + END
    assert read_members([data]) == ([("f", b"1", 512)], None)


def test_unknown_types_are_skipped_with_their_content():
    data = header(b"v", size=700, kind=b"V") + padded(body(700)) + header(b"f", size=1) + padded(b"1") + END
    assert [f[0] for f in read_members([data])[0]] == ["f"]


# Sparse files


def _gnu_sparse(extended):
    """Return a member with GNU's old sparse header.

    The header has a map of four entries and a flag for further map blocks.
    """
    head = header(b"sparse.csv", size=512, kind=b"S", magic=b"ustar  \0", at={482: bytes([extended])})
    more = bytes(504) + b"\1" + bytes(7) + bytes(512) if extended else b""
    return head + more + body(512)


@pytest.mark.parametrize(
    "sparse",
    [
        _gnu_sparse(extended=False),
        _gnu_sparse(extended=True),
        pax_header(**{"GNU.sparse.major": 1, "GNU.sparse.minor": 0, "GNU.sparse.name": "sparse.csv"})
        + header(b"GNUSparseFile.0/sparse.csv", size=512)
        + body(512),
        pax_header(**{"GNU.sparse.size": 10, "GNU.sparse.numblocks": 1, "GNU.sparse.map": "0,1"})
        + header(b"sparse.csv", size=512)
        + body(512),
    ],
    ids=["gnu", "gnu with a long map", "pax 1.0", "pax 0.1"],
)
@for_each("size", [1, 512, 1 << 20])
def test_sparse_file_is_unreadable_and_the_next_member_is_read(sparse, size):
    data = sparse + header(b"next.csv", size=2) + padded(b"ok") + END
    first, second = [
        (m.name, m.unreadable_reason, b"".join(map(bytes, m.pieces)))
        for m in members(reuse_buffer(data, size))
    ]
    assert first == ("sparse.csv", "it is a sparse file; archive it without --sparse", body(512))
    assert second == ("next.csv", None, b"ok")


# End of the archive


@for_each("end", [b"", bytes(512), bytes(1024), bytes(10_240)])
def test_supported_archive_ends(end):
    data = header(b"f", size=2) + padded(b"ok")
    for size in (1, 512, 1 << 20):
        assert read_members(reuse_buffer(data + end, size)) == ([("f", b"ok", 0)], None)


@for_each("data", [b"", bytes(512), bytes(10_240)])
def test_archive_without_members(data):
    assert read_members([data]) == ([], None)


def test_trailing_data_is_ignored():
    """An example is a signature; no archiver reads it."""
    data = files(100) + b"signed by somebody" * 100
    for size in (7, 1 << 20):
        members_read, error = read_members(reuse_buffer(data, size))
        assert (len(members_read), error) == (1, None)


@for_each("zeros", [512, 1024, 9000 // 512 * 512])
@for_each("size", [7, 512, 1 << 20])
def test_members_after_the_end_are_corrupt(zeros, size):
    """Two concatenated archives, or a gap after a crash. tarfile silently stops there."""
    first = header(b"a", size=2) + padded(b"ok")
    data = first + bytes(zeros) + files(10)
    members_read, error = read_members(reuse_buffer(data, size))
    assert [f[0] for f in members_read] == ["a"]
    assert type(error) is CorruptError
    assert error.byte == len(first) + zeros
    assert f"continues at byte {error.byte}" in error.why


def test_the_chunks_are_read_to_their_end():
    """A wrong checksum of the compressed archive is detected only after its zeros."""

    def chunks():
        yield files(100)
        yield bytes(512)
        raise CorruptError("wrong checksum", byte=9)

    members_read, error = read_members(chunks())
    assert len(members_read) == 1
    assert error.why == "wrong checksum"


# Truncation and damage


@for_each("size", [1, 512, 1 << 20])
@for_each(
    ("length", "within", "begin"),
    [
        (1, "a header", 0),
        (511, "a header", 0),
        (512, "member 'f0.csv'", 512),
        (1000, "member 'f0.csv'", 512),
        (512 + 600, "member 'f0.csv'", 512),
        (512 + 700, "member 'f0.csv'", 512),
        (1536 + 5, "a header", 1536),
        (1536 + 512 + 9, "member 'f1.csv'", 2048),
    ],
)
def test_truncated_archive_names_the_offset(length, within, begin, size):
    """The cut is in a header, in the content, or in the padding.

    Complete members are yielded before.
    """
    data = files(600, 30)[:length]
    members_read, error = read_members(reuse_buffer(data, size))
    assert isinstance(error, TruncatedError)
    assert error.byte == length
    assert f"at byte {length}, within {within} that begins at byte {begin}" in error.why
    assert [f[0] for f in members_read] == (["f0.csv"] if length >= 1112 else [])


def test_truncated_extended_header_names_the_offset():
    whole = pax_header(path="p" * 600)
    for length, within in ((600, "an extended header"), (len(whole), "a header")):
        members_read, error = read_members([whole[:length]])
        assert isinstance(error, TruncatedError)
        assert within in error.why
        assert (members_read, error.byte) == ([], length)


@given(choice=st.data())
def test_complete_members_before_any_cut_are_yielded(choice):
    data = files(600, 0, 30, format_=tarfile.PAX_FORMAT)
    whole, _ = read_members([data])
    length = choice.draw(st.integers(0, len(data)))
    members_read, error = read_members(
        cut(data[:length], choice.draw(st.lists(st.integers(0, length), max_size=3)))
    )
    assert members_read == whole[: len(members_read)]
    assert len(members_read) == sum(byte + 512 + len(content) <= length for _, content, byte in whole)
    assert error is None or error.byte == length


@for_each("size", [7, 512, 1 << 20])
def test_header_with_a_wrong_checksum_is_corrupt(size):
    data = bytearray(files(600, 30, 5))
    data[1536] ^= 1
    members_read, error = read_members(reuse_buffer(bytes(data), size))
    assert [f[0] for f in members_read] == ["f0.csv"]
    assert type(error) is CorruptError
    assert error.byte == 1536
    assert "no valid tar header at byte 1536 (wrong checksum)" in error.why


@for_each("data", [b"a,b\n1,2\n" * 100, b"\x1f\x8b\x08" * 400, b"\xff" * 600])
def test_non_archive_is_rejected(data):
    members_read, error = read_members([data])
    assert (members_read, error.byte) == ([], 0)
    assert "not a tar archive" in error.why


def test_garbage_in_place_of_a_header_is_corrupt():
    data = header(b"f", size=2) + padded(b"ok") + b"garbage" * 100
    members_read, error = read_members([data])
    assert ([f[0] for f in members_read], error.byte) == (["f"], 1024)


@for_each(
    "size",
    [b"\xff" * 12, b"\x80" + b"\xff" * 11, b"-0000000001\0", b"0000000009x\0"],
)
def test_invalid_sizes_are_corrupt(size):
    members_read, error = read_members([header(b"good") + header(b"bad", size=size) + END])
    assert ([f[0] for f in members_read], error.byte) == (["good"], 512)


@for_each(
    "text",
    [b"nonsense", b"8 path=x\n", b"99 path=x\n", b"7 path\n\n", b"-1 path=x\n", b"11 path=xyz"],
)
def test_malformed_pax_headers_are_corrupt(text):
    data = header(b"good") + header(b"pax", size=len(text), kind=b"x") + padded(text) + header(b"f") + END
    members_read, error = read_members([data])
    assert ([f[0] for f in members_read], error.byte) == (["good"], 512)
    assert "the pax header at byte 512 is malformed" in error.why


@for_each("size", ["-1", "1e3", "٣", "9" * 19])
def test_invalid_pax_sizes_are_corrupt(size):
    _, error = read_members([pax_header(size=size) + header(b"f") + END])
    assert type(error) is CorruptError
    assert "has an invalid size" in error.why


@for_each("kind", [b"x", b"g", b"L", b"K"])
def test_extended_header_size_is_limited(kind):
    """A header that claims gigabytes is rejected before they are read."""
    claims = EXTENDED_HEADER_BYTES_MAX + 1
    read = []

    def chunks():
        for chunk in [header(b"good"), header(b"pax", size=claims, kind=kind), *[bytes(1 << 20)] * 9]:
            read.append(len(chunk))
            yield chunk

    members_read, error = read_members(chunks())
    assert ([f[0] for f in members_read], error.byte) == (["good"], 512)
    assert f"claims {claims} bytes" in error.why
    assert len(read) == 2


def test_pax_records_are_bounded_in_memory():
    """Each header has a different key."""
    from headrace.formats import tar

    defaults: dict[str, str] = {}
    data = b"".join(pax_header(b"g", **{f"key{i}": "v" * 900, f"GNU.sparse.k{i}": 1}) for i in range(50))
    tar._next_header(tar._ByteSource([data + header(b"f") + END], 0), defaults)
    assert len(defaults) <= 4


@settings(max_examples=examples(2))
@given(choice=st.data())
def test_damage_raises_only_corrupt_errors(choice):
    data = bytearray(files(600, 0, 30, format_=tarfile.PAX_FORMAT))
    for at in choice.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=5)):
        data[at] = choice.draw(st.integers(0, 255))
    read_members([bytes(data)])


def test_handmade_headers_are_valid():
    """tarfile reads them, so the tests above use valid archives."""
    data = pax_header(path="long") + header(b"f", size=3) + padded(b"abc") + END
    assert [e[:2] for e in read_with_tarfile(data)] == [("long", b"abc")]
    assert struct.calcsize("512x") == len(header())
