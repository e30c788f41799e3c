"""Text on its way into and out of a model."""

import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import orjson

from headrace.core.model import RowError
from headrace.core.tensor import Array, text_array

WHY_CHARS_MAX: Final = 400
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")


def summarize_error(error: BaseException) -> str:
    """Return a library's error in one line: its type and the start of its text, without colours."""
    text = " ".join(_ESCAPES.sub("", str(error)).split())
    kind = type(error).__name__
    return f"{kind}: {text}"[:WHY_CHARS_MAX] if text else kind


def decode_text(name: str, data: Array) -> Array:
    """Return text as objects of str. Bytes are decoded as UTF-8.

    `name` is the input's name in messages.

    Raises:
        RowError: Rows are not UTF-8.
    """
    values: list[Any] = data.astype(object).ravel().tolist()
    if not any(isinstance(v, bytes) for v in values):
        return data
    width = max(1, len(values) // max(1, len(data)))
    texts = np.empty(len(values), object)
    errors: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            texts[index] = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            errors[index // width] = f"input {name!r} is not UTF-8: {error.reason} at byte {error.start}"
    if errors:
        raise RowError(errors)
    return texts.reshape(data.shape)


def encode_json_texts(values: Iterable[object]) -> Array:
    """Return a JSON text for each value, as a flat array of str.

    numpy's values and arrays become numbers.
    """
    return text_array([orjson.dumps(v, default=_plain, option=_JSON).decode() for v in values])


_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def _plain(value: Any) -> Any:
    """Return a JSON form of another type.

    A mapping becomes a dict, an array becomes lists, another value its text.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "items"):
        return dict(value.items())
    return str(value)
