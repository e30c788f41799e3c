"""Tar archives as streams: ustar, pax and GNU long names, walked without a copy of what members hold.

Arrives: chunks cut anywhere. Leaves: members with their bytes as views into the chunks. Nothing is ever written to
disk, and a member's name is never used as a path. The layout is POSIX.1-2001 pax and GNU tar's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import adler32

from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.contract import Buffer

BLOCK = 512
EXTENDED_HEADER_BYTES_MAX = 1 << 20
"""The longest pax header or GNU long name that is read: real ones are below some kilobytes."""

_ZEROS = bytes(BLOCK)
_FILE_TYPES = frozenset(b"0\x007")
_EXTENDED = frozenset(b"xXgLK")  # X is Solaris' x
_HOLDS_NOTHING = frozenset(b"123456")  # links, devices, folders, pipes
_SPARSE_GNU = ord("S")
_NUMBER_MAX = 1 << 62
_DIGITS_MAX = 18  # a number below 10**18 fits everywhere
_PAX_KEYS = frozenset(("path", "size", "GNU.sparse.name"))
_PAX_SPARSE = "GNU.sparse."


@dataclass(slots=True)
class Member:
    """One file of an archive. `pieces` must be taken before the next member is; what is left of it is skipped.

    `refused` says why its bytes cannot be read as they stand (a sparse file); then `pieces` gives the raw ones.
    """

    name: str
    size: int
    header_byte: int
    pieces: Iterator[Buffer]
    refused: str | None = None


@dataclass(slots=True)
class _Header:
    name: str
    size: int
    kind: int
    byte: int
    sparse: bool = False


def members(chunks: Iterable[Buffer], *, start_byte: int = 0) -> Iterator[Member]:
    """The regular files of an archive, in order; folders, links and devices hold no bytes and are passed over.

    `start_byte` is where in the archive the chunks begin (a member's header), for the offsets that are reported; what
    pax global headers before it said is then not known. An archive ends with a zero block or, cut cleanly, behind a
    member. The chunks are read to their end, so that damage there is noticed by whoever makes them; what stands behind
    the archive's end is passed over, unless it is more of an archive.

    Raises:
        TruncatedError: the archive ends within a header or member.
        CorruptError: a header is damaged, or stands behind the archive's end (two archives in one, or a hole in this
            one). Both tell the offset, and are raised after everything before was given.
    """
    source = _Source(chunks, start_byte)
    defaults: dict[str, str] = {}
    while (header := _next_header(source, defaults)) is not None:
        end = source.at + _padded(header.size)
        name, begin = header.name, source.at
        if header.kind in _FILE_TYPES or header.sparse:
            why = "it is a sparse file; archive it without --sparse" if header.sparse else None
            yield Member(name, header.size, header.byte, source.pieces(begin + header.size, name, begin), why)
        try:
            for _ in source.pieces(end, name, begin):
                pass
        except CorruptError as error:
            raise error.at(None, name) from error
    _pass_over_rest(source)


def _pass_over_rest(source: "_Source") -> None:
    """Read what stands behind the end: zeros, or what somebody appended; CorruptError for more of an archive."""
    while block := source.block():
        if block == _ZEROS or not _is_header(block):
            continue
        byte = source.at - BLOCK
        raise CorruptError(
            f"the archive goes on at byte {byte}, behind the zeros that end it: it is two archives in one, or a part "
            "of it was overwritten with zeros; unpack it and archive it anew",
            byte=byte,
        )


def _is_header(block: bytes) -> bool:
    if len(block) < BLOCK:
        return False
    try:
        _parse(block, 0)
    except CorruptError:
        return False
    return True


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _next_header(source: "_Source", defaults: dict[str, str]) -> _Header | None:
    """The next real header, with what extended headers before it say; None at the archive's end."""
    own: dict[str, str] = {}
    first_byte = source.at
    while True:
        byte = source.at
        block = source.take(BLOCK, "a header", may_end=byte == first_byte)
        if block is None or block == _ZEROS:
            return None
        header = _parse(block, byte)
        if header.kind not in _EXTENDED:
            break
        _read_extended(source, header, own, defaults)
    header.byte = first_byte
    if header.kind == _SPARSE_GNU:
        _skip_sparse_map(source, block)
    return _completed(header, own, defaults)


def _read_extended(source: "_Source", header: _Header, own: dict[str, str], defaults: dict[str, str]) -> None:
    """What a header that speaks of the next one says: a pax header, of one member or all, or a GNU long name."""
    if header.size > EXTENDED_HEADER_BYTES_MAX:
        raise CorruptError(
            f"the extended header at byte {header.byte} claims {header.size} bytes (more than "
            f"{EXTENDED_HEADER_BYTES_MAX})",
            byte=header.byte,
        )
    data = (source.take(_padded(header.size), "an extended header") or b"")[: header.size]
    if header.kind in b"xX":
        own.update(_pax_records(data, header.byte))
    elif header.kind == ord("g"):
        defaults.update(_pax_records(data, header.byte))
    elif header.kind == ord("L"):
        own["path"] = _text(data)


def _skip_sparse_map(source: "_Source", block: bytes) -> None:
    """GNU's older sparse files have more of their map in blocks behind the header, which its size does not count."""
    more = block[482]
    while more:
        more = (source.take(BLOCK, "a sparse file's map") or b"")[504]


