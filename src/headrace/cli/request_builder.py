"""Build the request of ``headrace infer`` from ``--input`` values and the model's metadata.

`read_input` parses a literal, a file or standard input without the model; `build_request` converts
the values to the model's inputs.
"""

import csv
import io
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.errors import DataError, LimitError
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
from headrace.protocols.plain_bodies import (
    datatype_for,
    describe_inputs,
    find_input_spec,
    fit_to_spec,
    input_from_json,
)
from headrace.protocols.tensors import array_from_json

FILE_BYTES_MAX: Final = 256 << 20
"""Size limit of an input file; larger files need ``headrace stream``."""
_INPUT_FORMS: Final = (
    "JSON such as '[[1, 2]]', a file (.json, .npy, .npz, .csv), or - for JSON on standard input"
)


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A parsed JSON value."""

    value: Any


@dataclass(frozen=True, slots=True)
class CsvTable:
    """The rows of a CSV file as text, all of one length. The first row may be a header."""

    rows: Sequence[Sequence[str]]
    where: str


@dataclass(frozen=True, slots=True)
class RequestDocument:
    """The bytes of a whole request of the Open Inference Protocol."""

    body: bytes


Value = JsonValue | CsvTable | RequestDocument | Array | Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class InputValue:
    """A value and the name of its input.

    The name is None if the value contains names or is for the model's only input.
    """

    name: str | None
    value: Value


def read_input(text: str, *, read_stdin: Callable[[], bytes] | None = None) -> InputValue:
    """Parse one ``--input`` argument: ``VALUE`` or ``NAME=VALUE``.

    Raises DataError for an invalid value and LimitError for a file above the size limit.
    """
    name, literal = _split_name(text)
    return InputValue(
        name, _parse_value(literal, read_stdin or (lambda: sys.stdin.buffer.read(FILE_BYTES_MAX + 1)))
    )


def _split_name(text: str) -> tuple[str | None, str]:
    name, equals, literal = text.partition("=")
    is_name = name.replace("-", "_").replace(".", "_").replace(":", "_").isidentifier()
    return (name, literal) if equals and is_name and not Path(text).is_file() else (None, text)


def _parse_value(text: str, read_stdin: Callable[[], bytes]) -> Value:
    stripped = text.strip()
    if stripped == "-":
        return _parse_json(read_stdin(), "standard input")
    path = Path(stripped.removeprefix("@"))
    if stripped.startswith("@") or (stripped and _is_file(path)):
        return _read_file(path)
    try:
        return _json_value(orjson.loads(stripped), stripped.encode())
    except orjson.JSONDecodeError:
        if path.suffix in _READERS:
            raise DataError(f"{path}: no such file") from None
        raise DataError(
            f"{text[:80]!r} is not an input: give {_INPUT_FORMS}; "
            "for text use --text, or JSON quotes inside shell quotes: '\"text\"'"
        ) from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _read_file(path: Path) -> Value:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: unknown file type: use one of {', '.join(_READERS)}")
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= FILE_BYTES_MAX else b""
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    _check_size(size, str(path))
    return reader(data, str(path))


def _check_size(size: int, where: str) -> None:
    if size > FILE_BYTES_MAX:
        raise LimitError(
            f"{where} is larger than {FILE_BYTES_MAX >> 20} MiB: use headrace stream … --endpoint"
        )


def _parse_json(data: bytes, where: str) -> Value:
    _check_size(len(data), where)
    try:
        return _json_value(orjson.loads(data), data)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{where} is not valid JSON: {error}") from None


def _json_value(value: Any, body: bytes) -> Value:
    inputs = cast("dict[str, Any]", value).get("inputs") if isinstance(value, dict) else None
    if isinstance(inputs, list) and all(
        isinstance(i, dict) and "name" in i and "shape" in i for i in cast("list[object]", inputs)
    ):
        return RequestDocument(body)
    return JsonValue(value)


def _parse_npy(data: bytes, where: str) -> Array:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{where} is not a valid .npy file: {error}") from None


def _parse_npz(data: bytes, where: str) -> Mapping[str, Array]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, EOFError, OSError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{where} is not a valid .npz file: {error}") from None


def _parse_csv(data: bytes, where: str) -> CsvTable:
    try:
        text = data.decode("utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except UnicodeDecodeError:
        raise DataError(f"{where} is not UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{where} is not valid CSV: {error}") from None
    if not rows:
        raise DataError(f"{where} contains no rows")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise DataError(f"{where}, row {number}: {len(row)} cells, but the first row has {len(rows[0])}")
    return CsvTable(rows, where)


_READERS: Final[dict[str, Callable[[bytes, str], Value]]] = {
    ".json": _parse_json,
    ".npy": _parse_npy,
    ".npz": _parse_npz,
    ".csv": _parse_csv,
}


DEFAULT_TEXT_INPUT: Final = "text_input"
"""Input for --text if the server does not declare the model's inputs, as in the generate extension."""


