"""What a model raised: in one line, for those who get no traceback, and what follows from it."""

import logging
import re
from typing import Final

from headrace.core.errors import HeadraceError, PredictError

_log = logging.getLogger("headrace.engine")

WHY_CHARS_MAX: Final = 2000
"""How much of an exception's text is kept."""


class ToldError(Exception):
    """What a model raised elsewhere, as the text that `reason` made of it there."""


def reason(error: BaseException) -> str:
    """An exception as one reason: its type and message, cut at WHY_CHARS_MAX."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide which error it was
        text = ""
    if isinstance(error, ToldError):
        return text[:WHY_CHARS_MAX]
    kind = type(error).__name__
    return f"{kind}: {text}"[:WHY_CHARS_MAX] if text else kind


def unforeseen(model: str, error: BaseException, what: str = "") -> PredictError:
    """What a request comes to when code of ours raised, not its model's; `what` says what else this costs.

    It goes out to callers elsewhere: what was raised is chained to it, and in the log, but its text is not for them.
    """
    told = PredictError(
        model, f"headrace itself failed to answer this{what}, with {type(error).__name__}: see its log"
    )
    told.__cause__ = error
    return told


_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|bad_alloc|bad allocation|failed to allocate", re.IGNORECASE
)


def out_of_memory(error: BaseException) -> bool:
    """Whether a model failed for want of memory, its own or a device's: by type, or by what frameworks say then."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | ToldError) and bool(_OUT_OF_MEMORY.search(reason(error)))


def failure(model: str, error: BaseException) -> HeadraceError:
    """What whoever asked a model is told, that raised this: headrace's own errors as they are, the reason of any other."""
    if isinstance(error, HeadraceError):
        return error
    told = PredictError(model, reason(error))
    told.__cause__ = error
    return told


def room(model: str, error: BaseException, rows: int) -> int | None:
    """How many rows a call may hold from now on, since one of so many failed; None: it was not for want of memory."""
    if rows == 1 or not out_of_memory(error):
        return None
    _log.warning(
        "out of memory: smaller batches from now on",
        extra={"model": model, "rows": rows, "rows_max": rows // 2},
    )
    return rows // 2