def _completed(header: _Header, own: dict[str, str], defaults: dict[str, str]) -> _Header:
    """The header with what the extended ones before it said, which goes before its own."""
    if own or defaults:
        said = defaults | own
        header.name = said.get("GNU.sparse.name") or said.get("path") or header.name
        if said.get("size"):
            header.size = _whole_number(said["size"], header.byte)
    header.sparse = header.kind == _SPARSE_GNU or _PAX_SPARSE in own
    if header.kind == 0 and header.name.endswith("/"):
        header.kind = ord("5")  # how archivers before POSIX wrote a folder
    if header.kind in _HOLDS_NOTHING:
        header.size = 0  # what it states is the size of what it points to, or a hint
    return header


def _whole_number(text: str, byte: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        raise CorruptError(f"the pax header at byte {byte} gives the size as {text[:40]!r}", byte=byte)
    return int(text)


def _parse(block: bytes, byte: int) -> _Header:
    """A header block; CorruptError unless its checksum is right."""
    stated = _number(block[148:156], byte)
    unsigned = _sum(block[:256]) + _sum(block[256:]) - _sum(block[148:156]) + 8 * 0x20
    if stated != unsigned:
        high = sum(b > 127 for b in block[:148]) + sum(b > 127 for b in block[156:])
        if stated != unsigned - 256 * high:  # some old archivers summed signed bytes
            raise CorruptError(
                f"no tar header at byte {byte} (its checksum is wrong): the archive is damaged there, or is no tar",
                byte=byte,
            )
    name = _text(block[:100])
    if block[345] and block[257:263] == b"ustar\0":
        name = f"{_text(block[345:500])}/{name}"
    return _Header(name, _number(block[124:136], byte), block[156], byte)


def _sum(data: bytes) -> int:
    """The sum of at most 256 bytes: Adler-32's lower half is one more than that, and does not wrap so soon."""
    return (adler32(data) & 0xFFFF) - 1


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _number(field: bytes, byte: int) -> int:
    """Octal text, or base-256 with the top bit set (GNU)."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if not field[0] & 0x40 and value <= _NUMBER_MAX:
            return value
    text = field.split(b"\0", 1)[0].strip()
    if not text.strip(b"01234567"):
        return int(text or b"0", 8)
    raise CorruptError(
        f"no tar header at byte {byte} (a number in it is {text!r}): the archive is damaged there, or is no tar",
        byte=byte,
    )


def _pax_records(data: bytes, byte: int) -> dict[str, str]:
    r"""``LENGTH KEY=VALUE\n``, as often as there are; of these what is used, so that what is kept is bounded."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data) and data[at] != 0:
        space = data.find(b" ", at, at + 20)
        length = int(data[at:space]) if space > at and data[at:space].isdigit() else 0
        record = data[space + 1 : at + length - 1]
        key, equals, value = record.partition(b"=")
        if length < 5 or at + length > len(data) or not equals or data[at + length - 1] != 0x0A:
            raise CorruptError(f"the pax header at byte {byte} is malformed", byte=byte)
        name = key.decode("utf-8", "surrogateescape")
        if name in _PAX_KEYS:
            found[name] = value.decode("utf-8", "surrogateescape")
        if name.startswith(_PAX_SPARSE):
            found[_PAX_SPARSE] = "yes"
        at += length
    return found


class _Source:
    """Chunks as one stream with a position; gives views, and copies only what crosses chunks."""

    def __init__(self, chunks: Iterable[Buffer], start_byte: int) -> None:
        self._chunks = iter(chunks)
        self._view = memoryview(b"")
        self.at = start_byte

    def _fill(self) -> bool:
        """Make sure that there is a byte to give; False at the end."""
        while not self._view:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._view = memoryview(chunk)
        return True

    def _give(self, size: int) -> memoryview:
        piece, self._view = self._view[:size], self._view[size:]
        self.at += len(piece)
        return piece

    def take(self, size: int, what: str, *, may_end: bool = False) -> bytes | None:
        """Exactly `size` bytes, copied; None at a clean end where that is allowed."""
        if len(self._view) >= size:
            return bytes(self._give(size))
        begin = self.at
        parts: list[bytes] = []
        missing = size
        while missing:
            if not self._fill():
                if may_end and not parts:
                    return None
                raise _truncated(what, begin, self.at)
            piece = self._give(missing)
            missing -= len(piece)
            parts.append(bytes(piece))
        return b"".join(parts)

    def pieces(self, end: int, name: str, begin: int) -> Iterator[Buffer]:
        """The bytes up to offset `end`, as views: of the member whose own begin at `begin`, and of its padding."""
        while self.at < end:
            if not self._fill():
                raise _truncated(f"member {name!r}", begin, self.at)
            yield self._give(end - self.at)

    def block(self) -> bytes:
        """The next block; less at the end."""
        parts: list[bytes] = []
        missing = BLOCK
        while missing and self._fill():
            parts.append(bytes(self._give(missing)))
            missing -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _truncated(what: str, begin: int, at: int) -> TruncatedError:
    return TruncatedError(
        f"the archive ends early, at byte {at}, within {what} that begins at byte {begin}: the upload or the "
        "program that wrote it was cut short; fetch or write it again",
        byte=at,
    )