def build_request(
    inputs: Sequence[InputValue],
    texts: Sequence[str],
    metadata: ModelMetadata,
    parameters: Mapping[str, Any] | None = None,
) -> InferRequest:
    """Return the request for the given values, texts and parameters.

    Raises DataError with the model's inputs if a value does not fit.
    """
    documents = [i.value for i in inputs if isinstance(i.value, RequestDocument)]
    if documents:
        if len(inputs) > 1 or texts:
            raise DataError("a whole request cannot be combined with other inputs or --text")
        request = decode_request(documents[0].body, bf16="float32").request
        return replace(request, parameters={**request.parameters, **(parameters or {})})
    tensors: dict[str, Array] = {}
    for item in inputs:
        for name, array in _arrays(item, metadata).items():
            if name in tensors:
                raise DataError(f"input {name!r} is given twice")
            tensors[name] = array
    if texts:
        name = _text_input(metadata)
        if name in tensors:
            raise DataError(f"input {name!r} is given twice: by --input and by --text")
        tensors[name] = fit_to_spec(name, text_array(texts), find_input_spec(name, metadata))
    if not tensors:
        raise DataError(f"no input: give --input or --text. {describe_inputs(metadata)}")
    missing = [s.name for s in metadata.inputs if s.name not in tensors]
    # A Python model may have default values and reports missing inputs itself.
    needs_all = metadata.platform.startswith(("onnx", "tensorrt", "tensorflow"))
    if needs_all and missing and len(tensors) < len(metadata.inputs):
        raise DataError(f"input {', '.join(map(repr, missing))} is missing. {describe_inputs(metadata)}")
    made = tuple(Tensor(name, array) for name, array in tensors.items())
    return InferRequest(made, parameters=dict(parameters or {}))


def _arrays(item: InputValue, metadata: ModelMetadata) -> dict[str, Array]:
    value = item.value
    if isinstance(value, CsvTable):
        return _from_table(item.name, value, metadata)
    if isinstance(value, JsonValue) and isinstance(value.value, dict):
        if item.name is not None:
            raise DataError(f"input {item.name!r} must be an array or a value, not an object")
        named = cast("dict[str, Any]", value.value)
        return {
            name: input_from_json(name, data, find_input_spec(name, metadata)) for name, data in named.items()
        }
    if isinstance(value, Mapping):
        if item.name is not None:
            if len(value) != 1:
                raise DataError(f"input {item.name!r}: the file has {len(value)} arrays ({', '.join(value)})")
            value = {item.name: next(iter(value.values()))}
        return {
            name: _from_array(name, array, find_input_spec(name, metadata)) for name, array in value.items()
        }
    name = item.name or _only_input(metadata)
    spec = find_input_spec(name, metadata)
    if isinstance(value, JsonValue):
        return {name: input_from_json(name, value.value, spec)}
    assert isinstance(value, np.ndarray)
    return {name: _from_array(name, value, spec)}


# Which input


