"""Records that need no parser: the lines of a text, and whole objects or archive members.

JSON records are such lines or wholes, too. The decoder checks that they are JSON.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from typing_extensions import override

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position
from headrace.core.tensor import text_array
from headrace.formats.contract import (
    BLOCK_BYTES_MAX,
    RECORD_BYTES_MAX,
    Buffer,
    DecodedBlock,
    Decoder,
    FailureReasons,
    Format,
)
from headrace.formats.encoding import UTF8, invalid_reason, is_utf8
from headrace.formats.lines import NewlineScanner, RangeStop, cut_text

_BOM_UTF8: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat(Format):
    """A format of one record per line, ended by LF, CRLF or the end of the input.

    `format_name` names the text in messages. Blank lines are not records, but count as lines. A
    UTF-8 byte order mark is dropped, and so are the first `skip_rows` lines. Lines that begin with
    `comment` are not records either. A line that has not ended within `record_bytes_max` bytes is a
    failure (kind FORMAT), and the next record starts after its newline. A member is one failure of
    kind OBJECT if its first 4096 bytes contain a NUL, or if it is UTF-16.

    `block_bytes_max` bounds the size of a block; a single longer record has a block of its own.
    """

    format_name: str = "plain"
    comment: str = ""
    skip_rows: int = 0
    record_bytes_max: int = RECORD_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX

    @override
    def blocks(
        self, chunks: Iterable[Buffer], first: Position, range_stop: RangeStop | None = None
    ) -> Iterator[Block]:
        """With `range_stop`, yield only the records that begin before its byte."""
        return cut_text(
            chunks,
            first,
            self.scanner(),
            self.format_name,
            record_bytes_max=self.record_bytes_max,
            block_bytes_max=self.block_bytes_max,
            range_stop=range_stop,
            comment=self.comment_bytes,
            skip_lines=self.skip_rows,
        )

    @property
    def comment_bytes(self) -> bytes:
        """The prefix of comments as UTF-8."""
        return self.comment.encode()

    def scanner(self) -> NewlineScanner:
        """Return the scanner that finds the ends of the records."""
        return NewlineScanner()


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesFormat(LineFormat):
    """A format of one JSON text per line, cut as in `LineFormat`.

    The decoder checks that a line is JSON.
    """

    format_name: str = "JSON Lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFormat(Format):
    """A format with one record: all bytes unchanged. An empty member is one empty record.

    More than `record_bytes_max` bytes are a failure (kind FORMAT) that keeps the first bytes. The
    remaining bytes are read and discarded.
    """

    record_bytes_max: int = RECORD_BYTES_MAX

    @override
    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        """Yield one block after the last byte."""
        held: list[bytes] = []
        size = 0
        raw = b""
        for chunk in chunks:
            size += len(chunk)
            if size <= self.record_bytes_max:
                held.append(bytes(chunk))
            elif held or not raw:
                # Join no more than a failure keeps: the chunk may be far larger than a record.
                raw = b"".join((*held, bytes(memoryview(chunk)[:RAW_BYTES_KEPT_MAX])))
                raw = raw[: min(self.record_bytes_max, RAW_BYTES_KEPT_MAX)]
                held = []
        if size > self.record_bytes_max:
            why = f"{size} bytes, longer than record_bytes_max={self.record_bytes_max}"
            yield Block(first, failures=(Failure(first, FailureKind.FORMAT, why, raw),))
            return
        yield Block(first, b"".join(held), np.zeros(1, np.int64), np.array([size], np.int64))


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


class RawDecoder(Decoder):
    """A decoder of whole records into an object array ``[n]`` of bytes or str.

    With `text`, a record that is not UTF-8 is a failure (kind DECODE), and so is a record that was not
    valid in another `encoding`; without either, no record fails. With `as_column_vector` the array is
    ``[n, 1]``. `select` returns the part of a record to use. A record for which `select` raises
    ValueError is a failure (kind DECODE).
    """

    def __init__(
        self,
        input_name: str,
        *,
        text: bool = False,
        encoding: str = UTF8,
        as_column_vector: bool = False,
        select: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._name = input_name
        self._select = select
        self._text = text
        self._encoding = encoding
        self._checks_text = text or not is_utf8(encoding)
        self._as_column_vector = as_column_vector

    @override
    def decode(self, block: Block) -> DecodedBlock:
        reasons: FailureReasons = {}
        values: list[bytes | str] = []
        for index, record in enumerate(block.texts()):
            try:
                selected = record if self._select is None else self._select(record)
                decoded = selected.decode() if self._checks_text else ""
                values.append(decoded if self._text else selected)
            except UnicodeDecodeError as error:
                why = f"{invalid_reason(self._encoding)} at byte {error.start} of the record"
                reasons[index] = (FailureKind.DECODE, why)
            except ValueError as error:
                reasons[index] = (FailureKind.DECODE, str(error))
        array = text_array(values)
        tensors = {self._name: array[:, None] if self._as_column_vector else array}
        return DecodedBlock.with_failures(tensors, block, reasons)
