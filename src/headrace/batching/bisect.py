"""The size of calls: retries of ever smaller parts of a failed batch, and the rows that memory holds.

Pure. For `Bisection`, the caller calls the model with the rows from `next` and reports the result.
One bad row among n costs up to ``2 log2(n) + 1`` calls, g bad rows up to ``g`` times as many. If
every row is bad, the search takes ``2 n - 1`` calls; n results need n of them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.core.model_traceback import ModelTraceback
from headrace.core.tensor import RowFailure

PROBE_CALLS: Final = 16
"""Number of full calls after which a lowered limit is doubled."""
PROBE_CALLS_MAX: Final = 1024
_FIRST: Final = np.arange(1024)
_FIRST.setflags(write=False)


class Piece(NamedTuple):
    """Rows of one item of the batch, for the next call."""

    item: int
    """Index of the item in the batch."""
    rows: NDArray[np.int64]
    """Ascending, read-only indices into the item's rows."""
    tries: int
    """Number of calls so far with these rows."""


Group = Sequence[Piece]
"""The rows of one call, in the order of the items."""


class Bisection:
    """A search for what is bad in a batch of items, each with one or more rows.

    An item is a request. If it may lose rows, its bad rows fail alone; if it is `whole`, it fails
    as a whole. The first call has all rows, or the first `rows_max` of them.

    The search is deterministic. Successful calls have disjoint, ascending rows: the results of an
    item's calls, in order, are the results of its good rows in order. After each `next`, call
    exactly one of `mark_succeeded`, `mark_failed` and `mark_refused`.

    ::

        search = Bisection([rows])
        while (pieces := search.next()) is not None:
            try:
                kept.append(call(pieces[0].rows))
            except RowError as error:
                search.mark_refused(error.rows)
            except Exception as error:
                search.mark_failed(str(error))
            else:
                search.mark_succeeded()
        failures = search.failures()
    """

    def __init__(
        self, rows: Sequence[int], *, whole: Collection[int] = (), rows_max: int | None = None
    ) -> None:
        # A stack, so that lower rows come first.
        self._open: list[Group] = [[Piece(i, _all(n), 0) for i, n in enumerate(rows) if n]]
        self._whole = whole
        self.rows_max = rows_max
        """Limit of rows per call; None for no limit."""
        self._trying: Group = ()
        self._closed: set[int] = set()
        self._repeated: set[int] = set()
        self._failures: dict[int, dict[int, RowFailure]] = {}

    def next(self) -> Group | None:
        """Return the rows for the next call, or None if every row has a result."""
        assert not self._trying, "report the result of the last call first"
        while self._open:
            group = [piece for piece in self._open.pop() if piece.item not in self._closed]
            if group:
                self._trying = self._fitting(group)
                return self._trying
        return None

    def _fitting(self, group: Group) -> Group:
        """Return the first rows that fit into a call, and put the others back."""
        limit = self.rows_max
        if limit is None:
            return group
        left = limit
        for at, piece in enumerate(group):
            count = len(piece.rows)
            if count > left and at:
                self._open.append(group[at:])
                return group[:at]
            if count > left:
                self._open.append([piece._replace(rows=piece.rows[limit:]), *group[1:]])
                return [piece._replace(rows=piece.rows[:limit])]
            left -= count
        return group

    def open_items(self) -> set[int]:
        """Return the items that still have rows to call."""
        return {piece.item for group in self._open for piece in group} - self._closed

    @property
    def is_retrying(self) -> bool:
        """True while rows of failed calls are to be called again."""
        return any(p.tries for group in self._open for p in group if p.item not in self._closed)

    def close(self, item: int) -> None:
        """Call no more rows of an item, since its result is known or no longer wanted."""
        self._closed.add(item)

    def mark_succeeded(self) -> None:
        """Record that the model predicted these rows."""
        self._take_tried()

    def mark_repeated(self) -> bool:
        """Repeat an interrupted call of one item. Return False, with no effect, the second time."""
        assert self._trying, "call next() first"
        item = self._trying[0].item
        if item in self._repeated:
            return False
        self._repeated.add(item)
        self._open.append(self._take_tried())
        return True

    def mark_failed(
        self, why: str, *, divide: bool = False, traceback: ModelTraceback | None = None
    ) -> int | None:
        """Record that these rows failed together: they are halved, or a single row is bad.

        Return the item at fault if it fails as a whole; close it then. With `divide`, the rows of
        such an item are halved as well. `traceback` is that of an unexpected exception.
        """
        group = self._take_tried()
        if len(group) > 1:
            half = len(group) // 2
            self._open.extend((group[half:], group[:half]))
            return None
        piece = group[0]
        half = len(piece.rows) // 2
        if piece.item in self._whole and not (divide and half):
            return piece.item
        if half:
            rows = piece.rows
            self._open.extend(([piece._replace(rows=rows[half:])], [piece._replace(rows=rows[:half])]))
        else:
            self._blame(piece, 0, why, traceback=traceback)
        return None

    def mark_refused(self, refused: Mapping[int, str]) -> dict[int, dict[int, str]]:
        """Record the rows that the model refused by a `RowError`; the others are tried again.

        The keys of `refused` index the rows of the call; others are ignored. If no valid index is
        left, the call counts as failed. Return the refused rows of items that fail as a whole, by
        item; close these.
        """
        group = self._trying
        assert group, "call next() first"
        by_item: dict[int, dict[int, str]] = {}
        rest: list[Piece] = []
        start = 0
        for piece in group:
            stop = start + len(piece.rows)
            named = {row - start: why for row, why in refused.items() if start <= row < stop}
            start = stop
            if piece.item in self._whole and named:
                by_item[piece.item] = {int(piece.rows[row]): why for row, why in named.items()}
                continue
            for row, why in named.items():
                self._blame(piece, row, why, tries=1)
            if len(named) < len(piece.rows):
                kept = np.delete(piece.rows, list(named)) if named else piece.rows
                rest.append(piece._replace(rows=kept))
        if sum(len(piece.rows) for piece in rest) == start:
            item = self.mark_failed(
                f"the model raised RowError for rows {sorted(refused)} of a batch with rows 0 to {start - 1}"
            )
            return {} if item is None else {item: dict(refused)}
        self._trying = rest
        if rest:
            self._open.append(self._take_tried())
        return by_item

    def _take_tried(self) -> Group:
        assert self._trying, "call next() first"
        tried = [piece._replace(tries=piece.tries + 1) for piece in self._trying]
        self._trying = ()
        return tried

    def _blame(
        self, piece: Piece, at: int, why: str, *, tries: int = 0, traceback: ModelTraceback | None = None
    ) -> None:
        row = int(piece.rows[at])
        failure = RowFailure(row, why, piece.tries + tries, traceback)
        self._failures.setdefault(piece.item, {})[row] = failure

    def failures(self, item: int = 0) -> tuple[RowFailure, ...]:
        """Return the bad rows of an item found so far, sorted by row.

        `attempts` is the number of calls that included the row.
        """
        failures = self._failures.get(item, {})
        return tuple([failures[row] for row in sorted(failures)])


