"""Text on its way into a model and out of it."""

import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import orjson

from headrace.core.model import RowError
from headrace.core.tensor import Array, text_array

WHY_CHARS_MAX: Final = 400
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")


def one_line(error: BaseException) -> str:
    """A library's error for our messages: its type and the start of its text, without line breaks and colours."""
    text = " ".join(_ESCAPES.sub("", str(error)).split())
    kind = type(error).__name__
    return f"{kind}: {text}"[:WHY_CHARS_MAX] if text else kind


def decoded_text(name: str, data: Array) -> Array:
    """Text as objects of str, which is what models take; bytes are decoded as UTF-8.

    Raises RowError for the rows that are not UTF-8. `name` is the input's, for the message.
    """
    values: list[Any] = data.astype(object).ravel().tolist()
    if not any(isinstance(v, bytes) for v in values):
        return data
    width = max(1, len(values) // max(1, len(data)))
    texts = np.empty(len(values), object)
    refused: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            texts[index] = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            refused[index // width] = f"input {name!r} is not UTF-8: {error.reason} at byte {error.start}"
    if refused:
        raise RowError(refused)
    return texts.reshape(data.shape)


def json_texts(values: Iterable[object]) -> Array:
    """A JSON text for each value, as a flat array of str; numpy's values and arrays are written as numbers."""
    return text_array([orjson.dumps(v, default=_plain, option=_JSON).decode() for v in values])


_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def _plain(value: Any) -> Any:
    """What JSON has no word for, in its words: a mapping as a dict, an array as lists, the rest as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "items"):
        return dict(value.items())
    return str(value)
