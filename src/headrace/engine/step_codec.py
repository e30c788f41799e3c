"""Steps and ends of sequences on their way between an instance and its process: plain values, and checkpoints as one array.

Checkpoints travel with the arrays (`engine.shared_arrays`), one after another; their lengths are told beside them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.sequence import SequenceEnd
from headrace.core.tensor import Array
from headrace.engine.stepper import Ending, StepOrder

_CHECKPOINTS = "checkpoints"

Lengths = Sequence[int | None]
"""Bytes of each; None where there is none."""


def told_orders(orders: Sequence[StepOrder]) -> list[Any]:
    """All but their checkpoints, as plain values."""
    return [(o.number, o.id, o.steps, o.again, o.end, o.parameters, o.save, o.request) for o in orders]


def orders_of(told: Sequence[Sequence[Any]], restores: Sequence[bytes | None]) -> list[StepOrder]:
    """What `told_orders` told, and their checkpoints."""
    return [
        StepOrder(number, id, steps, again, end, parameters, restore, save, request)
        for (number, id, steps, again, end, parameters, save, request), restore in zip(
            told, restores, strict=True
        )
    ]


def joined(checkpoints: Sequence[bytes | None]) -> tuple[Lengths | None, Mapping[str, Array]]:
    """How long each is, and all of them as one array; None and nothing where there are none."""
    there = [data for data in checkpoints if data is not None]
    if not there:
        return None, {}
    lengths = [None if data is None else len(data) for data in checkpoints]
    return lengths, {_CHECKPOINTS: np.frombuffer(b"".join(there), np.uint8)}


def parted(lengths: Lengths | None, found: Mapping[str, Array], count: int) -> list[bytes | None]:
    """What `joined` was given: `count` checkpoints."""
    if lengths is None:
        return [None] * count
    return list(_pieces(lengths, found[_CHECKPOINTS].data))


def _pieces(lengths: Lengths, data: memoryview) -> Iterator[bytes | None]:
    at = 0
    for length in lengths:
        if length is None:
            yield None
            continue
        yield bytes(data[at : at + length])
        at += length


def told_endings(endings: Sequence[Ending]) -> list[Any]:
    """As plain values."""
    return [tuple(ending) for ending in endings]


def endings_of(told: Sequence[Sequence[Any]]) -> list[Ending]:
    """What `told_endings` told."""
    return [Ending(number, id, steps, SequenceEnd(why)) for number, id, steps, why in told]
