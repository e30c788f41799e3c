"""Decompress the blocks of Avro files whose codecs fastavro reads with further libraries only."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from headrace.formats.arrow import decompressed
from headrace.formats.table_files import READ_BYTES_MAX, TableStream, unreadable

_KIND: Final = "Avro"
_SYNC_BYTES: Final = 16
_CHECKSUM_BYTES: Final = 4
_LONG_BYTES_MAX: Final = 10
_MORE: Final = 0x80
"""The bit of a byte of a variable-length integer that says that another byte follows."""


def plain_blocks(file: TableStream, codec: str) -> Iterator[bytes]:
    """Yield the blocks of a file, from the end of its header on, as blocks of the codec "null".

    Raises CorruptError or TruncatedError for a damaged block.
    """
    while file.peek(1):
        count, size = _read_long(file), _read_long(file)
        if size < 0:
            raise unreadable(_KIND, f"a block has the size {size}", file)
        data, sync = file.read(size), file.read(_SYNC_BYTES)
        if len(data) < size or len(sync) < _SYNC_BYTES:
            raise unreadable(_KIND, "a block is not whole", file)
        try:
            plain = CODECS[codec](data)
        except (OSError, ValueError) as error:
            raise unreadable(_KIND, f"a block is damaged: {error}", file) from error
        yield b"".join((_long(count), _long(len(plain)), plain, sync))


def _snappy(data: bytes) -> bytes:
    """Decompress raw Snappy, which begins with the size of its content, and check its checksum."""
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    size = shift = 0
    for byte in body[:_LONG_BYTES_MAX]:
        size |= (byte & ~_MORE) << shift
        shift += 7
        if not byte & _MORE:
            break
    if size > READ_BYTES_MAX:
        raise ValueError(f"its size of {size} bytes exceeds the limit of {READ_BYTES_MAX}")
    plain = decompressed(body, "snappy", size)
    if zlib.crc32(plain).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
        raise ValueError("its checksum is wrong")
    return plain


CODECS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "snappy": _snappy,
    "zstandard": lambda data: decompressed(data, "zstd", None),
}
"""The decompression of a block by the name of its codec."""


def _read_long(file: TableStream) -> int:
    value = 0
    for place in range(_LONG_BYTES_MAX):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & ~_MORE) << (7 * place)
        if not byte[0] & _MORE:
            return (value >> 1) ^ -(value & 1)
    raise unreadable(_KIND, "a number is not whole", file)


def _long(value: int) -> bytes:
    """Return a number in Avro's encoding: zigzag, seven bits per byte."""
    rest, found = (value << 1) ^ (value >> 63), bytearray()
    while rest >= _MORE:
        found.append((rest & ~_MORE) & 0xFF | _MORE)
        rest >>= 7
    found.append(rest)
    return bytes(found)
