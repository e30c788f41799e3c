"""Codec of TorchServe's ``POST /predictions/NAME``: one row per request, as JSON or raw bytes.

TorchServe has no tensors on this path: each handler defines its own input and output. A row is
encoded as the simplest JSON. Responses become output arrays if their form allows it
(`outputs_from_responses`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.errors import DataError, ModelContractError
from headrace.core.tensor import Array, Tensor, text_array
from headrace.protocols.oip_documents import decode_error
from headrace.protocols.tensors import DIMENSIONS_MAX, array_from_json, json_values

DEFAULT_OUTPUT: Final = "output"
"""Name of the output of a response without names of its own."""


@dataclass(frozen=True, slots=True)
class RowBody:
    """One row, ready to send."""

    body: bytes
    content_type: str


def encode_row(inputs: Sequence[Tensor], row: int) -> RowBody:
    """Return the body of one row of a request.

    A single BYTES input of one element per row is sent unchanged: bytes, or text as UTF-8. Another
    single input is sent as its row in JSON (a number, or nested lists). Several inputs are an
    object by name. NaN becomes null.

    Raises:
        DataError: The row holds infinities or text that UTF-8 cannot encode.
    """
    if len(inputs) == 1 and inputs[0].datatype == "BYTES" and inputs[0].data.ndim == 1:
        value = inputs[0].data[row]
        if isinstance(value, bytes):
            return RowBody(value, "application/octet-stream")
        try:
            return RowBody(str(value).encode(), "text/plain; charset=utf-8")
        except UnicodeEncodeError:
            raise DataError(
                f"tensor {inputs[0].name!r} has a lone surrogate, which UTF-8 cannot encode"
            ) from None
    return RowBody(_dumps(_row_value(inputs, row)), "application/json")


def _row_value(inputs: Sequence[Tensor], row: int) -> Any:
    values = {t.name: _one_value(t, row) for t in inputs}
    return next(iter(values.values())) if len(values) == 1 else values


def _one_value(tensor: Tensor, row: int) -> Any:
    data = tensor.data[row : row + 1]
    flat = json_values(tensor.name, tensor.datatype, data)
    if data.ndim == 1:
        return flat[0]
    if isinstance(flat, list):
        return np.array(flat, object).reshape(data.shape[1:]).tolist()
    return flat.reshape(data.shape[1:])


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise DataError(f"the row cannot be written as JSON: {error}") from error


def decode_body(body: bytes) -> Any:
    """Return the content of a request or response: the JSON value, else the text, else the bytes."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


@dataclass(frozen=True, slots=True)
class ResponseLayout:
    """The form of a model's responses: columns by `names`, or JSON text if `names` is None.

    It is decided once.
    """

    names: tuple[str, ...] | None

    @classmethod
    def from_responses(cls, responses: Sequence[Any]) -> "ResponseLayout":
        """Decide by the first responses: objects with equal keys become columns.

        Other objects become JSON text.
        """
        if not all(isinstance(a, dict) for a in responses):
            mixed = any(isinstance(a, dict) for a in responses)
            return cls(None if mixed else (DEFAULT_OUTPUT,))
        keys = [tuple(cast("dict[str, Any]", a)) for a in responses]
        same = all(set(k) == set(keys[0]) for k in keys)
        return cls(keys[0] if same and keys[0] else None)


def outputs_from_responses(responses: Sequence[Any], layout: ResponseLayout) -> tuple[Tensor, ...]:
    """Return the output arrays of responses, one response per row.

    Numbers become int64 or float64, booleans BOOL, text BYTES, and lists of one shape arrays of
    that shape. Values that differ in kind or shape from row to row become JSON text.

    Raises:
        ModelContractError: An object has other keys than `layout`, or is nested too deeply.
    """
    if layout.names is None:
        return (Tensor(DEFAULT_OUTPUT, text_array([_json_text(a) for a in responses])),)
    if layout.names == (DEFAULT_OUTPUT,) and not any(
        isinstance(a, dict) and DEFAULT_OUTPUT in a for a in responses
    ):
        return (Tensor(DEFAULT_OUTPUT, _column(responses)),)
    for response in responses:
        if not isinstance(response, dict) or set(cast("dict[str, Any]", response)) != set(layout.names):
            raise ModelContractError(
                "?",
                f"a response is {_json_text(response)[:200]}, but earlier responses had the keys "
                f"{', '.join(layout.names)}: let every response have the same keys",
            )
    return tuple(Tensor(name, _column([response[name] for response in responses])) for name in layout.names)


def _column(values: Sequence[Any]) -> Array:
    """Return values of one kind and shape as an array of these, other values as JSON text."""
    shape, flat = _shape_and_values(values)
    types = set(map(type, flat))
    if shape is not None:
        if types == {bool}:
            return np.array(flat, bool).reshape(shape)
        if types == {int} and (integers := _integers(flat)) is not None:
            return integers.reshape(shape)
        if types and types <= {int, float, type(None)} and float in types:
            return array_from_json(DEFAULT_OUTPUT, "FP64", shape, flat)
        if types in ({str}, {bytes}):
            return text_array(flat).reshape(shape)
    return text_array([v if isinstance(v, str | bytes) else _json_text(v) for v in values])


def _json_text(response: Any) -> str | bytes:
    """Return a response as JSON text. Bytes are not JSON and stay bytes."""
    if isinstance(response, bytes):
        return response
    try:
        return orjson.dumps(response).decode()
    except TypeError as error:
        raise ModelContractError("?", f"a response cannot be written as JSON: {error}") from error


def _integers(values: list[int]) -> Array | None:
    """Return an int64 array, or uint64 if a value needs it, or None if neither fits.

    orjson reads no larger integers.
    """
    if max(values) < 2**63:
        return np.array(values, np.int64)
    return np.array(values, np.uint64) if min(values) >= 0 else None


def _shape_and_values(values: Sequence[Any]) -> tuple[tuple[int, ...] | None, list[Any]]:
    """Return the common shape of nested lists and their values in order.

    The shape is None if the lists differ.
    """
    sizes: list[int] = [len(values)]
    flat = list(values)
    while flat and isinstance(flat[0], list):
        if set(map(type, flat)) != {list} or len(sizes) == DIMENSIONS_MAX:
            return None, []
        lengths = set(map(len, flat))
        if len(lengths) > 1:
            return None, []
        sizes.append(lengths.pop())
        flat = [value for nested in flat for value in nested]
    return tuple(sizes), flat


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """TorchServe's error document: ``{"code", "type", "message"}``.

    `type` is the name of a Java exception.
    """

    type: str
    message: str


def decode_error_body(body: bytes) -> ErrorBody:
    """Return the type and message of an error. Another form of body is read as text."""
    found = decode_body(body)
    if isinstance(found, dict):
        document = cast("dict[str, Any]", found)
        return ErrorBody(str(document.get("type") or ""), decode_error(body))
    return ErrorBody("", decode_error(body))


def encode_error_body(code: int, type: str, message: str) -> bytes:
    """Return the body of an error."""
    return orjson.dumps({"code": code, "type": type, "message": message}, option=orjson.OPT_INDENT_2) + b"\n"
