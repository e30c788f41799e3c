"""When a batch closes: at so many rows, at so many bytes, or when its first row has waited long enough.

Passive and pure: `now` is handed in, and what closes is returned. Items (blocks of rows) are cut at exact rows,
so what a batch holds by rows and bytes depends on the rows alone, never on how they were grouped into items.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError

T = TypeVar("T")

RowBytes = int | NDArray[np.int64]
"""Bytes of every row: one size for all, or an array of one a row."""


class CloseReason(StrEnum):
    """Why a batch closed."""

    ROWS = "rows"
    """It holds `rows_max` rows."""
    BYTES = "bytes"
    """The next row would have gone beyond `bytes_max`."""
    DELAY = "delay"
    """Its first row has waited `delay_s`."""
    FLUSH = "flush"
    """The source has ended."""


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """Rows ``start..stop`` of one item; never empty."""

    item: T
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Closed(Generic[T]):
    """A batch: its slices in order, how much they are, why it closed, and when its first row came."""

    slices: tuple[Slice[T], ...]
    rows: int
    nbytes: int
    reason: CloseReason
    opened: float


class DynamicBatcher(Generic[T]):
    """Gathers rows until `rows_max` rows, or the most rows whose bytes are within `bytes_max` (at least one).

    `delay_s` None never closes by delay: then the batches are the same whenever and however the rows come. One
    caller at a time; nothing here waits. What waits is bounded by `rows_max` and `bytes_max`.

    Raises ConfigError for bounds that leave no room.
    """

    def __init__(self, *, rows_max: int, bytes_max: int, delay_s: float | None = None) -> None:
        if rows_max <= 0 or bytes_max <= 0:
            raise ConfigError(f"a batch needs room: rows_max={rows_max}, bytes_max={bytes_max}")
        if delay_s is not None and delay_s < 0:
            raise ConfigError(
                f"a batch cannot wait {delay_s} s: give 0 or more, or None to wait for rows alone"
            )
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._delay_s = delay_s
        self._slices: list[Slice[T]] = []
        self._rows = 0
        self._bytes = 0
        self._opened = 0.0

    def __len__(self) -> int:
        """Rows that wait."""
        return self._rows

    def add(self, item: T, rows: int, row_bytes: RowBytes, now: float) -> list[Closed[T]]:
        """Take an item of `rows` rows; the batches that this closes, in order. An item of none changes nothing.

        Costs microseconds whatever the number of rows. Raises ValueError when `row_bytes` has another length.
        """
        if not isinstance(row_bytes, int) and len(row_bytes) != rows:
            raise ValueError(f"{len(row_bytes)} sizes for an item of {rows} rows")
        return list(self._cut(item, rows, row_bytes, now)) if rows else []

    def due(self) -> float | None:
        """When the first row must leave; None while nothing waits, or without a delay."""
        return None if self._delay_s is None or not self._rows else self._opened + self._delay_s

    def poll(self, now: float) -> Closed[T] | None:
        """The batch whose first row has waited its delay, if there is one."""
        due = self.due()
        return self._close(CloseReason.DELAY) if due is not None and now >= due else None

    def flush(self, now: float) -> Closed[T] | None:
        """What waits, at the end of the source; None when nothing does."""
        del now  # Asked for like everywhere, so that callers need not know which verbs look at it.
        return self._close(CloseReason.FLUSH) if self._rows else None

    def _cut(self, item: T, rows: int, row_bytes: RowBytes, now: float) -> Iterator[Closed[T]]:
        # ends[i]: bytes of the rows up to and including i. One size for all needs no array.
        ends = None if isinstance(row_bytes, int) else np.cumsum(row_bytes)
        start = 0
        while start < rows:
            if not self._rows:
                self._opened = now
            before = _bytes_before(row_bytes, ends, start)
            take, full = self._room(rows - start, row_bytes, ends, start, before)
            if take:
                stop = start + take
                self._slices.append(Slice(item, start, stop))
                self._rows += take
                self._bytes += _bytes_before(row_bytes, ends, stop) - before
                start = stop
            if self._rows == self._rows_max:
                yield self._close(CloseReason.ROWS)
            elif full:
                yield self._close(CloseReason.BYTES)

    def _room(
        self, left: int, row_bytes: RowBytes, ends: NDArray[np.int64] | None, start: int, before: int
    ) -> tuple[int, bool]:
        """How many of the next `left` rows this batch takes, and whether bytes keep it from taking more."""
        most = min(left, self._rows_max - self._rows)
        room = self._bytes_max - self._bytes
        if ends is None:
            assert isinstance(row_bytes, int)
            fit = room // row_bytes if row_bytes else most
        elif int(ends[start + most - 1]) - before <= room:
            fit = most
        else:
            fit = int(np.searchsorted(ends, before + room, side="right")) - start
        if fit >= most:
            return most, False
        # A row larger than a whole batch goes by itself.
        return (fit, True) if fit or self._rows else (1, True)

    def _close(self, reason: CloseReason) -> Closed[T]:
        closed = Closed(tuple(self._slices), self._rows, self._bytes, reason, self._opened)
        self._slices, self._rows, self._bytes = [], 0, 0
        return closed


def _bytes_before(row_bytes: RowBytes, ends: NDArray[np.int64] | None, row: int) -> int:
    if ends is None:
        assert isinstance(row_bytes, int)
        return row_bytes * row
    return int(ends[row - 1]) if row else 0
