"""The places of records in their source, as columns before the predictions (``--join key``, ``position``)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.tensor import Array
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.encode import source_names

PlaceJoin = Literal["input", "key", "position"]
"""The columns: the key as ``input``, the key as ``key``, or object, member, record and line."""


Arrange = Callable[[Sequence[BlockSelection], Mapping[str, Array]], Mapping[str, Array]]
"""A function that returns the columns to write for records and their outputs."""


class ColumnsEncoder(Encoder):
    """An encoder of the columns that `arrange` returns for records and their outputs.

    Such columns are the outputs under other names, and columns of the records before them.
    """

    def __init__(self, inner: Encoder, arrange: Arrange) -> None:
        self._inner = inner
        self._arrange = arrange

    @override
    def begin(self) -> bytes:
        return self._inner.begin()

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        return self._inner.encode(selections, self._arrange(selections, outputs))

    @override
    def finish(self) -> bytes:
        return self._inner.finish()


def place_columns(join: PlaceJoin, selections: Sequence[BlockSelection]) -> dict[str, Array]:
    """Return the columns of the selected records. Text is in object arrays; numbers are int64.

    A key is ``object``, or ``object!member``; windows and frames have their time, as in
    ``speech.wav#t=0.5``. `record` counts from 0 and `line` from 1. A record of no archive has an empty
    `member`.
    """
    if join != "position":
        names = [name for s in selections for name in source_names(s.block, s.indices().tolist())]
        return {join: _texts([name.decode(errors="surrogateescape") for name in names])}
    firsts = [(s.block.first, len(s)) for s in selections]
    places = [s.block.places_of(s.indices()) for s in selections]
    return {
        "object": _texts([first.object for first, count in firsts for _ in range(count)]),
        "member": _texts([first.member or "" for first, count in firsts for _ in range(count)]),
        "record": _numbers([place.records for place in places]),
        "line": _numbers([place.lines for place in places]),
    }


def _texts(values: Sequence[str]) -> Array:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _numbers(parts: Sequence[NDArray[np.int64]]) -> Array:
    return np.concatenate([np.empty(0, np.int64), *parts])
