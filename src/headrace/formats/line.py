"""Any text with one record a line: lines in, blocks of lines out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.core.block import Block, Position
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, Buffer
from headrace.formats.lines import NewlineScanner, Until, cut_text


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """One record a line, ended by LF, CRLF or the end of the input; `what` names the text, for people.

    Blank lines are no records, though they count as lines. A UTF-8 byte order mark is dropped. A line that has not
    ended within `record_bytes_max` bytes is a failure (kind FORMAT), and the next record starts after its newline.
    A member with a NUL in its first 4096 bytes, or in UTF-16, is one failure of kind OBJECT.

    `block_bytes_max` bounds a block, unless one record is longer.
    """

    what: str = "plain"
    record_bytes_max: int = RECORD_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX

    def blocks(
        self, chunks: Iterable[Buffer], first: Position, until: Until | None = None
    ) -> Iterator[Block]:
        """Blocks of the lines that each chunk completes; with `until`, of those that begin before it."""
        return cut_text(
            chunks,
            first,
            self.scanner(),
            self.what,
            record_bytes_max=self.record_bytes_max,
            block_bytes_max=self.block_bytes_max,
            until=until,
        )

    def scanner(self) -> NewlineScanner:
        """What tells where a record ends."""
        return NewlineScanner()