def _only_input(metadata: ModelMetadata) -> str:
    if len(metadata.inputs) == 1:
        return metadata.inputs[0].name
    if not metadata.inputs:
        raise DataError(
            "the server does not declare the model's inputs: name the input, as in --input NAME=…"
        )
    raise DataError(
        f"the model has several inputs: name one, as in --input NAME=…. {describe_inputs(metadata)}"
    )


def _text_input(metadata: ModelMetadata) -> str:
    if not metadata.inputs:
        return DEFAULT_TEXT_INPUT
    text_inputs = [s.name for s in metadata.inputs if s.datatype == "BYTES"]
    if len(text_inputs) == 1:
        return text_inputs[0]
    undeclared = not any(s.shape is not None and len(s.shape) > 1 for s in metadata.inputs)
    if len(metadata.inputs) == 1 and metadata.inputs[0].shape in (None, (-1,)) and undeclared:
        # A Python model without declared inputs has numeric metadata but accepts any type.
        return metadata.inputs[0].name
    raise DataError(f"the model has no single text input for --text. {describe_inputs(metadata)}")


# Values


def _from_array(name: str, array: Array, spec: TensorSpec | None) -> Array:
    try:
        found = datatype_of(array.dtype)
    except TypeError as error:
        raise DataError(f"input {name!r}: {error}") from None
    if found == "BYTES":
        datatype_wanted = datatype_for(spec, "")
        made = text_array(array.ravel().tolist()).reshape(array.shape)
    else:
        datatype_wanted = found if spec is None else datatype_for(spec, 0.0)
        made = array
    if datatype_wanted != found:
        made = _convert(name, array, datatype_wanted)
    return fit_to_spec(name, made, spec)


def _convert(name: str, array: Array, datatype: str) -> Array:
    """Return numbers as another datatype. Raise DataError if a value would change.

    Floats may lose precision.
    """
    dtype = dtype_of(datatype)
    kinds = array.dtype.kind + dtype.kind
    if "O" in kinds or "U" in kinds or "S" in kinds or (dtype.kind == "b" and array.dtype.kind != "b"):
        raise DataError(f"input {name!r} is {datatype}, but the file contains {array.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        made = array.astype(dtype)
    changed = (np.isinf(made) & np.isfinite(array)) if dtype.kind == "f" else made != array
    if changed.any():
        raise DataError(f"input {name!r}: a value of the file does not fit {datatype}")
    return made


# Tables


def _from_table(name: str | None, table: CsvTable, metadata: ModelMetadata) -> dict[str, Array]:
    names = [s.name for s in metadata.inputs]
    header = list(table.rows[0])
    if name is None and names and set(names) <= set(header) and (len(names) > 1 or len(header) == 1):
        rows = table.rows[1:]
        return {
            n: _from_cells(
                n, [row[header.index(n)] for row in rows], (len(rows),), find_input_spec(n, metadata), table
            )
            for n in names
        }
    name = name or _only_input(metadata)
    spec = find_input_spec(name, metadata)
    is_text = spec is not None and spec.datatype == "BYTES"
    with_header = header == [name] if is_text else any(_number(cell) is None for cell in header)
    rows = table.rows[1:] if with_header else table.rows
    width = len(header)
    shape = (len(rows),) if width == 1 and is_text else (len(rows), width)
    return {name: _from_cells(name, [cell for row in rows for cell in row], shape, spec, table)}


def _from_cells(
    name: str, cells: list[str], shape: tuple[int, ...], spec: TensorSpec | None, table: CsvTable
) -> Array:
    if not prod(shape):
        raise DataError(f"{table.where} has no rows below its header")
    datatype = datatype_for(spec, 0.0)
    if datatype == "BYTES":
        return fit_to_spec(name, text_array(cells).reshape(shape), spec)
    values: list[Any] = []
    width = prod(shape[1:])
    for at, cell in enumerate(cells):
        value = _number(cell)
        if value is None:
            raise DataError(
                f"{table.where}: {cell[:40]!r} is not a number (record {at // width + 1}, for {name!r})"
            )
        values.append(value)
    return fit_to_spec(name, array_from_json(name, datatype, shape, values), spec)


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
