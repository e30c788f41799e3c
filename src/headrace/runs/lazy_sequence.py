"""A sequence whose items are made when they are used, for plans that are too large for the memory."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from typing_extensions import override

Item = TypeVar("Item")
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


class MappedSequence(LazySequence[T_co]):
    """The results of a function for the items of a sequence, each made when it is used."""

    def __init__(self, items: Sequence[Item], function: Callable[[Item], T_co]) -> None:
        self._items = items
        self._function: Callable[[Any], T_co] = function

    @override
    def __len__(self) -> int:
        return len(self._items)

    @override
    def item(self, index: int) -> T_co:
        return self._function(self._items[index])
