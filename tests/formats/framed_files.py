"""Builders of TFRecord and RecordIO files."""

import struct

import google_crc32c

MAGIC = struct.pack("<I", 0xCED7230A)


def masked_checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) % 2**32 + 0xA282EAD8) % 2**32)


def tfrecord_frame(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + masked_checksum(length) + record + masked_checksum(record)


def tfrecord(records) -> bytes:
    return b"".join(map(tfrecord_frame, records))


def recordio_part(part: bytes, flag: int) -> bytes:
    padding = bytes(-len(part) % 4)
    return MAGIC + struct.pack("<I", flag << 29 | len(part)) + part + padding


def recordio_frame(record: bytes) -> bytes:
    """Split the record at each magic number at a multiple of four bytes, and omit it."""
    parts, begin, at = [], 0, 0
    while at + 4 <= len(record) // 4 * 4:
        if record[at : at + 4] == MAGIC:
            parts.append(record[begin:at])
            begin = at + 4
        at += 4
    parts.append(record[begin:])
    if len(parts) == 1:
        return recordio_part(record, 0)
    flags = [1, *[2] * (len(parts) - 2), 3]
    return b"".join(map(recordio_part, parts, flags))


def recordio(records) -> bytes:
    return b"".join(map(recordio_frame, records))
