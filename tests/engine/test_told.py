"""Errors between processes: the same kind and text, or a ToldError with the reason."""

import orjson
import pytest

from headrace.core.errors import (
    CancelledRequestError,
    CorruptError,
    InstanceLostError,
    LimitError,
    MissingExtraError,
    ModelContractError,
    ModelInputError,
    PredictError,
    SequenceGoneError,
    SequenceLostError,
)
from headrace.core.model import RowError
from headrace.engine.reason import WHY_CHARS_MAX, ToldError, reason
from headrace.engine.told import error_of, told


def _there(error):
    return error_of(orjson.loads(orjson.dumps(told(error))))


@pytest.mark.parametrize(
    "error",
    [
        ModelContractError("m", "why"),
        ModelInputError("m", "why"),
        PredictError("m", "why"),
        InstanceLostError("m", "why"),
        InstanceLostError("m", "why", cause="oom", signal="SIGKILL"),
        InstanceLostError("m", "why", cause="exit", exit_code=3),
        MissingExtraError("onnx", "an ONNX model"),
        SequenceLostError("s", "why"),
        SequenceGoneError("s", "why"),
        CancelledRequestError("gone"),
        LimitError("too much"),
        MemoryError("full"),
        SystemExit("3"),
        KeyboardInterrupt("now"),
    ],
)
def test_what_callers_tell_apart_stays_what_it_is(error):
    found = _there(error)
    assert (type(found), str(found), found.__dict__) == (type(error), str(error), error.__dict__)


def test_rows_keep_their_reasons():
    """As text, cut, whatever they were."""

    found = _there(RowError({0: "a", 7: KeyError("age"), 8: "x" * 9999, 10: "\ud800"}))
    assert isinstance(found, RowError)
    assert (found.rows[0], found.rows[7]) == ("a", "'age'")
    assert (len(found.rows[8]), found.rows[10]) == (WHY_CHARS_MAX, "?")


class _OwnMemoryError(MemoryError):
    pass


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        ValueError("\ud800"),
        _OwnMemoryError("y"),
        CorruptError("z", byte=3),
        ToldError("E: t"),
    ],
)
def test_anything_else_is_told_by_its_reason(error):
    """Once: a reason does not grow with each process that it goes through."""
    found = _there(error)
    assert type(found) is ToldError
    assert reason(found) == reason(error).encode(errors="replace").decode()
    assert reason(_there(found)) == reason(found)
