"""Dynamic batching for streams: closes a batch by rows, by bytes, or by delay.

The batcher is pure: the caller passes `now` and receives the closed batches. Items (blocks of rows)
are cut at exact rows. The rows and bytes of a batch depend on the rows alone, never on how rows
were grouped into items.
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
"""Bytes of each row: one size for all rows, or an array with one size for each."""


class CloseReason(StrEnum):
    """The reason for which a batch closed."""

    ROWS = "rows"
    """The batch has `rows_max` rows."""
    BYTES = "bytes"
    """The next row would exceed `bytes_max`."""
    DELAY = "delay"
    """`delay_s` has passed since the first row."""
    FLUSH = "flush"
    """The source has ended."""


@dataclass(frozen=True, slots=True)
class RowSlice(Generic[T]):
    """Rows ``start..stop`` of one item; never empty."""

    item: T
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ClosedBatch(Generic[T]):
    """A closed batch: its slices in order, their rows and bytes, and the reason.

    `opened_s` is the arrival time of its first row.
    """

    slices: tuple[RowSlice[T], ...]
    rows: int
    nbytes: int
    reason: CloseReason
    opened_s: float


class DynamicBatcher(Generic[T]):
    """A batcher with a limit of `rows_max` rows and `bytes_max` bytes.

    A batch has at least one row, whatever its size.

    With `delay_s` None, no batch closes by delay: batches are the same however and whenever rows
    arrive. For one caller at a time; no method waits. `rows_max` and `bytes_max` bound the rows
    held.

    Raises:
        ConfigError: A limit is below 1, or `delay_s` is negative.
    """

    def __init__(self, *, rows_max: int, bytes_max: int, delay_s: float | None = None) -> None:
        if rows_max <= 0 or bytes_max <= 0:
            raise ConfigError(f"rows_max and bytes_max must be 1 or more, not {rows_max} and {bytes_max}")
        if delay_s is not None and delay_s < 0:
            raise ConfigError(f"delay_s must be 0 or more, or None for no delay, not {delay_s}")
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._delay_s = delay_s
        self._slices: list[RowSlice[T]] = []
        self._rows = 0
        self._bytes = 0
        self._opened_s = 0.0

    def __len__(self) -> int:
        """Return the number of rows held."""
        return self._rows

    def add(self, item: T, rows: int, row_bytes: RowBytes, now: float) -> list[ClosedBatch[T]]:
        """Add an item of `rows` rows.

        Return the batches that this closes, in order. An item without rows changes nothing.

        Takes microseconds, whatever the number of rows.

        Raises:
            ValueError: `row_bytes` is an array of another length.
        """
        if not isinstance(row_bytes, int) and len(row_bytes) != rows:
            raise ValueError(f"{len(row_bytes)} sizes for an item of {rows} rows")
        return list(self._cut(item, rows, row_bytes, now)) if rows else []

    def due_s(self) -> float | None:
        """Return the time at which the delay closes the current batch.

        Return None without rows, or without a delay.
        """
        return None if self._delay_s is None or not self._rows else self._opened_s + self._delay_s

    def poll(self, now: float) -> ClosedBatch[T] | None:
        """Return the current batch if its delay has passed at `now`, else None."""
        due_s = self.due_s()
        return self._close(CloseReason.DELAY) if due_s is not None and now >= due_s else None

    def flush(self, now: float) -> ClosedBatch[T] | None:
        """Return the rows held, at the end of the source, or None if there are none."""
        del now  # Taken for a signature like that of `add` and `poll`.
        return self._close(CloseReason.FLUSH) if self._rows else None

    def _cut(self, item: T, rows: int, row_bytes: RowBytes, now: float) -> Iterator[ClosedBatch[T]]:
        # ends[i]: bytes of the rows up to and including i. Rows of one size need no array.
        ends = None if isinstance(row_bytes, int) else np.cumsum(row_bytes)
        start = 0
        while start < rows:
            if not self._rows:
                self._opened_s = now
            before = _bytes_before(row_bytes, ends, start)
            take, full = self._fit(rows - start, row_bytes, ends, start, before)
            if take:
                stop = start + take
                self._slices.append(RowSlice(item, start, stop))
                self._rows += take
                self._bytes += _bytes_before(row_bytes, ends, stop) - before
                start = stop
            if self._rows == self._rows_max:
                yield self._close(CloseReason.ROWS)
            elif full:
                yield self._close(CloseReason.BYTES)

    def _fit(
        self, left: int, row_bytes: RowBytes, ends: NDArray[np.int64] | None, start: int, before: int
    ) -> tuple[int, bool]:
        """Return how many of the next `left` rows fit the current batch.

        The second value is True if the byte limit, not the row limit, stops the batch.
        """
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
        # A row above the byte limit forms a batch of its own.
        return (fit, True) if fit or self._rows else (1, True)

    def _close(self, reason: CloseReason) -> ClosedBatch[T]:
        closed = ClosedBatch(tuple(self._slices), self._rows, self._bytes, reason, self._opened_s)
        self._slices, self._rows, self._bytes = [], 0, 0
        return closed


def _bytes_before(row_bytes: RowBytes, ends: NDArray[np.int64] | None, row: int) -> int:
    if ends is None:
        assert isinstance(row_bytes, int)
        return row_bytes * row
    return int(ends[row - 1]) if row else 0
