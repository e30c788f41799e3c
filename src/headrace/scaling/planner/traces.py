"""Traces of arrivals: CSV files with one line for each job."""

import csv
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf, isfinite, isnan, nan
from typing import Final, TextIO

import numpy as np

from headrace.core.errors import DataError
from headrace.scaling.planner.load import Seconds

LINES_MAX: Final = 10_000_000
LINE_CHARACTERS_MAX: Final = 4096
ARRIVED: Final = (
    "arrived", "arrived_at", "arrival", "arrival_time", "due_at", "due_at_ms", "submitted", "submitted_at",
    "created", "created_at", "created_at_ms", "timestamp", "time", "ts", "datetime", "date",
)  # fmt: skip
"""Names of the column of arrivals. The first one that a header has counts."""
RUN: Final[Mapping[str, float]] = {
    **dict.fromkeys(("run_seconds", "run_s", "run_time", "run_time_s", "runtime", "runtime_s"), 1.0),
    **dict.fromkeys(("duration", "duration_s", "duration_seconds", "service_time", "seconds"), 1.0),
    **dict.fromkeys(("run_ms", "run_time_ms", "runtime_ms", "duration_ms"), 0.001),
}
"""Names of the column of run times, with the unit in seconds. The first one that a header has counts."""
_MS_LEAST: Final = 1e11
"""The least number that is a time in milliseconds: in 1973. As seconds it were in the year 5138."""
_MS_MOST: Final = 1e14
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_EXPECTED: Final = (
    "a time from 1970 on, in seconds or milliseconds since 1970 or such as 2026-01-31T09:00:00Z"
)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The jobs of a trace, in the order of its lines."""

    arrived_s: Seconds
    """Seconds since 1970."""
    run_s: Seconds
    """Run times; NaN for missing ones."""
    missing_line: int
    """The number of the first line without a run time; 0 for none."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """The places of the columns. `run` is None without run times, which have units of `scale` seconds."""

    count: int
    arrived: int
    run: int | None
    scale: float


_WITHOUT_HEADER: Final = _Columns(2, 0, 1, 1.0)


def read_trace(file: TextIO, name: str) -> Trace:
    """Return the jobs of a CSV file: one line for each, with its arrival and, if known, its run time.

    An arrival is a number of seconds since 1970, a number of milliseconds since 1970 (from 1973 on), or a
    date and time of ISO 8601, in UTC unless it has an offset. Without a header, a second column has run
    times in seconds. A header names the columns: one of `ARRIVED`, and at most one of `RUN`. Other columns
    of a file with a header are ignored, and so are empty lines.

    Args:
        file: The file, open as text.
        name: The name of the file, for messages.

    Raises:
        DataError: A line is invalid or too long; there are no lines with a time, or too many.
    """
    lines = _Lines(file, name)
    arrived, run = array("d"), array("d")
    missing_line = 0
    columns: _Columns | None = None
    try:
        for row in csv.reader(lines, strict=True):
            lines.whole = lines.number
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if columns is None:
                columns = _columns(cells)
                if columns is not None:
                    continue
                columns = _WITHOUT_HEADER
            at_s = _arrival_s(cells, columns)
            took_s = _run_time_s(cells, columns)
            if isnan(took_s):
                missing_line = missing_line or lines.number
            arrived.append(at_s)
            run.append(took_s)
    except UnicodeDecodeError as error:
        raise DataError(f"{name}, after line {lines.number}: is not text in UTF-8") from error
    except (csv.Error, ValueError) as error:
        raise DataError(f"{name}, line {lines.number}: {error}") from error
    if not arrived:
        raise DataError(f"{name} has no job: each line must begin with {_TIME_EXPECTED}")
    return Trace(np.array(arrived), np.array(run), missing_line)


class _Lines(Iterator[str]):
    """The lines of a file. Raises DataError for a line that is too long, goes on, or is one too many."""

    def __init__(self, file: TextIO, name: str) -> None:
        self._file = file
        self._name = name
        self.number = 0
        """The number of the latest line."""
        self.whole = 0
        """The number of the latest line that ended its record."""

    def __next__(self) -> str:
        if self.whole < self.number:
            raise DataError(f"{self._name}, line {self.number}: a quote must end on its line")
        line = self._file.readline(LINE_CHARACTERS_MAX + 1)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) > LINE_CHARACTERS_MAX:
            raise DataError(
                f"{self._name}, line {self.number}: must have at most {LINE_CHARACTERS_MAX:,} characters"
            )
        if self.number > LINES_MAX:
            raise DataError(f"{self._name}: must have at most {LINES_MAX:,} lines: take fewer days")
        return line.removeprefix("\ufeff") if self.number == 1 else line


def _columns(cells: Sequence[str]) -> _Columns | None:
    """Return the columns that a header names, or None for a line that is no header.

    Raises:
        ValueError: The line is neither a header nor begins with a time.
    """
    if _time_s(cells[0]) is not None:
        return None
    places: dict[str, int] = {}
    for place, cell in enumerate(cells):
        places.setdefault(cell.lower().replace(" ", "_").replace("-", "_"), place)
    arrived = next((places[each] for each in ARRIVED if each in places), None)
    if arrived is None:
        raise ValueError(
            f"must begin with {_TIME_EXPECTED}, or be a header that names a column arrived "
            f"(or {', '.join(ARRIVED[1:])}), not {cells[0]!r:.40}"
        )
    run = next((each for each in RUN if each in places), None)
    if run is None:
        return _Columns(len(cells), arrived, None, 1.0)
    return _Columns(len(cells), arrived, places[run], RUN[run])


def _arrival_s(cells: Sequence[str], columns: _Columns) -> float:
    """Return the arrival in seconds since 1970. Raise ValueError for another number of columns, too."""
    if len(cells) > columns.count:
        expected = "1 column" if columns.count == 1 else f"at most {columns.count} columns"
        raise ValueError(f"must have {expected}, not {len(cells)}")
    text = cells[columns.arrived] if columns.arrived < len(cells) else ""
    at_s = _time_s(text)
    if at_s is None:
        raise ValueError(f"column {columns.arrived + 1} must be {_TIME_EXPECTED}, not {text!r:.40}")
    return at_s


def _time_s(text: str) -> float | None:
    """Return a time in seconds since 1970, or None for another text."""
    try:
        number = float(text)
    except ValueError:
        return _iso_time_s(text)
    if 0 <= number < _MS_LEAST:
        return number
    return number / 1000 if _MS_LEAST <= number < _MS_MOST else None


def _iso_time_s(text: str) -> float | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    at_s = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH).total_seconds()
    return at_s if at_s >= 0 else None


def _run_time_s(cells: Sequence[str], columns: _Columns) -> float:
    """Return the run time in seconds, or NaN if it is missing. Raise ValueError for an invalid one."""
    if columns.run is None or columns.run >= len(cells) or not cells[columns.run]:
        return nan
    text = cells[columns.run]
    try:
        took_s = float(text) * columns.scale
    except ValueError:
        took_s = -inf
    if took_s < 0 or not isfinite(took_s):
        unit = "seconds" if columns.scale == 1 else "milliseconds"
        raise ValueError(f"column {columns.run + 1} must be {unit} of 0 or more, not {text!r:.40}")
    return took_s
