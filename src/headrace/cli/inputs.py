"""Parse the ``--input`` values of ``headrace infer``: literals, files and standard input.

The values are independent of the model; `cli.request_builder` converts them to its inputs.
"""

import csv
import io
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.errors import DataError, LimitError
from headrace.core.tensor import Array

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
    return InputValue(name, _parse_value(literal, read_stdin or _read_stdin))


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


def _read_stdin() -> bytes:
    return sys.stdin.buffer.read(FILE_BYTES_MAX + 1)


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
