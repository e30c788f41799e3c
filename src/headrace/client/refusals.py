"""Tells rows that are refused from a request that is wrong as such, by whether any row was ever answered."""

from headrace.core.errors import EndpointRefusedError

REFUSED_ROWS_MAX = 100
"""How many rows may be refused one by one before the first is answered; the next would only be refused too."""


class RefusalGuard:
    """Counts rows; ends the run that asks for something the endpoint never gives.

    A wrong input name or type is refused like a bad row. Without this every row of the source would be asked about
    twice, and fail.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.answered_rows = 0
        self.refused_rows = 0

    def answered(self, rows: int) -> None:
        """These rows have predictions."""
        self.answered_rows += rows

    def refused(self, why: str, status: int | None) -> None:
        """One row was refused on its own. Raises EndpointRefusedError when it is one of too many."""
        self.refused_rows += 1
        if self.answered_rows == 0 and self.refused_rows >= REFUSED_ROWS_MAX:
            raise EndpointRefusedError(
                self._url,
                f"it refused each of the first {self.refused_rows} rows, so it is not about the rows: do the "
                f"inputs fit the model? Last refusal: {why}",
                status=status,
            )
