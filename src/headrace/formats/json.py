"""JSON with one text per object or archive member, on any number of lines."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from typing_extensions import override

from headrace.core.block import Block, Position
from headrace.formats.contract import RECORD_BYTES_MAX, Buffer, Format
from headrace.formats.whole import WholeFormat

_BOM_UTF8: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat(Format):
    """A format of one record: the JSON text without surrounding white space and byte order mark.

    The decoder checks that the text is JSON. An empty member is an empty record, and so not JSON. A
    member of more than `record_bytes_max` bytes is a failure (kind FORMAT) that keeps its first
    bytes.
    """

    record_bytes_max: int = RECORD_BYTES_MAX

    @override
    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        for block in WholeFormat(record_bytes_max=self.record_bytes_max).blocks(chunks, first):
            yield _trim(block) if len(block) else block


def _trim(block: Block) -> Block:
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
