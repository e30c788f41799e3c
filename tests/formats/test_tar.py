"""Tar as a stream: what Python's tarfile reads, wherever chunks are cut; and damage told with its offset."""

import io
import struct
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.chunks import cut, reused
from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.tar import EXTENDED_HEADER_BYTES_MAX, members

SIZES = [1, 7, 511, 512, 513, 4096, 1 << 20]
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG = "folder/" * 30 + "a-name-longer-than-any-header-holds-" * 3 + ".csv"
LENGTHS = [0, 1, 511, 512, 513, 1024, 3000]


def walk(chunks, **options):
    """(name, bytes, header's offset) of each member, and the error that ended the walk."""
    found, error = [], None
    try:
        for member in members(chunks, **options):
            data = b"".join(bytes(piece) for piece in member.pieces)
            assert len(data) == member.size
            found.append((member.name, data, member.header_byte))
    except CorruptError as caught:
        error = caught
    return found, error


def by_tarfile(data):
    """The same by tarfile; it has no offset of the first extended header, so that is taken by its `offset`."""
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
    """A header block, by hand, with the right checksum."""
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
    """A pax extended header for the next member."""
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


# The same as tarfile


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("format_", FORMATS)
def test_names_bytes_and_offsets_are_tarfiles(format_, size):
    """Short names and long ones, folders, links, and files of all lengths around a block's."""
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
    found, error = walk(reused(data, size))
    expected = by_tarfile(data)
    assert error is None
    assert [f[:2] for f in found] == [e[:2] for e in expected]
    assert len(found) == len(LENGTHS) + 2
    # Reading may begin at any of these offsets: extended headers belong to their member.
    for name, content, byte in found:
        rest, _ = walk([data[byte:]], start_byte=byte)
        assert rest[0] == (name, content, byte)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(choice=st.data())
def test_any_archive_cut_anywhere(choice):
    format_ = choice.draw(st.sampled_from(sorted(FORMATS.values())))
    lengths = choice.draw(st.lists(st.integers(0, 1600), max_size=5))
    names = st.text(st.sampled_from("ab/é."), min_size=1, max_size=60)
    entries = [entry(f"m{choice.draw(names)}{i}", data=body(n, i)) for i, n in enumerate(lengths)]
    data = archive(entries, format_)
    edges = choice.draw(st.lists(st.integers(0, len(data)), max_size=10))
    found, error = walk(cut(data, edges))
    assert error is None
    assert [f[:2] for f in found] == [e[:2] for e in by_tarfile(data)]
    assert found == walk([data])[0]


@pytest.mark.parametrize("size", [1, 513, 1 << 20])
def test_members_not_taken_or_taken_in_part_are_skipped(size):
    """A reader that wants only some of them, or stops within one, finds the next."""
    data = files(3000, 1000, 0, 2000)
    names = []
    for index, member in enumerate(members(reused(data, size))):
        names.append(member.name)
        if index % 2:
            next(member.pieces, None)
    assert names == ["f0.csv", "f1.csv", "f2.csv", "f3.csv"]


def test_large_bodies_are_views_of_the_chunks():
    """Nothing is copied that need not be."""
    data = files(100_000)
    member = next(members([data]))
    pieces = list(member.pieces)
    assert [type(p) for p in pieces] == [memoryview]
    assert pieces[0].obj is data


def test_a_size_too_large_for_octal_digits():
    """GNU's base-256, and pax's own record."""
    data = body(600)
    base256 = header(b"gnu", size=b"\x80" + (600).to_bytes(11, "big")) + padded(data)
    by_pax = pax_header(size=600, path="pax") + header(b"no") + padded(data)
    found, error = walk([base256 + by_pax + END])
    assert ([f[:2] for f in found], error) == ([("gnu", data), ("pax", data)], None)


def test_pax_global_records_hold_for_all_that_follow_and_own_ones_go_before():
    data = pax_header(b"g", path="all") + header(b"a") + pax_header(path="own") + header(b"b") + header(b"c")
    assert [f[0] for f in walk([data + END])[0]] == ["all", "own", "all"]


def test_solaris_writes_pax_with_another_letter():
    assert walk([pax_header(b"X", path="long") + header(b"short") + END])[0] == [("long", b"", 0)]


def test_names_that_are_no_utf8_come_back_as_they_were():
    (found,), _ = walk([header(b"caf\xe9.csv") + END])
    assert found[0].encode("utf-8", "surrogateescape") == b"caf\xe9.csv"


