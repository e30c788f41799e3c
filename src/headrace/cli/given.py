"""What ``headrace infer`` is given on its command line: literals, files and standard input, as plain values.

Nothing is known of the model here; `cli.fitting` makes its inputs of these values.
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
"""One file; larger ones are streamed."""
_FORMS: Final = "JSON such as '[[1, 2]]', a file (.json, .npy, .npz, .csv), or - for JSON on standard input"


@dataclass(frozen=True, slots=True)
class Json:
    """A parsed JSON value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a CSV file as text, all of one length; whether the first is a header is not decided yet."""

    rows: Sequence[Sequence[str]]
    where: str


@dataclass(frozen=True, slots=True)
class Document:
    """A whole request of the Open Inference Protocol, as its bytes."""

    body: bytes


Value = Json | Table | Document | Array | Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Given:
    """One value, and the input that it is for; None: for the model's one input, or it has names of its own."""

    name: str | None
    value: Value


def read_given(text: str, *, read_stdin: Callable[[], bytes] | None = None) -> Given:
    """What one ``--input`` means: ``VALUE`` or ``NAME=VALUE``. Raises DataError, LimitError."""
    name, rest = _named(text)
    return Given(name, _value(rest, read_stdin or _read_stdin))


def _named(text: str) -> tuple[str | None, str]:
    name, equals, rest = text.partition("=")
    is_name = name.replace("-", "_").replace(".", "_").replace(":", "_").isidentifier()
    return (name, rest) if equals and is_name and not Path(text).is_file() else (None, text)


def _value(text: str, read_stdin: Callable[[], bytes]) -> Value:
    stripped = text.strip()
    if stripped == "-":
        return _json(read_stdin(), "standard input")
    path = Path(stripped.removeprefix("@"))
    if stripped.startswith("@") or (stripped and _is_file(path)):
        return _file(path)
    try:
        return _of_json(orjson.loads(stripped), stripped.encode())
    except orjson.JSONDecodeError:
        if path.suffix in _READERS:
            raise DataError(f"there is no file {path}") from None
        raise DataError(
            f"{text[:80]!r} cannot be an input: give {_FORMS}; for text use --text, or quotes inside quotes: '\"text\"'"
        ) from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # longer than a name can be
        return False


def _file(path: Path) -> Value:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: a file for an input is one of {', '.join(_READERS)}")
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
            f"{where} has more than {FILE_BYTES_MAX >> 20} MiB: score it with headrace stream … --endpoint"
        )


def _json(data: bytes, where: str) -> Value:
    _check_size(len(data), where)
    try:
        return _of_json(orjson.loads(data), data)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON: {error}") from None


def _of_json(value: Any, body: bytes) -> Value:
    inputs = cast("dict[str, Any]", value).get("inputs") if isinstance(value, dict) else None
    if isinstance(inputs, list) and all(
        isinstance(i, dict) and "name" in i and "shape" in i for i in cast("list[object]", inputs)
    ):
        return Document(body)
    return Json(value)


def _npy(data: bytes, where: str) -> Array:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{where} is no .npy file that can be taken: {error}") from None


def _npz(data: bytes, where: str) -> Mapping[str, Array]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, EOFError, OSError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{where} is no .npz file that can be taken: {error}") from None


def _csv(data: bytes, where: str) -> Table:
    try:
        text = data.decode("utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except UnicodeDecodeError:
        raise DataError(f"{where} is not UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{where} is no CSV: {error}") from None
    if not rows:
        raise DataError(f"{where} has no row")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise DataError(f"{where}, row {number}: {len(row)} cells, but the first has {len(rows[0])}")
    return Table(rows, where)


_READERS: Final[dict[str, Callable[[bytes, str], Value]]] = {
    ".json": _json,
    ".npy": _npy,
    ".npz": _npz,
    ".csv": _csv,
}
