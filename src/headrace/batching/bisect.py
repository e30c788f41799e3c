"""Bisection of a failed batch: retries ever smaller halves to find the bad rows.

`Bisection` is pure: the caller calls the model with the rows from `next` and reports the result.
One bad row among n costs up to ``2 log2(n) + 1`` calls, g bad rows up to ``g`` times as many. If
every row is bad, the search takes ``2 n - 1`` calls; n results need n of them.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.tensor import RowFailure

_FIRST: Final = np.arange(1024)
_FIRST.setflags(write=False)


class Bisection:
    """A search for the bad rows of a batch with `rows` rows. The first call has the whole batch.

    The search is deterministic. Successful calls have disjoint, ascending rows: their results in
    order are the results of the good rows in order. After each `next`, call exactly one of
    `mark_succeeded`, `mark_failed` and `mark_refused`.

    ::

        search = Bisection(rows)
        while (indices := search.next()) is not None:
            try:
                kept.append(call(indices))
            except RowError as error:
                search.mark_refused(error.rows)
            except Exception as error:
                search.mark_failed(str(error))
            else:
                search.mark_succeeded()
        failures = search.failures
    """

    def __init__(self, rows: int) -> None:
        # A stack, so that lower rows come first. Each entry has the number of calls so far with its
        # rows.
        self._open: list[tuple[NDArray[np.int64], int]] = [(_all(rows), 0)] if rows else []
        self._trying: tuple[NDArray[np.int64], int] | None = None
        self._failures: dict[int, RowFailure] = {}

    def next(self) -> NDArray[np.int64] | None:
        """Return the rows for the next call, or None if every row has a result.

        The rows are ascending, read-only indices into the batch.
        """
        assert self._trying is None, "report the result of the last call first"
        if not self._open:
            return None
        rows, tries = self._open.pop()
        self._trying = (rows, tries + 1)
        return rows

    def mark_succeeded(self) -> None:
        """Record that the model predicted these rows."""
        self._take_tried()

    def mark_failed(self, why: str) -> None:
        """Record that these rows failed together. A single row is bad; several rows are halved."""
        rows, tries = self._take_tried()
        if len(rows) == 1:
            self._blame(int(rows[0]), why, tries)
            return
        half = len(rows) // 2
        self._open.extend(((rows[half:], tries), (rows[:half], tries)))

    def mark_refused(self, refused: Mapping[int, str]) -> None:
        """Record the rows that the model refused by a `RowError`.

        The other rows of the call are tried again.

        The keys of `refused` index the rows of the call; others are ignored. If no valid index is
        left, the call counts as failed.
        """
        assert self._trying is not None, "call next() first"
        count = len(self._trying[0])
        named = {row: why for row, why in refused.items() if 0 <= row < count}
        if not named:
            self.mark_failed(
                f"the model raised RowError for rows {sorted(refused)} of a batch with rows 0 to {count - 1}"
            )
            return
        rows, tries = self._take_tried()
        for row, why in named.items():
            self._blame(int(rows[row]), why, tries)
        rest = np.delete(rows, list(named))
        if len(rest):
            self._open.append((rest, tries))

    def _take_tried(self) -> tuple[NDArray[np.int64], int]:
        assert self._trying is not None, "call next() first"
        tried, self._trying = self._trying, None
        return tried

    def _blame(self, row: int, why: str, tries: int) -> None:
        self._failures[row] = RowFailure(row, why, tries)

    @property
    def failures(self) -> tuple[RowFailure, ...]:
        """Bad rows found so far, sorted by row.

        `attempts` is the number of calls that included the row.
        """
        return tuple(self._failures[row] for row in sorted(self._failures))


def _all(rows: int) -> NDArray[np.int64]:
    """Return ``arange(rows)`` as a read-only view where possible.

    Allocating an array lets other threads take the interpreter lock, so small batches share one.
    """
    return _FIRST[:rows] if rows <= len(_FIRST) else np.arange(rows)
