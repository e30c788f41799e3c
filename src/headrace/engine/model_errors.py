"""Exceptions of models: their text, the errors to report, and what they say about memory and device.

Between two processes, they travel as plain values. Error types that clients distinguish keep their
type; any other becomes a `RemoteError`.
"""

import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DataError,
    DeadlineError,
    HeadraceError,
    InstanceLostError,
    LimitError,
    MissingExtraError,
    ModelContractError,
    ModelError,
    ModelInputError,
    ModelLoadError,
    ModelNotFoundError,
    ModelNotReadyError,
    PredictError,
    PredictorError,
    RefusedRowsError,
    SequenceGoneError,
    SequenceLostError,
    StoppedError,
    UnsupportedError,
)
from headrace.core.model import RowError

_log = logging.getLogger("headrace.engine")

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


class ProcessFault:
    """The first unrecoverable error of a model in this process, shared by its instances in threads.

    They use one device context, so all of them are lost with the first. Any thread.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason: str | None = None
        """The reason to report to clients; None while the process can call the model."""

    def error(self) -> InstanceLostError | None:
        """Return the error of a call that this process cannot make; None if it can."""
        reason = self.reason
        return None if reason is None else InstanceLostError(self._model, reason, cause="unrecoverable")

    def raise_error(self) -> None:
        """Raise the error of a call that this process cannot make, if it cannot."""
        if (error := self.error()) is not None:
            raise error

    def check(
        self, error: BaseException, is_unrecoverable: Callable[[BaseException], bool]
    ) -> InstanceLostError | None:
        """Return the error to report instead of an unrecoverable `error` of the model, else None.

        The first unrecoverable error is logged, and the callbacks are called.
        """
        if is_out_of_memory(error) or not self._names(error, is_unrecoverable):
            return None
        with self._lock:
            is_first = self.reason is None
            if is_first:
                self.reason = (
                    f"it raised an error after which it needs a new process: {describe_error(error)}"
                )
            callbacks = list(self._callbacks) if is_first else []
        if is_first:
            _log.error(
                "the model cannot be called any more in this process: %s",
                describe_error(error),
                extra={"model": self._model},
            )
        for callback in callbacks:
            callback()
        return self.error()

    def _names(self, error: BaseException, is_unrecoverable: Callable[[BaseException], bool]) -> bool:
        try:
            return is_unrecoverable(error)
        except Exception:  # noqa: BLE001 - the error of the call is the one to report
            _log.exception("is_unrecoverable of a model failed", extra={"model": self._model})
            return False

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Add a callback for the fault, called once, in the thread that raised the error."""
        with self._lock:
            self._callbacks.append(callback)

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """Remove a callback. Does nothing the second time."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


_MODEL_ERRORS: Final[Mapping[str, type[ModelError]]] = {
    kind.__name__: kind
    for kind in (
        ModelContractError,
        ModelError,
        ModelInputError,
        ModelLoadError,
        ModelNotFoundError,
        ModelNotReadyError,
        PredictError,
    )
}
_SEQUENCE_ERRORS: Final[Mapping[str, type[SequenceGoneError | SequenceLostError]]] = {
    kind.__name__: kind for kind in (SequenceGoneError, SequenceLostError)
}
# Of Python's own: exceptions outside of Exception end their request only, and MemoryError concerns
# the batch size.
_TEXT_ERRORS: Final[Mapping[str, type[BaseException]]] = {
    kind.__name__: kind
    for kind in (
        CancelledRequestError,
        ConfigError,
        DataError,
        DeadlineError,
        KeyboardInterrupt,
        LimitError,
        MemoryError,
        PredictorError,
        StoppedError,
        SystemExit,
        UnsupportedError,
    )
}


def error_to_wire(error: BaseException) -> dict[str, Any]:
    """Return an error as plain values, its texts cut at WHY_CHARS_MAX."""
    kind = type(error).__name__
    if isinstance(error, RowError):
        rows = {str(row): _text(why) for row, why in error.rows.items()}
        return {"kind": "RowError", "rows": rows}
    if isinstance(error, MissingExtraError):
        return {"kind": kind, "extra": error.extra, "needed_for": error.needed_for}
    if isinstance(error, InstanceLostError):
        details = {"cause": error.cause, "exit_code": error.exit_code, "signal": error.signal}
        return {"kind": "InstanceLostError", "model": error.model, "why": _text(error.why), **details}
    if isinstance(error, ModelError) and kind in _MODEL_ERRORS:
        return {"kind": kind, "model": error.model, "why": _text(error.why)}
    if isinstance(error, (SequenceGoneError, SequenceLostError)) and kind in _SEQUENCE_ERRORS:
        return {"kind": kind, "sequence_id": _text(error.sequence_id), "why": _text(error.why)}
    if _TEXT_ERRORS.get(kind) is type(error):
        return {"kind": kind, "why": _text(error)}
    return {"kind": "RemoteError", "why": _text(describe_error(error))}


def _text(value: object) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the rest
        text = type(value).__name__
    # Text that UTF-8 cannot encode would keep the whole error from arriving.
    return text[:WHY_CHARS_MAX].encode(errors="replace").decode()


def error_from_wire(values: Mapping[str, Any]) -> BaseException:
    """Return the error that `error_to_wire` encoded, or a RemoteError with its description."""
    kind: str = values["kind"]
    if kind == "RowError":
        return RowError({int(row): why for row, why in values["rows"].items()})
    if kind == "MissingExtraError":
        return MissingExtraError(values["extra"], values["needed_for"])
    if kind == "InstanceLostError":
        details = {name: values[name] for name in ("cause", "exit_code", "signal")}
        return InstanceLostError(values["model"], values["why"], **details)
    if kind in _MODEL_ERRORS:
        return _MODEL_ERRORS[kind](values["model"], values["why"])
    if kind in _SEQUENCE_ERRORS:
        return _SEQUENCE_ERRORS[kind](values["sequence_id"], values["why"])
    return _TEXT_ERRORS.get(kind, RemoteError)(values["why"])
