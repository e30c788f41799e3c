"""The place in a model's code where it raised an unexpected exception, and the traceback as text."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

TRACEBACK_CHARS_MAX: Final = 16 * 1024
"""Limit of the characters kept of a traceback."""
TRACEBACKS_MAX: Final = 10
"""Limit of the different tracebacks that a run keeps."""


@dataclass(frozen=True, slots=True)
class ModelTraceback:
    """An unexpected exception of a model: any but `RowError` and headrace's own errors.

    Attributes:
        kind: The type of the exception.
        message: Its text, possibly cut.
        file: The file of the model's code that raised it, or called the code that did.
        line: The number of the line, from 1; 0 if unknown.
        function: The name of the function with the line.
        source: The text of the line; empty if unknown.
        text: The formatted traceback, without the frames of headrace.
    """

    kind: str
    message: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    source: str = ""
    text: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Type, file and line: exceptions with equal keys have the same cause."""
        return self.kind, self.file, self.line

    @property
    def place(self) -> str:
        """The place for messages, such as ``churn.py:12 in predict``; empty if unknown."""
        return f"{self.file.rpartition('/')[2]}:{self.line} in {self.function}" if self.file else ""

    def with_place(self, why: str) -> str:
        """Return a description of the exception with the place at the end of its first line."""
        if not self.place:
            return why
        first, newline, rest = why.partition("\n")
        return f"{first} ({self.place}){newline}{rest}"

    def to_json(self) -> dict[str, Any]:
        """Return the traceback as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ModelTraceback":
        """Return the traceback from its plain values."""
        return cls(**values)
