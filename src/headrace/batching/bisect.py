"""Which rows of a failing batch are guilty: asks for ever smaller halves until each row has its own verdict.

Pure: the caller tries what `next` says and tells what came of it. One guilty row among n costs at most
``2 log2(n) + 1`` tries, g of them at most ``g`` times that; when every row is guilty it is ``2 n - 1`` tries, of
which n are needed for n verdicts.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.tensor import RowFailure

_FIRST: Final = np.arange(1024)
_FIRST.setflags(write=False)


class Bisection:
    """The search over a batch of `rows` rows; the first try is the whole batch.

    Deterministic. The tries that succeed are disjoint and ascend, so their results in order are those of the
    good rows in order. After each `next` exactly one of `succeeded`, `failed` and `refused` must be called.

    ::

        search = Bisection(rows)
        while (indices := search.next()) is not None:
            try:
                kept.append(call(indices))
            except RowError as error:
                search.refused(error.rows)
            except Exception as error:
                search.failed(str(error))
            else:
                search.succeeded()
        failures = search.failures
    """

    def __init__(self, rows: int) -> None:
        # A stack, so that lower rows come first; each with how often its rows were tried before.
        self._open: list[tuple[NDArray[np.int64], int]] = [(_all(rows), 0)] if rows else []
        self._trying: tuple[NDArray[np.int64], int] | None = None
        self._failures: dict[int, RowFailure] = {}

    def next(self) -> NDArray[np.int64] | None:
        """The rows to try now, ascending indices into the batch, not to be written to; None when every row has its verdict."""
        assert self._trying is None, "tell what came of the last try first"
        if not self._open:
            return None
        rows, tries = self._open.pop()
        self._trying = (rows, tries + 1)
        return rows

    def succeeded(self) -> None:
        """These rows are predicted."""
        self._tried()

    def failed(self, why: str) -> None:
        """These rows failed together: a single one is guilty, more are halved."""
        rows, tries = self._tried()
        if len(rows) == 1:
            self._blame(int(rows[0]), why, tries)
            return
        half = len(rows) // 2
        self._open.extend(((rows[half:], tries), (rows[:half], tries)))

    def refused(self, refused: Mapping[int, str]) -> None:
        """The model named the guilty rows itself, as indices into what it was given; the others are tried again.

        Indices that it was not given are ignored; when none is left, this is a failure like any other.
        """
        assert self._trying is not None, "next() comes first"
        given = len(self._trying[0])
        named = {row: why for row, why in refused.items() if 0 <= row < given}
        if not named:
            self.failed(f"RowError names rows {sorted(refused)} of a batch that has rows 0 to {given - 1}")
            return
        rows, tries = self._tried()
        for row, why in named.items():
            self._blame(int(rows[row]), why, tries)
        rest = np.delete(rows, list(named))
        if len(rest):
            self._open.append((rest, tries))

    def _tried(self) -> tuple[NDArray[np.int64], int]:
        assert self._trying is not None, "next() comes first"
        tried, self._trying = self._trying, None
        return tried

    def _blame(self, row: int, why: str, tries: int) -> None:
        self._failures[row] = RowFailure(row, why, tries)

    @property
    def failures(self) -> tuple[RowFailure, ...]:
        """The guilty rows so far, by row; `attempts` is how many tries each was in."""
        return tuple(self._failures[row] for row in sorted(self._failures))


def _all(rows: int) -> NDArray[np.int64]:
    """Indices of so many rows. For few nothing is made: numpy lets other threads run meanwhile, which may take milliseconds."""
    return _FIRST[:rows] if rows <= len(_FIRST) else np.arange(rows)
