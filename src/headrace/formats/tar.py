"""Read tar archives (ustar, pax, GNU long names) as streams, without copying member content.

The input is chunks of any size; the output is members whose bytes are views into the chunks.
Nothing is written to disk, and a member's name is never used as a path. The layout is that of
POSIX.1-2001 pax and GNU tar.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import adler32

from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.contract import ArchiveMember, Buffer

BLOCK = 512
EXTENDED_HEADER_BYTES_MAX = 1 << 20
"""The longest pax header or GNU long name that is read. Real headers have a few kilobytes at most."""

_ZEROS = bytes(BLOCK)
_FILE_TYPES = frozenset(b"0\x007")
_EXTENDED_TYPES = frozenset(b"xXgLK")  # X is the Solaris variant of x.
_TYPES_WITHOUT_DATA = frozenset(b"123456")  # Links, devices, directories, pipes.
_SPARSE_GNU = ord("S")
_NUMBER_MAX = 1 << 62
_DIGITS_MAX = 18  # A number below 10**18 fits in all integer types.
_PAX_KEYS = frozenset(("path", "size", "GNU.sparse.name"))
_PAX_SPARSE = "GNU.sparse."


@dataclass(slots=True)
class _Header:
    name: str
    size: int
    kind: int
    byte: int
    sparse: bool = False


def members(chunks: Iterable[Buffer], *, start_byte: int = 0) -> Iterator[ArchiveMember]:
    """Yield the regular files of an archive in order. Directories, links and devices are skipped.

    `start_byte` is the offset of the chunks in the archive (a member's header), used in reported
    offsets. Earlier pax global headers are then unknown. An archive ends with a zero block or, if
    it was cut cleanly, after a member. The chunks are read to their end, so that their producer
    detects damage there. Bytes after the end of the archive are ignored unless they contain another
    tar header.

    Raises:
        TruncatedError: The archive ends within a header or member.
        CorruptError: A header is damaged, or follows the end of the archive (two archives in one
            file, or a gap in this archive). Both errors name the offset, and are raised after
            everything before was yielded.
    """
    source = _ByteSource(chunks, start_byte)
    defaults: dict[str, str] = {}
    while (header := _next_header(source, defaults)) is not None:
        end = source.at + _padded(header.size)
        name, begin = header.name, source.at
        if header.kind in _FILE_TYPES or header.sparse:
            why = "it is a sparse file; archive it without --sparse" if header.sparse else None
            yield ArchiveMember(
                name, header.size, header.byte, source.pieces(begin + header.size, name, begin), why
            )
        try:
            for _ in source.pieces(end, name, begin):
                pass
        except CorruptError as error:
            raise error.with_location(None, name) from error
    _check_trailing_bytes(source)


def _check_trailing_bytes(source: "_ByteSource") -> None:
    """Read the bytes after the end of the archive. Raise CorruptError if they contain a tar header."""
    while block := source.block():
        if block == _ZEROS or not _is_header(block):
            continue
        byte = source.at - BLOCK
        raise CorruptError(
            f"the archive continues at byte {byte}, after the zeros that end it: it is two archives in one "
            "file, or a part of it was overwritten with zeros; unpack it and archive it again",
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


def _next_header(source: "_ByteSource", defaults: dict[str, str]) -> _Header | None:
    """Return the next member header with its extended headers applied; None at the end."""
    overrides: dict[str, str] = {}
    first_byte = source.at
    while True:
        byte = source.at
        block = source.read_exactly(BLOCK, "a header", allow_end=byte == first_byte)
        if block is None or block == _ZEROS:
            return None
        header = _parse(block, byte)
        if header.kind not in _EXTENDED_TYPES:
            break
        _read_extended(source, header, overrides, defaults)
    header.byte = first_byte
    if header.kind == _SPARSE_GNU:
        _skip_sparse_map(source, block)
    return _apply_extended(header, overrides, defaults)


def _read_extended(
    source: "_ByteSource", header: _Header, overrides: dict[str, str], defaults: dict[str, str]
) -> None:
    """Read an extended header: a pax header, of one member or global, or a GNU long name."""
    if header.size > EXTENDED_HEADER_BYTES_MAX:
        raise CorruptError(
            f"the extended header at byte {header.byte} claims {header.size} bytes (more than "
            f"{EXTENDED_HEADER_BYTES_MAX})",
            byte=header.byte,
        )
    data = (source.read_exactly(_padded(header.size), "an extended header") or b"")[: header.size]
    if header.kind in b"xX":
        overrides.update(_pax_records(data, header.byte))
    elif header.kind == ord("g"):
        defaults.update(_pax_records(data, header.byte))
    elif header.kind == ord("L"):
        overrides["path"] = _text(data)


def _skip_sparse_map(source: "_ByteSource", block: bytes) -> None:
    """Skip the blocks of a sparse map in the old GNU format. The header's size excludes them."""
    more = block[482]
    while more:
        more = (source.read_exactly(BLOCK, "a sparse file's map") or b"")[504]


def _apply_extended(header: _Header, overrides: dict[str, str], defaults: dict[str, str]) -> _Header:
    """Return the header with the extended headers applied. They take precedence."""
    if overrides or defaults:
        records = defaults | overrides
        header.name = records.get("GNU.sparse.name") or records.get("path") or header.name
        if records.get("size"):
            header.size = _whole_number(records["size"], header.byte)
    header.sparse = header.kind == _SPARSE_GNU or _PAX_SPARSE in overrides
    if header.kind == 0 and header.name.endswith("/"):
        header.kind = ord("5")  # Archivers before POSIX wrote directories as files.
    if header.kind in _TYPES_WITHOUT_DATA:
        header.size = 0  # The stated size is that of the link's target, or a hint.
    return header


def _whole_number(text: str, byte: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        raise CorruptError(f"the pax header at byte {byte} has an invalid size: {text[:40]!r}", byte=byte)
    return int(text)


def _parse(block: bytes, byte: int) -> _Header:
    """Parse a header block. Raise CorruptError if its checksum is wrong."""
    stated = _number(block[148:156], byte)
    unsigned = _sum(block[:256]) + _sum(block[256:]) - _sum(block[148:156]) + 8 * 0x20
    if stated != unsigned:
        high = sum(b > 127 for b in block[:148]) + sum(b > 127 for b in block[156:])
        if stated != unsigned - 256 * high:  # Some old archivers summed signed bytes.
            raise CorruptError(
                f"no valid tar header at byte {byte} (wrong checksum): the archive is damaged there, or it "
                "is not a tar archive",
                byte=byte,
            )
    name = _text(block[:100])
    if block[345] and block[257:263] == b"ustar\0":
        name = f"{_text(block[345:500])}/{name}"
    return _Header(name, _number(block[124:136], byte), block[156], byte)


def _sum(data: bytes) -> int:
    """Return the sum of at most 256 bytes.

    The lower half of Adler-32 is this sum plus one; it cannot overflow for 256 bytes.
    """
    return (adler32(data) & 0xFFFF) - 1


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _number(field: bytes, byte: int) -> int:
    """Parse octal text, or a base-256 number with the top bit set (GNU)."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if not field[0] & 0x40 and value <= _NUMBER_MAX:
            return value
    text = field.split(b"\0", 1)[0].strip()
    if not text.strip(b"01234567"):
        return int(text or b"0", 8)
    raise CorruptError(
        f"no valid tar header at byte {byte} (a number in it is {text!r}): the archive is damaged there, or "
        "it is not a tar archive",
        byte=byte,
    )


def _pax_records(data: bytes, byte: int) -> dict[str, str]:
    r"""Parse records ``LENGTH KEY=VALUE\n``. Only the used keys are kept, so the result is bounded."""
    records: dict[str, str] = {}
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
            records[name] = value.decode("utf-8", "surrogateescape")
        if name.startswith(_PAX_SPARSE):
            records[_PAX_SPARSE] = "yes"
        at += length
    return records


class _ByteSource:
    """A stream over chunks with a position.

    It returns views, and copies only data that crosses chunks.
    """

    def __init__(self, chunks: Iterable[Buffer], start_byte: int) -> None:
        self._chunks = iter(chunks)
        self._view = memoryview(b"")
        self.at = start_byte

    def _fill(self) -> bool:
        """Fetch chunks until a byte is available. Return False at the end."""
        while not self._view:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._view = memoryview(chunk)
        return True

    def _consume(self, size: int) -> memoryview:
        piece, self._view = self._view[:size], self._view[size:]
        self.at += len(piece)
        return piece

    def read_exactly(self, size: int, part: str, *, allow_end: bool = False) -> bytes | None:
        """Return a copy of exactly `size` bytes; None at a clean end if `allow_end` is true."""
        if len(self._view) >= size:
            return bytes(self._consume(size))
        begin = self.at
        parts: list[bytes] = []
        missing = size
        while missing:
            if not self._fill():
                if allow_end and not parts:
                    return None
                raise _truncated(part, begin, self.at)
            piece = self._consume(missing)
            missing -= len(piece)
            parts.append(bytes(piece))
        return b"".join(parts)

    def pieces(self, end: int, name: str, begin: int) -> Iterator[Buffer]:
        """Yield the bytes up to offset `end` as views.

        They are the content and padding of the member `name`, whose content starts at `begin`.
        """
        while self.at < end:
            if not self._fill():
                raise _truncated(f"member {name!r}", begin, self.at)
            yield self._consume(end - self.at)

    def block(self) -> bytes:
        """Return the next block; a shorter one at the end."""
        parts: list[bytes] = []
        missing = BLOCK
        while missing and self._fill():
            parts.append(bytes(self._consume(missing)))
            missing -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _truncated(part: str, begin: int, at: int) -> TruncatedError:
    return TruncatedError(
        f"the archive ends early, at byte {at}, within {part} that begins at byte {begin}: the upload or the "
        "program that wrote it was cut short; fetch or write it again",
        byte=at,
    )