def test_archives_older_than_posix():
    """No magic; a folder is a name with a slash; some summed signed bytes; a prefix is none of theirs."""
    folder = header(b"dir/", kind=b"\0", magic=b"")
    file = header(b"dir/f", size=3, kind=b"\0", magic=b"", at={345: b"junk"}) + padded(b"abc")
    signed = bytearray(header(b"\xe9"))
    signed[148:156] = b"%06o\0 " % (sum(signed) - sum(signed[148:156]) + 8 * 32 - 256)
    assert [f[0] for f in walk([folder + file + bytes(signed) + END])[0]] == ["dir/f", "\udce9"]


def test_links_hold_no_bytes_whatever_size_they_state():
    """Some archivers state the size of the file that a link points to."""
    data = header(b"l", size=5000, kind=b"1") + header(b"f", size=1) + padded(b"1") + END
    assert walk([data]) == ([("f", b"1", 512)], None)


def test_kinds_that_nobody_knows_are_passed_over_with_their_bytes():
    data = header(b"v", size=700, kind=b"V") + padded(body(700)) + header(b"f", size=1) + padded(b"1") + END
    assert [f[0] for f in walk([data])[0]] == ["f"]


# Sparse files


def _gnu_sparse(extended):
    """GNU's own header: four pieces of the map in it, a flag for more behind it."""
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
@pytest.mark.parametrize("size", [1, 512, 1 << 20])
def test_sparse_files_say_why_they_cannot_be_read_and_the_next_can(sparse, size):
    data = sparse + header(b"next.csv", size=2) + padded(b"ok") + END
    first, second = [(m.name, m.refused, b"".join(map(bytes, m.pieces))) for m in members(reused(data, size))]
    assert first == ("sparse.csv", "it is a sparse file; archive it without --sparse", body(512))
    assert second == ("next.csv", None, b"ok")


# The end


@pytest.mark.parametrize("end", [b"", bytes(512), bytes(1024), bytes(10_240)])
def test_ends_that_archives_have(end):
    data = header(b"f", size=2) + padded(b"ok")
    for size in (1, 512, 1 << 20):
        assert walk(reused(data + end, size)) == ([("f", b"ok", 0)], None)


@pytest.mark.parametrize("data", [b"", bytes(512), bytes(10_240)])
def test_archives_without_members(data):
    assert walk([data]) == ([], None)


def test_what_somebody_appended_is_passed_over():
    """Such as a signature; no archiver reads it."""
    data = files(100) + b"signed by somebody" * 100
    for size in (7, 1 << 20):
        found, error = walk(reused(data, size))
        assert (len(found), error) == (1, None)


