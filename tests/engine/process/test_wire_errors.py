"""Errors survive their way to another process: their types where known, else their text."""

import orjson

from cases import for_each
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
from headrace.engine.model_methods import WHY_CHARS_MAX, RemoteError, describe_error
from headrace.engine.process.request_codec import error_from_wire, error_to_wire


def _round_trip(error):
    return error_from_wire(orjson.loads(orjson.dumps(error_to_wire(error))))


@for_each(
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
def test_known_errors_keep_their_type(error):
    found = _round_trip(error)
    assert (type(found), str(found), found.__dict__) == (type(error), str(error), error.__dict__)


def test_row_errors_keep_their_reasons():
    """As text, cut."""

    found = _round_trip(RowError({0: "a", 7: KeyError("age"), 8: "x" * 9999, 10: "\ud800"}))
    assert isinstance(found, RowError)
    assert (found.rows[0], found.rows[7]) == ("a", "'age'")
    assert (len(found.rows[8]), found.rows[10]) == (WHY_CHARS_MAX, "?")


class _OwnMemoryError(MemoryError):
    pass


@for_each(
    "error",
    [
        ValueError("x"),
        ValueError("\ud800"),
        _OwnMemoryError("y"),
        CorruptError("z", byte=3),
        RemoteError("E: t"),
    ],
)
def test_other_errors_become_remote_errors(error):
    """Once: the description does not grow with each process."""
    found = _round_trip(error)
    assert type(found) is RemoteError
    assert describe_error(found) == describe_error(error).encode(errors="replace").decode()
    assert describe_error(_round_trip(found)) == describe_error(found)
