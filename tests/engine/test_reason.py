"""Exceptions in one line."""

import pytest

from headrace.engine.reason import WHY_CHARS_MAX, ToldError, out_of_memory, reason


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
