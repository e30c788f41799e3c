"""One JSON text an object, or archive member: over as many lines as it likes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from headrace.core.block import Block, Position
from headrace.formats.contract import RECORD_BYTES_MAX, Buffer
from headrace.formats.whole import WholeFormat

_BOM_UTF8: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat:
    """One record: the JSON text, without the white space around it and without a UTF-8 byte order mark.

    Whether it is JSON is the decoder's business: an empty member is an empty record, which is not. A member of
    more than `record_bytes_max` bytes is a failure (kind FORMAT) that keeps the first of them.
    """

    record_bytes_max: int = RECORD_BYTES_MAX

    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        """One block, when the last byte is there."""
        for block in WholeFormat(record_bytes_max=self.record_bytes_max).blocks(chunks, first):
            yield _trimmed(block) if len(block) else block


def _trimmed(block: Block) -> Block:
    data = block.data
    bom = len(_BOM_UTF8) if data.startswith(_BOM_UTF8) else 0
    text = data[bom:].lstrip(_SPACE)
    if not text:
        return block
    start = len(data) - len(text)
    first = replace(
        block.first, byte=block.first.byte + start, line=block.first.line + data.count(b"\n", 0, start)
    )
    return replace(
        block,
        first=first,
        starts=np.array([start], np.int64),
        ends=np.array([start + len(text.rstrip(_SPACE))], np.int64),
    )
