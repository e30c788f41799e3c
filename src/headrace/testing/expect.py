"""Assertions of the conformance suites: an AssertionError names the subject and both values."""

from collections.abc import Callable

from headrace.core.errors import HeadraceError

_REPR_CHARACTERS_MAX = 300


def equal(actual: object, expected: object, subject: str) -> None:
    """Raise AssertionError with `subject` and both values if they differ."""
    if actual != expected:
        raise AssertionError(f"{subject}: got {short_repr(actual)}, expected {short_repr(expected)}")


def true(condition: bool, message: str) -> None:
    """Raise AssertionError with `message` if `condition` is false."""
    if not condition:
        raise AssertionError(message)


def raises(kind: type[HeadraceError], call: Callable[[], object], subject: str) -> HeadraceError:
    """Return the error of type `kind` that `call` raises, or raise AssertionError if it returns.

    Errors of other types pass through.
    """
    try:
        result = call()
    except kind as error:
        return error
    raise AssertionError(f"{subject}: got {short_repr(result)}, expected {kind.__name__}")


def short_repr(value: object) -> str:
    """Return the `repr` of a value, truncated if long."""
    text = repr(value)
    if len(text) <= _REPR_CHARACTERS_MAX:
        return text
    return f"{text[:_REPR_CHARACTERS_MAX]}… ({len(text)} characters)"
