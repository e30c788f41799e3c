"""The check of a run's first requests for a model that raises the same exception for every row.

Without it, each row of such a model is called alone. See docs/adr/0030-a-bug-is-not-bad-data.md.
"""

from collections.abc import Callable
from typing import Final

from headrace.batching.bisect import sample_rows
from headrace.core.errors import BrokenModelError
from headrace.core.model_traceback import ModelTraceback
from headrace.engine.model_methods import describe_error

SAMPLED_ROWS: Final = 8
"""The number of rows of a request that are called alone."""
REQUESTS_MAX: Final = 10_000
"""The number of requests of one instance that are failed early. A client decides after a few of them,
but may have submitted many others meanwhile.
"""


class BrokenModelCheck:
    """The check of one instance's first requests. One thread at a time.

    It is closed by the first successful call, by a row or request that fails in another way, and
    after REQUESTS_MAX requests. From then on, every bad row is found by itself. A request that was
    failed early, and that its client submits again with the same id, is searched in full, too.
    """

    def __init__(self) -> None:
        self.is_open = True
        """True while requests are checked."""
        self._failed: set[str] = set()
        """The ids of the requests that were failed early."""
        self._first: ModelTraceback | None = None
        """The traceback of the first request."""

    def close(self) -> None:
        """Check no more requests, since the model works for some row."""
        self.is_open = False

    def fails_alike(
        self,
        request_id: str,
        rows: int,
        first: ModelTraceback,
        try_row: Callable[[int], ModelTraceback | None],
    ) -> bool:
        """Return True if sampled rows of a failed request all raise the exception `first` alone.

        `try_row` calls the model with one row, and returns the traceback of its unexpected
        exception, or None for any other result. A request without an id is not sampled, and
        neither is one of few rows, since a search calls about as many.
        """
        self._first = self._first or first
        if first.key != self._first.key:
            self.is_open = False
            return False
        if rows <= SAMPLED_ROWS or not request_id or request_id in self._failed:
            return False
        for row in sample_rows(rows, SAMPLED_ROWS):
            raised = try_row(row)
            if raised is None or raised.key != first.key:
                self.is_open = False
                return False
        self._failed.add(request_id)
        self.is_open = len(self._failed) < REQUESTS_MAX
        return True


def broken_model_error(model: str, error: BaseException, traceback: ModelTraceback) -> BrokenModelError:
    """Return the error of a request whose sampled rows all raise the same exception."""
    why = traceback.with_place(describe_error(error))
    made = BrokenModelError(model, why, traceback=traceback)
    made.__cause__ = error
    return made
