"""The parts that the encoders share: the columns of an output, and its values as text."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from math import isfinite, prod
from typing import Any, Final, Literal, cast

import numpy as np
import orjson

from headrace.core.errors import ConfigError, ModelContractError
from headrace.core.tensor import Array, TensorSpec, datatype_of
from headrace.formats.contract import BlockSelection

Join = Literal["none", "input"]

INPUT: Final = "input"
"""The name of the joined record in formats with names."""


def output_columns(outputs: Mapping[str, Array]) -> tuple[TensorSpec, ...]:
    """Return the specifications of the outputs: names, datatypes and row sizes.

    The outputs are the first ones of a part. Shapes are ``(-1, ...)``. Raise ConfigError for a
    dtype that cannot be written (complex, dates).
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
    """Return the shape of one row: empty for a scalar."""
    return (column.shape or (-1,))[1:]


def row_width(column: TensorSpec) -> int:
    """Return the number of values in one row: 1 for a scalar."""
    return prod(row_shape(column))


def check_join(join: str) -> None:
    """Raise ConfigError if `join` is not a supported way to join."""
    if join not in {"none", "input"}:
        raise ConfigError(f'join must be "none" or "input", not {join!r}')


def check_outputs(
    columns: Sequence[TensorSpec],
    selections: Sequence[BlockSelection],
    outputs: Mapping[str, Array],
    *,
    datatypes: bool = False,
) -> tuple[int, list[Array]]:
    """Return the number of rows, and the outputs in the order of the columns and native byte order.

    Raise ModelContractError if names, row counts or row shapes (or, with `datatypes`, datatypes)
    differ from those at the start of the part.
    """
    rows = sum(map(len, selections))
    if set(outputs) != {column.name for column in columns}:
        first_names = ", ".join(column.name for column in columns)
        raise ModelContractError(
            "?", f"the model returned outputs {', '.join(outputs)}; this part started with {first_names}"
        )
    arrays: list[Array] = []
    for column in columns:
        data = outputs[column.name]
        if data.shape != (rows, *row_shape(column)):
            raise ModelContractError(
                "?",
                f"output {column.name!r} has shape {data.shape} for {rows} records; "
                f"this part started with rows of shape {row_shape(column)}",
            )
        if datatypes and datatype_of(data.dtype) != column.datatype:
            raise ModelContractError(
                "?", f"output {column.name!r} is {data.dtype}; this part started with {column.datatype}"
            )
        arrays.append(data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("=")))
    return rows, arrays


def number_text(numbers: Array, *, nonfinite_names: bool) -> bytes:
    """Return a boolean or number array of any shape as JSON text.

    Each number has the fewest digits that read back to the same value of its dtype. The array has
    native byte order. JSON has no NaN and no infinities: they become null, or with
    `nonfinite_names` ``nan``, ``inf`` and ``-inf``.
    """
    if numbers.dtype == np.float16:
        # orjson would write the shortest digits of float32, more than float16 can hold.
        numbers = numbers.astype("U").astype(np.float64)
    text = orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY)
    if nonfinite_names and numbers.dtype.kind == "f" and b"null" in text:
        nonfinite = numbers[~np.isfinite(numbers)].tolist()
        return text.replace(b"null", b"%b") % tuple(b"%a" % value for value in nonfinite)
    return text


def is_text(data: Array) -> bool:
    """Return True if the elements are strings, bytes or objects rather than numbers."""
    return data.dtype.kind in "OSU"


def text_bytes(value: Any) -> bytes:
    r"""Return an element of a text output as UTF-8.

    Bytes are unchanged, None is empty, and other objects become JSON. A lone surrogate, which has
    no UTF-8 encoding, becomes its ``\uXXXX``.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="backslashreplace")
    if value is None:
        return b""
    return json_text(value)


def json_text(value: Any) -> bytes:
    """Return any value as valid JSON.

    Arrays become lists, and numbers that are not finite become null. Bytes become strings if they
    are UTF-8, else ``{"base64": "..."}``. Keys that are not strings become their JSON text. Objects
    that JSON cannot express become their `str`.
    """
    try:
        return orjson.dumps(value, default=_json_fallback, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # json handles what orjson refuses: lone surrogates, integers beyond 64 bits, keys that are
        # not strings.
        return json.dumps(_to_json_value(value), separators=(",", ":")).encode()


def _json_fallback(value: Any) -> Any:
    """Return a replacement for a value that JSON cannot express."""
    as_list: Any = getattr(value, "tolist", None)
    if as_list is not None:
        return as_list()
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _to_json_value(value: Any) -> Any:
    """Return a value that consists of JSON types at every level."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {
            key if isinstance(key, str) else json_text(key).decode(): _to_json_value(v) for key, v in items
        }
    if isinstance(value, list | tuple):
        return [_to_json_value(inner) for inner in cast("Sequence[Any]", value)]
    return _to_json_value(_json_fallback(value))
