"""TorchServe's ``POST /predictions/NAME``: one row a request, as JSON or raw bytes.

TorchServe has no tensors on this path: a handler takes what it takes and answers what it likes. Here rows become the
plainest JSON there is, and answers become output arrays where their form allows it (`gather_answers`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.errors import DataError, ModelContractError
from headrace.core.tensor import Array, Tensor, text_array
from headrace.protocols.oip_json import decode_error
from headrace.protocols.tensors import DIMENSIONS_MAX, array_from_json, json_values

OUTPUT: Final = "output"
"""What an answer is called that has no names of its own."""


@dataclass(frozen=True, slots=True)
class RowBody:
    """One row, ready to send."""

    body: bytes
    content_type: str


def encode_row(inputs: Sequence[Tensor], row: int) -> RowBody:
    """One row of a request.

    A single BYTES input of one element a row travels as it is: bytes, or text as UTF-8. Any other single input is its
    row as JSON (a number, or nested lists), several are an object by name. NaN is null; DataError for infinities.
    """
    if len(inputs) == 1 and inputs[0].datatype == "BYTES" and inputs[0].data.ndim == 1:
        value = inputs[0].data[row]
        if isinstance(value, bytes):
            return RowBody(value, "application/octet-stream")
        try:
            return RowBody(str(value).encode(), "text/plain; charset=utf-8")
        except UnicodeEncodeError:
            raise DataError(f"tensor {inputs[0].name!r}: it has a lone surrogate, which is no text") from None
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
        raise DataError(f"this row cannot be written as JSON: {error}") from error


def decode_body(body: bytes) -> Any:
    """What one request or answer holds: a JSON value where it is JSON, else text, else the bytes."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What the answers of one model look like, decided once: columns by these names, or whole as JSON text."""

    names: tuple[str, ...] | None

    @classmethod
    def of(cls, answers: Sequence[Any]) -> "AnswerForm":
        """Decide by the first answers: objects with the same keys become columns, other objects JSON text."""
        if not all(isinstance(a, dict) for a in answers):
            mixed = any(isinstance(a, dict) for a in answers)
            return cls(None if mixed else (OUTPUT,))
        keys = [tuple(cast("dict[str, Any]", a)) for a in answers]
        same = all(set(k) == set(keys[0]) for k in keys)
        return cls(keys[0] if same and keys[0] else None)


def gather_answers(answers: Sequence[Any], form: AnswerForm) -> tuple[Tensor, ...]:
    """Answers, one a row, as output arrays.

    Numbers are int64 or float64, booleans BOOL, lists of the same shape arrays of it, text BYTES; whatever differs
    from row to row is JSON text. Raises ModelContractError when objects have not the keys that `form` says, or are
    nested too deeply.
    """
    if form.names is None:
        return (Tensor(OUTPUT, text_array([_json_text(a) for a in answers])),)
    if form.names == (OUTPUT,) and not any(isinstance(a, dict) and OUTPUT in a for a in answers):
        return (Tensor(OUTPUT, _column(answers)),)
    for answer in answers:
        if not isinstance(answer, dict) or set(cast("dict[str, Any]", answer)) != set(form.names):
            raise ModelContractError(
                "?",
                f"an answer is {_json_text(answer)[:200]}, but earlier ones had the keys "
                f"{', '.join(form.names)}: answers that differ can be had whole, as JSON text",
            )
    return tuple(Tensor(name, _column([answer[name] for answer in answers])) for name in form.names)


def _column(values: Sequence[Any]) -> Array:
    """Values of one kind and shape as an array of that; others as JSON text."""
    shape, flat = _shape_and_values(values)
    types = set(map(type, flat))
    if shape is not None:
        if types == {bool}:
            return np.array(flat, bool).reshape(shape)
        if types == {int} and (integers := _integers(flat)) is not None:
            return integers.reshape(shape)
        if types and types <= {int, float, type(None)} and float in types:
            return array_from_json(OUTPUT, "FP64", shape, flat)
        if types in ({str}, {bytes}):
            return text_array(flat).reshape(shape)
    return text_array([v if isinstance(v, str | bytes) else _json_text(v) for v in values])


def _json_text(answer: Any) -> str | bytes:
    """An answer as JSON text; bytes, which are no JSON, as they are."""
    if isinstance(answer, bytes):
        return answer
    try:
        return orjson.dumps(answer).decode()
    except TypeError as error:
        raise ModelContractError("?", f"an answer cannot be written as JSON: {error}") from error


def _integers(values: list[int]) -> Array | None:
    """Int64, or uint64 where one is too large for that (orjson reads none larger); None where neither has room for all."""
    if max(values) < 2**63:
        return np.array(values, np.int64)
    return np.array(values, np.uint64) if min(values) >= 0 else None


def _shape_and_values(values: Sequence[Any]) -> tuple[tuple[int, ...] | None, list[Any]]:
    """The common shape of nested lists, and what is in them in order; no shape when they differ."""
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
    """TorchServe's error document: ``{"code", "type", "message"}``; `type` is a Java exception's name."""

    type: str
    message: str


def decode_error_body(body: bytes) -> ErrorBody:
    """An error's type and message; other forms are taken as text."""
    found = decode_body(body)
    if isinstance(found, dict):
        document = cast("dict[str, Any]", found)
        return ErrorBody(str(document.get("type") or ""), decode_error(body))
    return ErrorBody("", decode_error(body))


def encode_error_body(code: int, type: str, message: str) -> bytes:
    """An error's body."""
    return orjson.dumps({"code": code, "type": type, "message": message}, option=orjson.OPT_INDENT_2) + b"\n"
