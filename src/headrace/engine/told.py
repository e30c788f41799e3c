"""Errors on their way between two processes: as plain values, and as errors of the same kind again.

What headrace's own callers tell apart arrives as what it was; anything else as `ToldError`, with its reason.
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
from headrace.engine.reason import WHY_CHARS_MAX, ToldError, reason

_OF_A_MODEL: Final[Mapping[str, type[ModelError]]] = {
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
_OF_A_SEQUENCE: Final[Mapping[str, type[SequenceGoneError | SequenceLostError]]] = {
    kind.__name__: kind for kind in (SequenceGoneError, SequenceLostError)
}
# Of Python's own: what is no Exception ends its request and nothing more, and MemoryError is about a batch's size.
_OF_A_TEXT: Final[Mapping[str, type[BaseException]]] = {
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


def told(error: BaseException) -> dict[str, Any]:
    """An error as plain values, all of its texts cut at WHY_CHARS_MAX."""
    kind = type(error).__name__
    if isinstance(error, RowError):
        rows = {str(row): _text(why) for row, why in error.rows.items()}
        return {"kind": "RowError", "rows": rows}
    if isinstance(error, MissingExtraError):
        return {"kind": kind, "extra": error.extra, "needed_for": error.needed_for}
    if isinstance(error, InstanceLostError):
        facts = {"cause": error.cause, "exit_code": error.exit_code, "signal": error.signal}
        return {"kind": "InstanceLostError", "model": error.model, "why": _text(error.why), **facts}
    if isinstance(error, ModelError) and kind in _OF_A_MODEL:
        return {"kind": kind, "model": error.model, "why": _text(error.why)}
    if isinstance(error, (SequenceGoneError, SequenceLostError)) and kind in _OF_A_SEQUENCE:
        return {"kind": kind, "sequence_id": _text(error.sequence_id), "why": _text(error.why)}
    if _OF_A_TEXT.get(kind) is type(error):
        return {"kind": kind, "why": _text(error)}
    return {"kind": "ToldError", "why": _text(reason(error))}


def _text(value: object) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the rest
        text = type(value).__name__
    # What UTF-8 cannot say would keep the whole error from arriving.
    return text[:WHY_CHARS_MAX].encode(errors="replace").decode()


def error_of(values: Mapping[str, Any]) -> BaseException:
    """The error that `told` was given, or a ToldError with its reason."""
    kind: str = values["kind"]
    if kind == "RowError":
        return RowError({int(row): why for row, why in values["rows"].items()})
    if kind == "MissingExtraError":
        return MissingExtraError(values["extra"], values["needed_for"])
    if kind == "InstanceLostError":
        facts = {name: values[name] for name in ("cause", "exit_code", "signal")}
        return InstanceLostError(values["model"], values["why"], **facts)
    if kind in _OF_A_MODEL:
        return _OF_A_MODEL[kind](values["model"], values["why"])
    if kind in _OF_A_SEQUENCE:
        return _OF_A_SEQUENCE[kind](values["sequence_id"], values["why"])
    return _OF_A_TEXT.get(kind, ToldError)(values["why"])
