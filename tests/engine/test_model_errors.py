"""Descriptions and conversions of exceptions."""

from cases import for_each
from headrace.core import RowError
from headrace.core.errors import ModelContractError, PredictError, RefusedRowsError
from headrace.engine.model_methods import (
    WHY_CHARS_MAX,
    RemoteError,
    describe_error,
    internal_error,
    is_out_of_memory,
    refused_error,
    reported_error,
)


class _UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError


class OutOfMemoryError(Exception):
    """An error that is known by its name, as that of torch."""


@for_each(
    ("error", "said"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (KeyError("age"), "KeyError: 'age'"),
        (SystemExit(3), "SystemExit: 3"),
        (_UnprintableError("x"), "_UnprintableError"),
        (RemoteError("ValueError: no"), "ValueError: no"),
        (RemoteError(), ""),
    ],
)
def test_description_has_type_and_message(error, said):
    """The description of a RemoteError is not described again."""
    assert describe_error(error) == said


def test_description_is_cut():
    assert len(describe_error(ValueError("x" * 100_000))) == WHY_CHARS_MAX
    assert len(describe_error(RemoteError("x" * 100_000))) == WHY_CHARS_MAX


@for_each(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("allocation on device 0"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer"), True),
        (RemoteError("OutOfMemoryError: CUDA out of memory"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("the record says: out of memory"), False),
    ],
)
def test_out_of_memory_is_found_by_type_and_message(error, expected):
    assert is_out_of_memory(error) is expected


def test_headrace_errors_are_unchanged_others_described():
    own, other = ModelContractError("m", "no"), KeyError("age")
    assert reported_error("m", own) is own
    reported = reported_error("m", other)
    assert isinstance(reported, PredictError)
    assert "KeyError: 'age'" in str(reported)
    assert reported.__cause__ is other


def test_refused_rows_are_reported_as_refused():
    error = RowError({3: "negative age", 7: KeyError("name")})
    reported = reported_error("m", error)
    assert isinstance(reported, RefusedRowsError)
    assert "row 3: negative age; row 7: 'name'" in str(reported)
    assert reported.__cause__ is error
    assert "it raised RowError without a row" in str(reported_error("m", RowError({})))


def test_refused_error_is_bounded():
    """In the rows that it lists, and in the text for each."""
    error = RowError(dict.fromkeys(range(100), "x" * 10_000))
    text = str(refused_error("m", error.rows, error))
    assert ("row 7: x" in text, "row 8: " in text) == (True, False)
    assert len(text) < 9 * WHY_CHARS_MAX


def test_internal_error_is_chained_without_its_text():
    raised = ValueError("db.internal:5432")
    error = internal_error("m", raised, ", and more")
    assert (
        str(error)
        == "model m: an internal error (ValueError) failed the request, and more: see the log of headrace"
    )
    assert (error.model, error.__cause__) == ("m", raised)
