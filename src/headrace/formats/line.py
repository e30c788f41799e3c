"""Text with one record per line: any text, and JSON Lines."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from typing_extensions import override

from headrace.core.block import Block, Position
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, Buffer, Format
from headrace.formats.lines import NewlineScanner, RangeStop, cut_text


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat(Format):
    """A format of one record per line, ended by LF, CRLF or the end of the input.

    `format_name` names the text in messages. Blank lines are not records, but count as lines. A
    UTF-8 byte order mark is dropped. A line that has not ended within `record_bytes_max` bytes is a
    failure (kind FORMAT), and the next record starts after its newline. A member is one failure of
    kind OBJECT if its first 4096 bytes contain a NUL, or if it is UTF-16.

    `block_bytes_max` bounds the size of a block; a single longer record has a block of its own.
    """

    format_name: str = "plain"
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
        )

    def scanner(self) -> NewlineScanner:
        """Return the scanner that finds the ends of the records."""
        return NewlineScanner()


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesFormat(LineFormat):
    """A format of one JSON text per line, cut as in `LineFormat`.

    The decoder checks that a line is JSON.
    """

    format_name: str = "JSON Lines"