def _all(rows: int) -> NDArray[np.int64]:
    """Return ``arange(rows)`` as a read-only view where possible.

    Allocating an array lets other threads take the interpreter lock, so small batches share one.
    """
    return _FIRST[:rows] if rows <= len(_FIRST) else np.arange(rows)


def sample_rows(rows: int, count: int) -> list[int]:
    """Return up to `count` different rows of ``range(rows)``, evenly spread, from the first to the last."""
    if count < 2 or rows <= count:
        return list(range(min(rows, count)))
    return [at * (rows - 1) // (count - 1) for at in range(count)]


class MemoryLimit:
    """The limit of rows per call of one instance, at most `rows_max`.

    Like a congestion window: halved when a call runs out of memory, doubled again after a number of
    full calls, which itself doubles with each attempt that fails.

    A batch that ran out of memory because of one row, which does so alone, does not lower it.
    """

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self.rows = rows_max
        """The current limit."""
        self._probe_calls = PROBE_CALLS
        self._full_calls = 0
        self._was_raised = False
        self._smallest_failed: int | None = None
        self._single_row_failed = False

    def record_success(self, rows: int) -> None:
        """Record a call of this many rows that fit."""
        if self.rows == self.rows_max or rows < self.rows:
            return
        self._full_calls += 1
        if self._full_calls >= self._probe_calls:
            self._full_calls, self._was_raised = 0, True
            self.rows = min(2 * self.rows, self.rows_max)

    def record_out_of_memory(self, rows: int) -> None:
        """Record a call of this many rows that ran out of memory; `settle` draws the conclusion."""
        if rows == 1:
            self._single_row_failed = True
        elif self._smallest_failed is None or rows < self._smallest_failed:
            self._smallest_failed = rows

    @property
    def is_unsettled(self) -> bool:
        """True if a call ran out of memory since the last `settle`."""
        return self._single_row_failed or self._smallest_failed is not None

    def settle(self) -> int | None:
        """Conclude from the failed calls, once each of their rows has a result.

        Return the limit if it was lowered, else None.
        """
        failed, guilty_row = self._smallest_failed, self._single_row_failed
        self._smallest_failed, self._single_row_failed = None, False
        if failed is None or guilty_row or failed > self.rows:
            return None
        if self._was_raised:
            # The attempt to raise the limit has failed: the next one waits for longer.
            self._probe_calls = min(2 * self._probe_calls, PROBE_CALLS_MAX)
        self.rows, self._full_calls, self._was_raised = failed // 2, 0, False
        return self.rows
