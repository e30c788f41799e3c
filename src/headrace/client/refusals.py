"""Distinguish refused rows from a request that the endpoint always refuses."""

from headrace.core.errors import EndpointRefusedError

REFUSED_ROWS_MAX = 100
"""The limit of rows refused one by one before the first prediction."""


class RefusalGuard:
    """A counter of predicted and refused rows. It ends a run whose every row is refused.

    An endpoint refuses a wrong input name or type like a bad row. Without this limit, each row of
    the source would be sent twice and fail.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.predicted_rows = 0
        self.refused_rows = 0

    def record_success(self, rows: int) -> None:
        """Count rows with predictions."""
        self.predicted_rows += rows

    def record_refusal(self, why: str, status: int | None) -> None:
        """Count one row that was refused alone. Raises EndpointRefusedError at the limit."""
        self.refused_rows += 1
        if self.predicted_rows == 0 and self.refused_rows >= REFUSED_ROWS_MAX:
            raise EndpointRefusedError(
                self._url,
                f"it refused each of the first {self.refused_rows} rows, so the rows are not the cause: "
                f"do the inputs fit the model? Last refusal: {why}",
                status=status,
            )
