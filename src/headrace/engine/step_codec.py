"""Steps and ends of sequences as messages between an instance and its process.

Orders and endings are plain values. Checkpoints travel with the arrays
(`headrace.engine.shared_arrays`), as one array; their lengths are in the message.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.sequence import SequenceEnd
from headrace.core.tensor import Array
from headrace.engine.stepper import SequenceEnding, StepOrder

_CHECKPOINTS = "checkpoints"

Lengths = Sequence[int | None]
"""Bytes of each checkpoint; None for none."""


def orders_to_wire(orders: Sequence[StepOrder]) -> list[Any]:
    """Return the orders as plain values, without their checkpoints."""
    return [(o.number, o.id, o.steps, o.again, o.end, o.parameters, o.save, o.request) for o in orders]


def orders_from_wire(values: Sequence[Sequence[Any]], restores: Sequence[bytes | None]) -> list[StepOrder]:
    """Return the orders of `orders_to_wire` with their checkpoints."""
    return [
        StepOrder(number, id, steps, again, end, parameters, restore, save, request)
        for (number, id, steps, again, end, parameters, save, request), restore in zip(
            values, restores, strict=True
        )
    ]


def join_checkpoints(checkpoints: Sequence[bytes | None]) -> tuple[Lengths | None, Mapping[str, Array]]:
    """Return the lengths of the checkpoints and all of them as one array.

    Return None and no array without a checkpoint.
    """
    present = [data for data in checkpoints if data is not None]
    if not present:
        return None, {}
    lengths = [None if data is None else len(data) for data in checkpoints]
    return lengths, {_CHECKPOINTS: np.frombuffer(b"".join(present), np.uint8)}


def split_checkpoints(lengths: Lengths | None, arrays: Mapping[str, Array], count: int) -> list[bytes | None]:
    """Return the `count` checkpoints that `join_checkpoints` joined."""
    if lengths is None:
        return [None] * count
    return list(_split(lengths, arrays[_CHECKPOINTS].data))


def _split(lengths: Lengths, data: memoryview) -> Iterator[bytes | None]:
    at = 0
    for length in lengths:
        if length is None:
            yield None
            continue
        yield bytes(data[at : at + length])
        at += length


def endings_to_wire(endings: Sequence[SequenceEnding]) -> list[Any]:
    """Return the endings as plain values."""
    return [tuple(ending) for ending in endings]


def endings_from_wire(values: Sequence[Sequence[Any]]) -> list[SequenceEnding]:
    """Return the endings of `endings_to_wire`."""
    return [SequenceEnding(number, id, steps, SequenceEnd(why)) for number, id, steps, why in values]
