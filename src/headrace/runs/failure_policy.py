"""The consequences of records that cannot be predicted, and the limits of their number."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from headrace.core.errors import TooManyFailuresError
from headrace.core.settings import Setting, check

OnError = Literal["record", "object", "job"]


SHARE_ROWS_MIN: Final = 1000
"""The number of records from which on the share of failures is checked."""
DEFAULT_FAILED_ROWS_MAX: Final = 10_000
DEFAULT_FAILED_BYTES_MAX: Final = 64 << 20
DEFAULT_FAILED_SHARE_MAX: Final = 0.5
_DEFAULT_LIMIT: Final = (
    f"above {DEFAULT_FAILED_ROWS_MAX:,} failed records (or {DEFAULT_FAILED_BYTES_MAX >> 20} MiB of them) "
    f"that are more than {DEFAULT_FAILED_SHARE_MAX:.0%} of all"
)


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The consequence of a record that cannot be predicted.

    With "record", the record is written to the file of failed records beside the output. With
    "object", its whole object gets no output, as with SageMaker (transforms only). With "job", the
    run stops. None is "record", and the run stops with BrokenModelError if its model raises the
    same unexpected exception for every row of its first batches (`headrace.runs.first_batches`).

    A run stops when more than `failed_rows_max` records, or more than `failed_share_max` of all
    records failed. The share is checked after `SHARE_ROWS_MIN` records, and at the end. Without
    either limit, the default limit applies: a run stops when more than `DEFAULT_FAILED_ROWS_MAX`
    records failed, or the failed records have more than `DEFAULT_FAILED_BYTES_MAX`, and they are
    more than `DEFAULT_FAILED_SHARE_MAX` of all records. A `failed_share_max` of 1 is no limit.
    """

    on_error: Annotated[
        OnError | None,
        Setting(
            "Scope of a failed record: it alone (record), its object's output (object), or the run (job).",
            default="record, and stop if the model raises the same exception for every row of its first "
            "batches",
        ),
    ] = None
    failed_rows_max: Annotated[
        int | None,
        Setting("Limit of failed records; above it the run stops.", least=0, python_only=True),
    ] = None
    failed_share_max: Annotated[
        float | None,
        Setting(
            "Limit of the share of failed records; above it the run stops. 1 is no limit.",
            least=0,
            most=1,
            python_only=True,
        ),
    ] = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def stops_broken_model(self) -> bool:
        """True if a model that fails every row of its first batches stops the run."""
        return self.on_error is None

    @property
    def has_default_limit(self) -> bool:
        """True if no limit is set, so that the default limit applies."""
        return self.failed_rows_max is None and self.failed_share_max is None

    def describe(self) -> str:
        """Return the limits of failed records for the plan of a run."""
        if self.on_error == "job":
            return "the first stops the run"
        if self.has_default_limit:
            return f"the run stops {_DEFAULT_LIMIT} (--max-failed)"
        most, share = self.failed_rows_max, self.failed_share_max
        limits = [
            "" if most is None else f"{most:,} failed records",
            "" if share is None or share >= 1 else f"{share * 100:g}% failed records",
        ]
        found = " or ".join(filter(None, limits))
        return f"the run stops above {found} (--max-failed)" if found else "no limit"

    def check(
        self,
        destination: str,
        failed: int,
        records: int,
        *,
        at_end: bool,
        failed_bytes: int = 0,
        hint: str = "",
    ) -> None:
        """Raise TooManyFailuresError if more records of a run failed than its limits allow.

        `failed_bytes` is the size of the failed records. `hint` is a likely cause, for the message.
        """
        most, share = self.failed_rows_max, self.failed_share_max
        if self.has_default_limit:
            is_many = failed > DEFAULT_FAILED_ROWS_MAX or failed_bytes > DEFAULT_FAILED_BYTES_MAX
            if not is_many or failed <= DEFAULT_FAILED_SHARE_MAX * records:
                return
            why = f"{failed:,} of {records:,} records failed, and a run stops {_DEFAULT_LIMIT}"
        elif most is not None and failed > most:
            why = f"{failed:,} records failed, and failed_rows_max is {most:,}"
        elif share is not None and failed > share * records and (at_end or records >= SHARE_ROWS_MIN):
            why = f"{failed:,} of {records:,} records failed, and failed_share_max is {share:g}"
        else:
            return
        higher = "--max-failed (a count, a share, or none)" if self.has_default_limit else "a higher limit"
        raise TooManyFailuresError(
            f"{destination}: {why}. {hint}Finished work stays; its failed records are in files beside it. "
            f"Continue with --resume and {higher}"
        )
