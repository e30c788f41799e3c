"""The adapter of simdjson (extra `fast`), which reads number arrays without Python objects."""

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
    """A parser of flat JSON arrays of numbers. Safe to share between threads."""

    def __init__(self) -> None:
        # A parser keeps its memory for the next text, and serves one call at a time. Popping and
        # appending are atomic, so no two threads ever hold the same parser.
        self._idle_parsers: list[Any] = []

    def __call__(self, text: bytes, kind: str) -> NDArray[Any] | None:
        """Return the numbers of a text such as ``[1, 2.5]``.

        Return None if the text is not JSON or has other values. `kind` is "d" for any number as the
        nearest float64, "i" for integers in the range of int64, or "u" for integers in the range of
        uint64. Nested arrays are flattened silently: the caller must check for brackets.
        """
        parser: Any = self._idle_parsers.pop() if self._idle_parsers else simdjson.Parser()
        array: Any = None
        numbers: NDArray[Any] | None = None
        try:
            array = parser.parse(text)
            numbers = np.frombuffer(array.as_buffer(of_type=kind), _DTYPES[kind])
        except (ValueError, TypeError, RuntimeError):
            numbers = None
        # A parser with a live document would reject the next text.
        array = None
        self._idle_parsers.append(parser)
        return numbers
