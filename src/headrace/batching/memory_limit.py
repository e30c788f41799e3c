"""The number of rows per call that fit into memory. Pure.

Like a congestion window: halved when a call runs out of memory, doubled again after a number of
full calls, which itself doubles with each attempt that fails.
"""

from typing import Final

PROBE_CALLS: Final = 16
"""Number of full calls after which a lowered limit is doubled."""
PROBE_CALLS_MAX: Final = 1024


class MemoryLimit:
    """The limit of rows per call of one instance, at most `rows_max`.

    A batch that ran out of memory because of one row, which does so alone, does not lower it.
    """

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self.rows = rows_max
        """The current limit."""
        self._probe_calls = PROBE_CALLS
        self._full_calls = 0
        self._was_raised = False
        self._smallest_failed: int | None = None
        self._single_row_failed = False

    def record_success(self, rows: int) -> None:
        """Record a call of this many rows that fit."""
        if self.rows == self._rows_max or rows < self.rows:
            return
        self._full_calls += 1
        if self._full_calls >= self._probe_calls:
            self._full_calls, self._was_raised = 0, True
            self.rows = min(2 * self.rows, self._rows_max)

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
