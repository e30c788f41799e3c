"""JSON Lines: text lines of one JSON text each."""

from dataclasses import dataclass

from headrace.formats.line import LineFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesFormat(LineFormat):
    """A format of one JSON text per line, cut as in `LineFormat`.

    The decoder checks that a line is JSON.
    """

    format_name: str = "JSON Lines"
