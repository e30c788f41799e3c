import pytest

from headrace.core.errors import DataError, EmptySourceError, HeadraceError
from headrace.testing.expect import equal, raises, short_repr, true


def empty():
    raise EmptySourceError("memory://a", "nothing")


def test_true_conditions_raise_nothing():
    equal(b"1", b"1", "bytes")
    true(True, "true")
    assert isinstance(raises(DataError, empty, "reading"), EmptySourceError)


def test_failures_show_both_values():
    with pytest.raises(AssertionError, match=r"^the sum: got 3, expected 4$"):
        equal(3, 4, "the sum")
    with pytest.raises(AssertionError, match=r"^it is not so$"):
        true(False, "it is not so")
    with pytest.raises(AssertionError, match=r"^reading: got 7, expected DataError$"):
        raises(DataError, lambda: 7, "reading")


def test_other_errors_pass_through():
    with pytest.raises(HeadraceError, match="nothing"):
        raises(type("OtherError", (HeadraceError,), {}), empty, "reading")


def test_long_values_are_truncated():
    assert short_repr(b"x" * 1000).endswith("… (1003 characters)")
    assert len(short_repr(b"x" * 1000)) < 330
