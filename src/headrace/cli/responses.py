"""Print responses as tables, text or JSON, and save their outputs to files."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array, InferResponse, Tensor
from headrace.protocols.oip_json import encode_response

ROWS_SHOWN: Final = 20
COLUMNS_SHOWN: Final = 8
"""Table columns of one output with several values per row; wider outputs are abridged."""
CELL_CHARS_MAX: Final = 200
PLAIN_WIDTH: Final = 200
"""Width of tables outside a terminal, in characters."""
_EDGE_VALUES: Final = 3


def print_table(table: Table) -> None:
    """Print a table. Outside a terminal it has a fixed width."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(table)


def print_documents(
    documents: Sequence[dict[str, Any]],
    params: Mapping[str, Any],
    to_table: Callable[[Sequence[dict[str, Any]]], Table],
    *,
    none: str,
) -> None:
    """Print documents as JSON lines or as their table, as the options of the command say.

    Without documents, print `none` to standard error instead of a table.
    """
    if params["json_lines"]:
        for document in documents:
            click.echo(orjson.dumps(document))
    elif documents:
        print_table(to_table(documents))
    else:
        click.echo(none, err=True)


def plain_table(*columns: str) -> Table:
    """Return an empty table in the common style; a trailing space marks a numeric column."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.strip(), justify="right" if column.endswith(" ") else "left")
    return table


def print_response(response: InferResponse, *, json_lines: bool) -> None:
    """Print a response: one JSON document, a single text, or a table with one line per row."""
    if json_lines:
        click.echo(_document(response))
        return
    text = _single_text(response)
    if text is not None:
        click.echo(printable(text))
        return
    outputs = [t if t.data.ndim else replace(t, data=t.data.reshape(1)) for t in response.outputs]
    print_table(_table(outputs))
    rows = max((t.rows for t in outputs), default=0)
    if rows > ROWS_SHOWN:
        click.echo(
            f"… and {rows - ROWS_SHOWN:,} more rows: use --json or --output FILE for all rows", err=True
        )


class StreamPrinter:
    """Prints the items of a stream as they arrive.

    Texts continue on the current line; other items start a new line.
    """

    def __init__(self, *, json_lines: bool) -> None:
        self._json_lines = json_lines
        self._in_line = False

    def print_item(self, response: InferResponse) -> None:
        """Print one item at once."""
        if self._json_lines:
            click.echo(_document(response))
            return
        text = _single_text(response)
        if text is None:
            self.end()
            click.echo("  ".join(f"{t.name} {_values(t)}" for t in response.outputs))
            return
        shown = printable(text)
        click.echo(shown, nl=False)
        if shown:
            self._in_line = not shown.endswith("\n")

    def end(self) -> None:
        """End the current line. Call it when the stream ends, also after an error."""
        if self._in_line:
            click.echo()
            self._in_line = False


def save_response(response: InferResponse, path: Path) -> None:
    """Save the outputs to a file.

    The file type is ``.npz`` (outputs by name), ``.npy`` (a single output) or ``.json`` (the
    response). Raises ConfigError for another file type, for several outputs in ``.npy``, and for a
    failed write.
    """
    check_output(path)
    arrays = {t.name: _array_to_save(t) for t in response.outputs}
    if path.suffix == ".npy" and len(arrays) != 1:
        raise ConfigError(
            f"{path}: a .npy file holds one array, but the outputs are {', '.join(arrays)}: use .npz or .json"
        )
    try:
        with path.open("wb") as file:
            if path.suffix == ".json":
                file.write(_document(response) + b"\n")
            elif path.suffix == ".npy":
                np.save(file, next(iter(arrays.values())), allow_pickle=False)
            else:
                named: dict[str, Any] = dict(arrays)
                np.savez(file, allow_pickle=False, **named)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def check_output(path: Path) -> None:
    """Raise ConfigError if the file type is not supported."""
    if path.suffix not in (".npz", ".npy", ".json"):
        raise ConfigError(f"--output {path}: unknown file type: use .npz, .npy or .json")


def printable(text: str) -> str:
    """Return the text without terminal control characters, except line feeds and tabs."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) != "Cc" else "�" for c in text.replace("\r\n", "\n")
    )


def _array_to_save(tensor: Tensor) -> Array:
    """Return text as numpy strings: arrays of objects would be pickled."""
    if tensor.datatype != "BYTES":
        return tensor.data
    return np.array([_as_text(v) for v in tensor.data.ravel().tolist()], "U").reshape(tensor.data.shape)


def _document(response: InferResponse) -> bytes:
    try:
        return encode_response(response).body
    except DataError:
        # JSON has no infinity and no binary data: use text for both.
        outputs = [
            {"name": t.name, "shape": list(t.data.shape), "datatype": t.datatype, "data": _json_values(t)}
            for t in response.outputs
        ]
        return orjson.dumps({"model_name": response.model_name, "outputs": outputs})


def _json_values(tensor: Tensor) -> list[Any]:
    values = tensor.data.ravel().tolist()
    return [_as_text(v) for v in values] if tensor.datatype == "BYTES" else [_json_number(v) for v in values]


def _json_number(value: Any) -> Any:
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _single_text(response: InferResponse) -> str | None:
    """Return the text of a response with a single text value, otherwise None."""
    if len(response.outputs) != 1:
        return None
    tensor = response.outputs[0]
    if tensor.datatype != "BYTES" or tensor.data.size != 1:
        return None
    return _as_text(tensor.data.ravel()[0])


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _table(outputs: Sequence[Tensor]) -> Table:
    table = plain_table("row ")
    for tensor in outputs:
        titles = _titles(tensor)
        numbers = tensor.datatype != "BYTES" and tensor.data.size == tensor.rows * len(titles)
        for title in titles:
            table.add_column(title, justify="right" if numbers else "left", overflow="fold")
    rows = max((t.rows for t in outputs), default=0)
    for row in range(min(rows, ROWS_SHOWN)):
        cells = [str(row)]
        for tensor in outputs:
            cells += _cells(tensor, row)
        table.add_row(*map(Text, cells))
    return table


def _titles(tensor: Tensor) -> Sequence[str]:
    width = tensor.data.shape[1] if tensor.data.ndim == 2 else 0
    if 1 < width <= COLUMNS_SHOWN:
        return [f"{tensor.name}[{i}]" for i in range(width)]
    return [tensor.name]


def _cells(tensor: Tensor, row: int) -> list[str]:
    width = len(_titles(tensor))
    if row >= tensor.rows:
        return [""] * width
    values = np.asarray(tensor.data[row], tensor.data.dtype).ravel()
    if width > 1 or values.size == 1:
        return [_cell(v) for v in values.tolist()]
    return [_abridged(values)]


def _values(tensor: Tensor) -> str:
    values = tensor.data.ravel()
    return _cell(values[0]) if values.size == 1 else _abridged(values)


def _abridged(values: Array) -> str:
    if values.size <= COLUMNS_SHOWN:
        return f"[{', '.join(_cell(v) for v in values.tolist())}]"
    first, last = values[:_EDGE_VALUES].tolist(), values[-_EDGE_VALUES:].tolist()
    shown = f"{', '.join(map(_cell, first))}, …, {', '.join(map(_cell, last))}"
    return f"[{shown}] ({values.size:,} values)"


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    if isinstance(value, bytes | str):
        text = printable(_as_text(value)).replace("\n", "⏎").replace("\t", " ")
        return text if len(text) <= CELL_CHARS_MAX else f"{text[:CELL_CHARS_MAX]}…"
    return str(value)
