"""What the encoders share: the columns of an output, and its values as text."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from math import isfinite, prod
from typing import Any, Final, Literal, cast

import numpy as np
import orjson

from headrace.core.errors import ConfigError, ModelContractError
from headrace.core.tensor import Array, TensorSpec, datatype_of
from headrace.formats.contract import Piece

Join = Literal["none", "input"]

INPUT: Final = "input"
"""What the joined record is called where it needs a name."""


def output_columns(outputs: Mapping[str, Array]) -> tuple[TensorSpec, ...]:
    """What an encoder must know of the outputs, from the first ones: names, datatypes, sizes of a row.

    Shapes are ``(-1, ...)``. Raises ConfigError for a dtype that cannot be written (complex, dates).
    """
    return tuple(_output_column(name, data) for name, data in outputs.items())


def _output_column(name: str, data: Array) -> TensorSpec:
    try:
        datatype = datatype_of(data.dtype)
    except TypeError as error:
        raise ConfigError(
            f"output {name!r} cannot be written: {error}; convert it in the model's predict"
        ) from error
    return TensorSpec(name, datatype, (-1, *data.shape[1:]))


def row_shape(column: TensorSpec) -> tuple[int, ...]:
    """The shape of one row: empty for a scalar."""
    return (column.shape or (-1,))[1:]


def row_width(column: TensorSpec) -> int:
    """How many values one row has: 1 for a scalar."""
    return prod(row_shape(column))


def check_join(join: str) -> None:
    """Raises ConfigError for what is no way to join."""
    if join not in {"none", "input"}:
        raise ConfigError(f'join must be "none" or "input", not {join!r}')


def checked_outputs(
    columns: Sequence[TensorSpec],
    pieces: Sequence[Piece],
    outputs: Mapping[str, Array],
    *,
    datatypes: bool = False,
) -> tuple[int, list[Array]]:
    """How many rows, and the outputs in the columns' order and the machine's byte order.

    Raises ModelContractError when names, row counts or row shapes (or, asked for, datatypes) are not those that
    the part began with.
    """
    rows = sum(map(len, pieces))
    if set(outputs) != {column.name for column in columns}:
        began = ", ".join(column.name for column in columns)
        raise ModelContractError(
            "?", f"it answered with outputs {', '.join(outputs)}; this part began with {began}"
        )
    arrays: list[Array] = []
    for column in columns:
        data = outputs[column.name]
        if data.shape != (rows, *row_shape(column)):
            raise ModelContractError(
                "?",
                f"output {column.name!r} has shape {data.shape} for {rows} records; "
                f"this part began with rows of shape {row_shape(column)}",
            )
        if datatypes and datatype_of(data.dtype) != column.datatype:
            raise ModelContractError(
                "?", f"output {column.name!r} is {data.dtype}; this part began with {column.datatype}"
            )
        arrays.append(data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("=")))
    return rows, arrays


def number_text(numbers: Array, *, nonfinite_names: bool) -> bytes:
    """A boolean or number array of any shape as a JSON text, each number in the fewest digits of its own dtype.

    The array is in the machine's byte order.

    JSON has no NaN and no infinities: they are null, or with `nonfinite_names` ``nan``, ``inf`` and ``-inf``.
    """
    if numbers.dtype == np.float16:
        # The shortest digits of float32, which is what orjson would write, say more than float16 knows.
        numbers = numbers.astype("U").astype(np.float64)
    text = orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY)
    if nonfinite_names and numbers.dtype.kind == "f" and b"null" in text:
        wrong = numbers[~np.isfinite(numbers)].tolist()
        return text.replace(b"null", b"%b") % tuple(b"%a" % value for value in wrong)
    return text


def is_text(data: Array) -> bool:
    """Whether its elements are strings, bytes or objects rather than numbers."""
    return data.dtype.kind in "OSU"


def text_bytes(value: Any) -> bytes:
    r"""An element of a text output as UTF-8: bytes as they are, None empty, what is no string as JSON.

    A lone surrogate, which UTF-8 has no bytes for, becomes its ``\uXXXX``.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="backslashreplace")
    if value is None:
        return b""
    return json_text(value)


def json_text(value: Any) -> bytes:
    """Any value as JSON: valid whatever it is, or holds.

    Arrays are lists; what is not finite is null; bytes are strings where they are UTF-8, else
    ``{"base64": "..."}``; keys that are no strings are their JSON text, and what JSON has no words for is its `str`.
    """
    try:
        return orjson.dumps(value, default=_plainer, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # A lone surrogate, an integer beyond 64 bits, a key that is no string: the slow way knows how.
        return json.dumps(_plain(value), separators=(",", ":")).encode()


def _plainer(value: Any) -> Any:
    """A value that JSON does not know, as one that it knows better."""
    as_list: Any = getattr(value, "tolist", None)
    if as_list is not None:
        return as_list()
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _plain(value: Any) -> Any:
    """A value as nothing but what JSON has, through and through."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key if isinstance(key, str) else json_text(key).decode(): _plain(v) for key, v in items}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast("Sequence[Any]", value)]
    return _plain(_plainer(value))
