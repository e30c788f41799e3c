"""Exceptions of models: as text of one line, as errors to report, and as a sign of lack of memory."""

import re
from collections.abc import Mapping
from typing import Final

from headrace.core.errors import HeadraceError, PredictError, RefusedRowsError
from headrace.core.model import RowError

WHY_CHARS_MAX: Final = 2000
"""Limit of characters kept of an exception's text."""


class RemoteError(Exception):
    """An exception that a model raised in another process, as the text of `describe_error` there."""


def describe_error(error: BaseException) -> str:
    """Return type and message of an exception, cut at WHY_CHARS_MAX."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide which error it was
        text = ""
    if isinstance(error, RemoteError):
        return text[:WHY_CHARS_MAX]
    kind = type(error).__name__
    return f"{kind}: {text}"[:WHY_CHARS_MAX] if text else kind


def internal_error(model: str, error: BaseException, consequence: str = "") -> PredictError:
    """Return the error of a request that failed through a defect of headrace.

    `consequence` is appended to its text. The error reaches remote clients: the exception is
    chained to it and logged, but its text is left out.
    """
    wrapped = PredictError(
        model,
        f"an internal error ({type(error).__name__}) failed the request{consequence}: "
        "see the log of headrace",
    )
    wrapped.__cause__ = error
    return wrapped


_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|bad_alloc|bad allocation|failed to allocate", re.IGNORECASE
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if a model ran out of memory, its own or a device's, by type or by message."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | RemoteError) and bool(
        _OUT_OF_MEMORY.search(describe_error(error))
    )


def reported_error(model: str, error: BaseException) -> HeadraceError:
    """Return the error to report to the client of a whole request whose call raised `error`.

    A HeadraceError unchanged, a RowError as RefusedRowsError, others as PredictError.
    """
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, RowError):
        return refused_error(model, error.rows, error)
    wrapped = PredictError(model, describe_error(error))
    wrapped.__cause__ = error
    return wrapped


def refused_error(model: str, rows: Mapping[int, object], error: RowError) -> RefusedRowsError:
    """Return the error of a whole request of which the model refused these rows by `error`."""
    reasons = "; ".join(f"row {row}: {str(why)[:WHY_CHARS_MAX]}" for row, why in sorted(rows.items())[:8])
    refused = RefusedRowsError(model, reasons or "it raised RowError without a row")
    refused.__cause__ = error
    return refused
