import pytest

from headrace.core.errors import DataError, EmptySourceError, HeadraceError
from headrace.testing.expect import equal, raises, shown, true


def empty():
    raise EmptySourceError("memory://a", "nothing")


def test_what_holds_is_silent():
    equal(b"1", b"1", "bytes")
    true(True, "true")
    assert isinstance(raises(DataError, empty, "reading"), EmptySourceError)


def test_what_breaks_is_shown():
    with pytest.raises(AssertionError, match=r"^the sum: got 3, wanted 4$"):
        equal(3, 4, "the sum")
    with pytest.raises(AssertionError, match=r"^it is not so$"):
        true(False, "it is not so")
    with pytest.raises(AssertionError, match=r"^reading: got 7, wanted DataError$"):
        raises(DataError, lambda: 7, "reading")


def test_another_error_comes_through():
    with pytest.raises(HeadraceError, match="nothing"):
        raises(type("OtherError", (HeadraceError,), {}), empty, "reading")


def test_long_values_are_cut():
    assert shown(b"x" * 1000).endswith("… (1003 characters)")
    assert len(shown(b"x" * 1000)) < 330
