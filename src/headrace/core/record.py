"""Values that are made for every request."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_T]) -> type[_T]:
    """Make a dataclass that type checkers hold to be frozen, and Python does not.

    Python's own frozen ones take three to four times as long to make, which for requests, responses and tensors is a
    measurable part of answering a small request. Nobody changes one all the same: it may be shared.
    """
    return dataclass(slots=True)(cls)
