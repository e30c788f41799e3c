"""Placement of sequences on instances: counts sequences and picks the instance of a new one."""

from typing import Final

_DOWN: Final = 1 << 32
"""Penalty of an unavailable instance: more than the number of sequences on any instance."""
_RETIRED: Final = 2 * _DOWN


class InstancePlacement:
    """A fixed number of instances, each with any number of sequences. All are available at first."""

    def __init__(self, count: int) -> None:
        # The number of sequences plus a penalty for unavailable instances: the minimum is the best
        # instance.
        self._weights = [0] * count

    def __len__(self) -> int:
        """Return the number of instances."""
        return len(self._weights)

    def count(self, instance: int) -> int:
        """Return the number of sequences on an instance."""
        return self._weights[instance] % _DOWN

    def assign(self) -> int:
        """Count one more sequence on the best instance and return that instance.

        The best is the available instance with the fewest sequences. If none is available, take an
        unavailable one; retired instances come last.
        """
        weights = self._weights
        instance = weights.index(min(weights))
        weights[instance] += 1
        return instance

    def release(self, instance: int) -> None:
        """Count one sequence less on an instance."""
        self._weights[instance] -= 1

    def set_available(self, instance: int, *, available: bool) -> None:
        """Mark an instance as available, or as unavailable for the moment.

        A retired instance stays retired until it is available.
        """
        retired = self._weights[instance] >= _RETIRED
        if available or not retired:
            self._weights[instance] = self.count(instance) + (0 if available else _DOWN)

    def retire(self, instance: int) -> None:
        """Mark an instance as gone. Only `set_available` brings it back."""
        self._weights[instance] = self.count(instance) + _RETIRED
