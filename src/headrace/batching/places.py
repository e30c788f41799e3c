"""Where sequences live: how many at each place, and at which of them the next one begins. Pure."""

from typing import Final

_DOWN: Final = 1 << 32
"""More than ever live at one place."""
_VACANT: Final = 2 * _DOWN


class Places:
    """So many places, each for any number of sequences; all are up at first."""

    def __init__(self, count: int) -> None:
        # How many live there, and more than that where there are better places, so that the least is the freest.
        self._weights = [0] * count

    def __len__(self) -> int:
        """How many places there are."""
        return len(self._weights)

    def living(self, place: int) -> int:
        """How many live there."""
        return self._weights[place] % _DOWN

    def enter(self) -> int:
        """One more lives where the fewest do, of those places that are up; of any, if none is, but vacated ones come last."""
        weights = self._weights
        place = weights.index(min(weights))
        weights[place] += 1
        return place

    def leave(self, place: int) -> None:
        """One lives there no more."""
        self._weights[place] -= 1

    def up(self, place: int, *, up: bool) -> None:
        """It can be lived there, or not for the moment."""
        vacant = self._weights[place] >= _VACANT
        if up or not vacant:
            self._weights[place] = self.living(place) + (0 if up else _DOWN)

    def vacate(self, place: int) -> None:
        """It cannot be lived there, until it is said to be up."""
        self._weights[place] = self.living(place) + _VACANT
