"""A sequence whose items are made when they are used, for plans that are too large for the memory."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

from typing_extensions import override

T_co = TypeVar("T_co", covariant=True)


class LazySequence(Sequence[T_co]):
    """A sequence of `item(0)`, `item(1)` and so on. Iterating ends when `item` raises IndexError."""

    @abstractmethod
    def item(self, index: int) -> T_co:
        """Return the item at an index from 0. Raise IndexError after the last one."""
        ...

    @overload
    def __getitem__(self, index: int) -> T_co: ...

    @overload
    def __getitem__(self, index: slice) -> list[T_co]: ...

    @override
    def __getitem__(self, index: int | slice) -> T_co | list[T_co]:
        if isinstance(index, slice):
            return [self.item(place) for place in range(*index.indices(len(self)))]
        return self.item(index if index >= 0 else index + len(self))
