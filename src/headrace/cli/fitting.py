"""Makes a request of what was given and of what the server says of its model: names, shapes, datatypes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final, cast

import numpy as np

from headrace.cli.given import Document, Given, Json, Table
from headrace.core.errors import DataError
from headrace.core.tensor import (
    Array,
    InferRequest,
    ModelMetadata,
    Tensor,
    TensorSpec,
    datatype_of,
    dtype_of,
    text_array,
)
from headrace.protocols.oip_json import decode_request
from headrace.protocols.plain_json import array_of_json, datatype_for, declared, fitted, takes
from headrace.protocols.tensors import array_from_json

DEFAULT_TEXT_INPUT: Final = "text_input"
"""Where text goes when the server does not say what its model takes, as in the generate extension."""


def fit_request(
    given: Sequence[Given],
    texts: Sequence[str],
    metadata: ModelMetadata,
    parameters: Mapping[str, Any] | None = None,
) -> InferRequest:
    """The request that was meant. Raises DataError, with what the model takes, for what does not fit it."""
    documents = [g.value for g in given if isinstance(g.value, Document)]
    if documents:
        if len(given) > 1 or texts:
            raise DataError("a whole request is given alone: it has all inputs in it")
        request = decode_request(documents[0].body, bf16="float32").request
        return replace(request, parameters={**request.parameters, **(parameters or {})})
    tensors: dict[str, Array] = {}
    for each in given:
        for name, array in _arrays(each, metadata).items():
            if name in tensors:
                raise DataError(f"input {name!r} is given twice")
            tensors[name] = array
    if texts:
        name = _text_input(metadata)
        if name in tensors:
            raise DataError(f"input {name!r} is given twice: by --input and by --text")
        tensors[name] = fitted(name, text_array(texts), declared(name, metadata))
    if not tensors:
        raise DataError(f"there is no input: give --input or --text. {takes(metadata)}")
    missing = [s.name for s in metadata.inputs if s.name not in tensors]
    if missing and len(tensors) < len(metadata.inputs) and _all_needed(metadata):
        raise DataError(f"input {', '.join(map(repr, missing))} is missing. {takes(metadata)}")
    made = tuple(Tensor(name, array) for name, array in tensors.items())
    return InferRequest(made, parameters=dict(parameters or {}))


def _all_needed(metadata: ModelMetadata) -> bool:
    """ONNX and the like take all their inputs; a Python model's may have defaults, and it says itself what is missing."""
    return metadata.platform.startswith(("onnx", "tensorrt", "tensorflow"))


def _arrays(given: Given, metadata: ModelMetadata) -> dict[str, Array]:
    value = given.value
    if isinstance(value, Table):
        return _of_table(given.name, value, metadata)
    if isinstance(value, Json) and isinstance(value.value, dict):
        if given.name is not None:
            raise DataError(f"input {given.name!r} must be values, not an object")
        named = cast("dict[str, Any]", value.value)
        return {name: array_of_json(name, data, declared(name, metadata)) for name, data in named.items()}
    if isinstance(value, Mapping):
        if given.name is not None:
            if len(value) != 1:
                raise DataError(f"input {given.name!r}: the file has {len(value)} arrays ({_listed(value)})")
            value = {given.name: next(iter(value.values()))}
        return {name: _of_array(name, array, declared(name, metadata)) for name, array in value.items()}
    name = given.name or _only_input(metadata)
    spec = declared(name, metadata)
    if isinstance(value, Json):
        return {name: array_of_json(name, value.value, spec)}
    assert isinstance(value, np.ndarray)
    return {name: _of_array(name, value, spec)}


# Which input


def _only_input(metadata: ModelMetadata) -> str:
    if len(metadata.inputs) == 1:
        return metadata.inputs[0].name
    if not metadata.inputs:
        raise DataError("the server does not say what its model takes: name the input, as in --input NAME=…")
    raise DataError(f"say for which input it is, as in --input NAME=…. {takes(metadata)}")


def _text_input(metadata: ModelMetadata) -> str:
    if not metadata.inputs:
        return DEFAULT_TEXT_INPUT
    of_text = [s.name for s in metadata.inputs if s.datatype == "BYTES"]
    if len(of_text) == 1:
        return of_text[0]
    undeclared = not any(s.shape is not None and len(s.shape) > 1 for s in metadata.inputs)
    if len(metadata.inputs) == 1 and metadata.inputs[0].shape in (None, (-1,)) and undeclared:
        # A Python model that declares nothing: it is told as numbers, and takes what comes.
        return metadata.inputs[0].name
    raise DataError(f"the model has no one input for --text. {takes(metadata)}")


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names)


# Values


def _of_array(name: str, array: Array, spec: TensorSpec | None) -> Array:
    try:
        found = datatype_of(array.dtype)
    except TypeError as error:
        raise DataError(f"input {name!r}: {error}") from None
    if found == "BYTES":
        wanted = datatype_for(spec, "")
        made = text_array(array.ravel().tolist()).reshape(array.shape)
    else:
        wanted = found if spec is None else datatype_for(spec, 0.0)
        made = array
    if wanted != found:
        made = _converted(name, array, wanted)
    return fitted(name, made, spec)


def _converted(name: str, array: Array, datatype: str) -> Array:
    """Numbers in another datatype; refused where that would change them, but for a float's precision."""
    dtype = dtype_of(datatype)
    kinds = array.dtype.kind + dtype.kind
    if "O" in kinds or "U" in kinds or "S" in kinds or (dtype.kind == "b" and array.dtype.kind != "b"):
        raise DataError(f"input {name!r} is {datatype}, but the file has {array.dtype} in it")
    with np.errstate(over="ignore", invalid="ignore"):
        made = array.astype(dtype)
    changed = (np.isinf(made) & np.isfinite(array)) if dtype.kind == "f" else made != array
    if changed.any():
        raise DataError(f"input {name!r}: a value of the file does not fit {datatype}")
    return made


# Tables


def _of_table(name: str | None, table: Table, metadata: ModelMetadata) -> dict[str, Array]:
    names = [s.name for s in metadata.inputs]
    header = list(table.rows[0])
    if name is None and names and set(names) <= set(header) and (len(names) > 1 or len(header) == 1):
        rows = table.rows[1:]
        return {
            n: _of_cells(
                n, [row[header.index(n)] for row in rows], (len(rows),), declared(n, metadata), table
            )
            for n in names
        }
    name = name or _only_input(metadata)
    spec = declared(name, metadata)
    is_text = spec is not None and spec.datatype == "BYTES"
    with_header = header == [name] if is_text else any(_number(cell) is None for cell in header)
    rows = table.rows[1:] if with_header else table.rows
    width = len(header)
    shape = (len(rows),) if width == 1 and is_text else (len(rows), width)
    return {name: _of_cells(name, [cell for row in rows for cell in row], shape, spec, table)}


def _of_cells(
    name: str, cells: list[str], shape: tuple[int, ...], spec: TensorSpec | None, table: Table
) -> Array:
    if not prod(shape):
        raise DataError(f"{table.where} has no row below its header")
    datatype = datatype_for(spec, 0.0)
    if datatype == "BYTES":
        return fitted(name, text_array(cells).reshape(shape), spec)
    values: list[Any] = []
    width = prod(shape[1:])
    for at, cell in enumerate(cells):
        value = _number(cell)
        if value is None:
            raise DataError(
                f"{table.where}: {cell[:40]!r} is not a number (record {at // width + 1}, for {name!r})"
            )
        values.append(value)
    return fitted(name, array_from_json(name, datatype, shape, values), spec)


def _number(cell: str) -> int | float | bool | None:
    text = cell.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
