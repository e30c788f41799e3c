"""Which rows of a failing batch are guilty: asks for ever smaller halves until each row has its own verdict.

Pure: the caller tries what `next` says and tells what came of it. A guilty row costs about ``2 log2(n)`` tries.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.core.tensor import RowFailure


class Bisection:
    """The search over a batch of `rows` rows. Deterministic; tries rows in ascending order.

    ::

        search = Bisection(rows)
        while (indices := search.next()) is not None:
            try: keep(indices, call(indices)); search.succeeded()
            except RowError as e: search.refused(e.rows)
            except Exception as e: search.failed(str(e))
        search.failures
    """

    def __init__(self, rows: int) -> None:
        self._open: list[NDArray[np.int64]] = [np.arange(rows)] if rows else []
        self._trying: NDArray[np.int64] | None = None
        self._tries = np.zeros(rows, np.int64)
        self._failures: dict[int, RowFailure] = {}

    def next(self) -> NDArray[np.int64] | None:
        """The rows to try now, as indices into the batch; None when every row has its verdict."""
        if not self._open:
            return None
        self._trying = self._open.pop()
        self._tries[self._trying] += 1
        return self._trying

    def _tried(self) -> NDArray[np.int64]:
        assert self._trying is not None, "next() comes first"
        trying, self._trying = self._trying, None
        return trying

    def succeeded(self) -> None:
        """These rows are predicted."""
        self._tried()

    def failed(self, why: str) -> None:
        """These rows failed together: a single one is guilty, more are halved."""
        rows = self._tried()
        if len(rows) == 1:
            self._blame(int(rows[0]), why)
            return
        half = len(rows) // 2
        # A stack: the first half is tried first.
        self._open.extend((rows[half:], rows[:half]))

    def refused(self, rows: Mapping[int, str]) -> None:
        """The model named the guilty rows itself, as indices into what it was given; the others are tried again."""
        tried = self._tried()
        named = {row: why for row, why in rows.items() if 0 <= row < len(tried)}
        if not named:
            self._trying = tried
            self.failed(f"the model refused rows {sorted(rows)}, but was given {len(tried)}")
            return
        for row, why in named.items():
            self._blame(int(tried[row]), why)
        rest = np.delete(tried, list(named))
        if len(rest):
            self._open.append(rest)

    def _blame(self, row: int, why: str) -> None:
        self._failures[row] = RowFailure(row, why, int(self._tries[row]))

    @property
    def failures(self) -> tuple[RowFailure, ...]:
        """The guilty rows so far, by row."""
        return tuple(self._failures[row] for row in sorted(self._failures))
