"""The one door to simdjson (extra `fast`): flat JSON arrays of numbers, read without a Python object each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import MissingExtraError

try:
    import simdjson  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtraError("fast", "parsing numbers with simdjson") from error

_DTYPES = {"d": np.dtype(np.float64), "i": np.dtype(np.int64), "u": np.dtype(np.uint64)}


class FlatNumberReader:
    """Reads flat JSON arrays of numbers. Safe to share between threads."""

    def __init__(self) -> None:
        # A parser keeps its memory for the next text. One that is in use belongs to one caller; popping and
        # appending are atomic, so no two threads ever hold the same.
        self._idle: list[Any] = []

    def __call__(self, text: bytes, kind: str) -> NDArray[Any] | None:
        """The numbers of ``[1, 2.5, ...]``; None when it is not JSON, or holds anything but numbers of that kind.

        `kind`: "d" any number, as float64 (the nearest); "i" integers that int64 holds; "u" those that uint64
        holds. Nested arrays are flattened without a word: the caller looks for brackets.
        """
        parser: Any = self._idle.pop() if self._idle else simdjson.Parser()
        array: Any = None
        numbers: NDArray[Any] | None = None
        try:
            array = parser.parse(text)
            numbers = np.frombuffer(array.as_buffer(of_type=kind), _DTYPES[kind])
        except (ValueError, TypeError, RuntimeError):
            numbers = None
        # A parser with a live document would refuse the next text.
        array = None
        self._idle.append(parser)
        return numbers
