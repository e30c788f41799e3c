"""Exceptions in one line."""

import pytest

from headrace.core.errors import ModelContractError, PredictError
from headrace.engine.reason import WHY_CHARS_MAX, ToldError, failure, out_of_memory, reason, room, unforeseen


class _UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (KeyError("age"), "KeyError: 'age'"),
        (SystemExit(3), "SystemExit: 3"),
        (_UnprintableError("x"), "_UnprintableError"),
        (ToldError("ValueError: no"), "ValueError: no"),
        (ToldError(), ""),
    ],
)
def test_type_and_message(error, said):
    """What was told elsewhere is not told to be a telling."""
    assert reason(error) == said


def test_it_is_cut():
    assert len(reason(ValueError("x" * 100_000))) == WHY_CHARS_MAX
    assert len(reason(ToldError("x" * 100_000))) == WHY_CHARS_MAX


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer"), True),
        (ToldError("OutOfMemoryError: CUDA out of memory"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("the record says: out of memory"), False),
    ],
)
def test_out_of_memory_is_told_by_type_and_by_what_frameworks_say(error, told):
    assert out_of_memory(error) is told


def test_errors_of_the_tree_are_told_as_they_are_and_others_by_their_reason():
    own, other = ModelContractError("m", "no"), KeyError("age")
    assert failure("m", own) is own
    told = failure("m", other)
    assert isinstance(told, PredictError)
    assert "KeyError: 'age'" in str(told)
    assert told.__cause__ is other


@pytest.mark.parametrize(
    ("error", "rows", "rows_max"), [(MemoryError(), 9, 4), (MemoryError(), 1, None), (ValueError(), 9, None)]
)
def test_calls_are_half_as_large_once_one_failed_for_want_of_memory(error, rows, rows_max, caplog):
    assert room("m", error, rows) == rows_max
    assert bool(caplog.records) == (rows_max is not None)


def test_what_was_raised_by_us_is_chained_and_its_text_is_not_for_callers():
    raised = ValueError("db.internal:5432")
    error = unforeseen("m", raised, ", and more")
    assert (
        str(error) == "model m: headrace itself failed to answer this, and more, with ValueError: see its log"
    )
    assert (error.model, error.__cause__) == ("m", raised)
