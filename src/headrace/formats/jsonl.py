"""JSON Lines: lines, each of them a JSON text."""

from dataclasses import dataclass

from headrace.formats.line import LineFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesFormat(LineFormat):
    """One JSON text a line, cut as `LineFormat` cuts lines. Whether a line is JSON is the decoder's business."""

    what: str = "JSON Lines"
