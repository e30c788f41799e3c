"""Errors between two processes: encoded as plain values, decoded as errors of the same type.

Error types that clients distinguish keep their type; any other becomes a `RemoteError`.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DataError,
    DeadlineError,
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
    SequenceGoneError,
    SequenceLostError,
    StoppedError,
    UnsupportedError,
)
from headrace.core.model import RowError
from headrace.engine.model_errors import WHY_CHARS_MAX, RemoteError, describe_error

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
