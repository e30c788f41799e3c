"""The position of a page in a log whose entries have increasing numbers, newest first."""

from typing import Final

from headrace.core.errors import DataError

_NUMBER_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 19


def number_before(after: str) -> int:
    """Return the number that is greater than all numbers of a page, from the page's `after`.

    The first page has "". Raise DataError for an invalid position.
    """
    if not after:
        return _NUMBER_MAX
    if not after.isdecimal() or len(after) > _DIGITS_MAX or int(after) > _NUMBER_MAX:
        raise DataError(
            f"after: invalid position {after!r:.80}: use next_after of the previous page, or begin again"
        )
    return int(after)
