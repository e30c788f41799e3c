"""The whole object, or archive member, as one record."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position
from headrace.formats.contract import RECORD_BYTES_MAX, Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFormat:
    """One record: all bytes as they stand. An empty member is one empty record.

    More than `record_bytes_max` bytes are a failure (kind FORMAT) that keeps the first of them; the rest is read
    and thrown away.
    """

    record_bytes_max: int = RECORD_BYTES_MAX

    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        """One block, when the last byte is there."""
        held: list[bytes] = []
        size = 0
        raw = b""
        for chunk in chunks:
            size += len(chunk)
            if size <= self.record_bytes_max:
                held.append(bytes(chunk))
            elif held or not raw:
                # Of each, no more than is kept: the chunk may be far larger than a record may be.
                raw = b"".join((*held, bytes(memoryview(chunk)[:RAW_BYTES_KEPT_MAX])))
                raw = raw[: min(self.record_bytes_max, RAW_BYTES_KEPT_MAX)]
                held = []
        if size > self.record_bytes_max:
            why = f"{size} bytes, longer than record_bytes_max={self.record_bytes_max}"
            yield Block(first, failures=(Failure(first, FailureKind.FORMAT, why, raw),))
            return
        yield Block(first, b"".join(held), np.zeros(1, np.int64), np.array([size], np.int64))
