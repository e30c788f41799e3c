"""What the checks say when a promise is broken: an AssertionError that shows what came and what was promised."""

from collections.abc import Callable

from headrace.core.errors import HeadraceError

_SHOWN_CHARACTERS_MAX = 300


def equal(found: object, wanted: object, what: str) -> None:
    """Raises AssertionError, naming `what` it is of and showing both, when they differ."""
    if found != wanted:
        raise AssertionError(f"{what}: got {shown(found)}, wanted {shown(wanted)}")


def true(holds: bool, why: str) -> None:
    """Raises AssertionError saying `why` when it does not hold."""
    if not holds:
        raise AssertionError(why)


def raises(kind: type[HeadraceError], act: Callable[[], object], what: str) -> HeadraceError:
    """The error of this kind that `act` raises; AssertionError when it answers instead."""
    try:
        answer = act()
    except kind as error:
        return error
    raise AssertionError(f"{what}: got {shown(answer)}, wanted {kind.__name__}")


def shown(value: object) -> str:
    """Its `repr`, cut where it gets long."""
    text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS_MAX:
        return text
    return f"{text[:_SHOWN_CHARACTERS_MAX]}… ({len(text)} characters)"