@pytest.mark.parametrize("zeros", [512, 1024, 9000 // 512 * 512])
@pytest.mark.parametrize("size", [7, 512, 1 << 20])
def test_members_behind_the_end_are_not_lost_silently(zeros, size):
    """Two archives one behind the other, or a hole that a crash left: tarfile stops there and says nothing."""
    first = header(b"a", size=2) + padded(b"ok")
    data = first + bytes(zeros) + files(10)
    found, error = walk(reused(data, size))
    assert [f[0] for f in found] == ["a"]
    assert type(error) is CorruptError
    assert error.byte == len(first) + zeros
    assert f"goes on at byte {error.byte}" in error.why


def test_the_chunks_are_read_to_their_end():
    """A wrong checksum of the compressed archive stands behind its zeros."""

    def chunks():
        yield files(100)
        yield bytes(512)
        raise CorruptError("wrong checksum", byte=9)

    found, error = walk(chunks())
    assert len(found) == 1
    assert error.why == "wrong checksum"


# Damage


@pytest.mark.parametrize("size", [1, 512, 1 << 20])
@pytest.mark.parametrize(
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
def test_an_archive_that_ends_early(length, within, begin, size):
    """In a header, a body, or the padding behind one; what was whole came before."""
    data = files(600, 30)[:length]
    found, error = walk(reused(data, size))
    assert isinstance(error, TruncatedError)
    assert error.byte == length
    assert f"at byte {length}, within {within} that begins at byte {begin}" in error.why
    assert [f[0] for f in found] == (["f0.csv"] if length >= 1112 else [])


def test_an_archive_that_ends_within_an_extended_header():
    whole = pax_header(path="p" * 600)
    for length, within in ((600, "an extended header"), (len(whole), "a header")):
        found, error = walk([whole[:length]])
        assert isinstance(error, TruncatedError)
        assert within in error.why
        assert (found, error.byte) == ([], length)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(choice=st.data())
def test_cut_anywhere_all_whole_members_came(choice):
    data = files(600, 0, 30, format_=tarfile.PAX_FORMAT)
    whole, _ = walk([data])
    length = choice.draw(st.integers(0, len(data)))
    found, error = walk(cut(data[:length], choice.draw(st.lists(st.integers(0, length), max_size=3))))
    assert found == whole[: len(found)]
    assert len(found) == sum(byte + 512 + len(content) <= length for _, content, byte in whole)
    assert error is None or error.byte == length


@pytest.mark.parametrize("size", [7, 512, 1 << 20])
def test_a_header_with_a_wrong_checksum(size):
    data = bytearray(files(600, 30, 5))
    data[1536] ^= 1
    found, error = walk(reused(bytes(data), size))
    assert [f[0] for f in found] == ["f0.csv"]
    assert type(error) is CorruptError
    assert error.byte == 1536
    assert "no tar header at byte 1536 (its checksum is wrong)" in error.why


@pytest.mark.parametrize("data", [b"a,b\n1,2\n" * 100, b"\x1f\x8b\x08" * 400, b"\xff" * 600])
def test_what_is_no_archive(data):
    found, error = walk([data])
    assert (found, error.byte) == ([], 0)
    assert "or is no tar" in error.why


def test_garbage_in_the_place_of_a_header():
    data = header(b"f", size=2) + padded(b"ok") + b"garbage" * 100
    found, error = walk([data])
    assert ([f[0] for f in found], error.byte) == (["f"], 1024)


@pytest.mark.parametrize(
    "size",
    [b"\xff" * 12, b"\x80" + b"\xff" * 11, b"-0000000001\0", b"0000000009x\0"],
    ids=["negative", "astronomical", "minus", "not octal"],
)
def test_sizes_that_cannot_be(size):
    found, error = walk([header(b"good") + header(b"bad", size=size) + END])
    assert ([f[0] for f in found], error.byte) == (["good"], 512)


@pytest.mark.parametrize(
    "text",
    [b"nonsense", b"8 path=x\n", b"99 path=x\n", b"7 path\n\n", b"-1 path=x\n", b"11 path=xyz"],
)
def test_pax_headers_that_are_malformed(text):
    data = header(b"good") + header(b"pax", size=len(text), kind=b"x") + padded(text) + header(b"f") + END
    found, error = walk([data])
    assert ([f[0] for f in found], error.byte) == (["good"], 512)
    assert "the pax header at byte 512 is malformed" in error.why


@pytest.mark.parametrize("size", ["-1", "1e3", "٣", "9" * 19])
def test_pax_sizes_that_are_no_numbers(size):
    _, error = walk([pax_header(size=size) + header(b"f") + END])
    assert type(error) is CorruptError
    assert "gives the size as" in error.why


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_extended_headers_are_bounded(kind):
    """A header that claims gigabytes is refused before they are read."""
    claims = EXTENDED_HEADER_BYTES_MAX + 1
    read = []

    def chunks():
        for chunk in [header(b"good"), header(b"pax", size=claims, kind=kind), *[bytes(1 << 20)] * 9]:
            read.append(len(chunk))
            yield chunk

    found, error = walk(chunks())
    assert ([f[0] for f in found], error.byte) == (["good"], 512)
    assert f"claims {claims} bytes" in error.why
    assert len(read) == 2


def test_many_extended_headers_leave_nothing_behind():
    """Each with a key of its own: what is kept of them does not grow."""
    from headrace.formats import tar

    defaults: dict[str, str] = {}
    data = b"".join(pax_header(b"g", **{f"key{i}": "v" * 900, f"GNU.sparse.k{i}": 1}) for i in range(50))
    tar._next_header(tar._Source([data + header(b"f") + END], 0), defaults)
    assert len(defaults) <= 4


@settings(max_examples=80, deadline=None, derandomize=True)
@given(choice=st.data())
def test_damage_anywhere_raises_nothing_else(choice):
    data = bytearray(files(600, 0, 30, format_=tarfile.PAX_FORMAT))
    for at in choice.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=5)):
        data[at] = choice.draw(st.integers(0, 255))
    walk([bytes(data)])


def test_the_header_made_here_is_right():
    """tarfile reads it, so what is tested above is an archive."""
    data = pax_header(path="long") + header(b"f", size=3) + padded(b"abc") + END
    assert [e[:2] for e in by_tarfile(data)] == [("long", b"abc")]
    assert struct.calcsize("512x") == len(header())
