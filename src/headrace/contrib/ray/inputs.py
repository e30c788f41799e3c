"""Columns of a Ray Data batch to requests: the column of each input, and the rows of each request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from headrace.contrib.ray.column_values import ColumnValues, TextType, convert_column
from headrace.core.errors import ConfigError, DataError, ModelInputError
from headrace.core.tensor import Array, ModelMetadata, Tensor, TensorSpec

Columns = Sequence[str] | Mapping[str, str | Sequence[str]]
"""Columns of a model's one input, in order, or columns by input name."""


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """The unchanged columns of a batch, as numpy arrays or of an Arrow table, and the number of its rows."""

    columns: Mapping[str, Any]
    rows: int
    arrow: bool

    def array(self, name: str) -> Array:
        """Return a column as an array with an entry per row: numbers, tensors or objects.

        Arrow's null becomes None.
        """
        column = self.columns[name]
        if not self.arrow:
            return column
        from headrace.formats.arrow import column_array  # noqa: PLC0415 - an extra, which Ray Data brings

        return column_array(column)

    def passthrough(self, name: str) -> Any:
        """Return a column for the output batch, unchanged.

        Ray's own tensors are the exception: Ray accepts them back only as arrays.
        """
        column = self.columns[name]
        if not self.arrow:
            return column
        from headrace.formats.arrow import column_array, is_tensor_column  # noqa: PLC0415 - see `array`

        return column_array(column) if is_tensor_column(column) else column


def as_column_batch(batch: object) -> ColumnBatch:
    """Return the batch that `map_batches` passes.

    Raises:
        ConfigError: The format is not supported.
        DataError: The lengths of columns differ.
    """
    if isinstance(batch, Mapping):
        columns = cast("Mapping[str, Any]", batch)
        return ColumnBatch(columns, _rows(columns), arrow=False)
    if type(batch).__module__.partition(".")[0] == "pyarrow":
        from headrace.formats.arrow import table_columns  # noqa: PLC0415 - the extra is installed

        columns = table_columns(batch)
        return ColumnBatch(columns, _rows(columns), arrow=True)
    raise ConfigError(
        f"the batch is a {type(batch).__name__}, not a mapping of numpy arrays or an Arrow table: "
        'call map_batches with batch_format="numpy" or "pyarrow"'
    )


def _rows(columns: Mapping[str, Any]) -> int:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise DataError(
            f"the columns of the batch differ in length ({listed}): every column needs a value for each row"
        )
    return next(iter(lengths.values()), 0)


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """The tensors of one request, and its rows in the batch, ascending."""

    tensors: tuple[Tensor, ...]
    rows: Array


def check_columns(columns: Columns | None) -> Columns | None:
    """Return the option unchanged.

    Raises ConfigError for a string, and for an option that names no column.
    """
    if isinstance(columns, str):
        raise ConfigError(f'columns takes a list: columns=["{columns}"]')
    if columns is not None and not columns:
        raise ConfigError("columns names no column: omit it if the columns have the inputs' names")
    return columns


class InputColumns:
    """A converter of batches to requests, for one model.

    Columns have the inputs' names, unless `columns` says otherwise. Several columns for one input
    become one tensor ``[n, columns]``. Values are converted to the datatype that the model
    declares: any number to a float, whole numbers in range to integers. A value that cannot be
    converted fails its row. Rows with tensors of different shapes go in separate requests.
    """

    def __init__(self, metadata: ModelMetadata, columns: Columns | None, text: TextType) -> None:
        self._model = metadata.name
        self._specs = {spec.name: spec for spec in metadata.inputs}
        self._columns_by_input = self._select_columns(columns)
        self._text: TextType = text

    def _select_columns(self, columns: Columns | None) -> dict[str, tuple[str, ...]]:
        """Return the columns of each input."""
        if isinstance(columns, Mapping):
            return self._checked(columns)
        if not self._specs:
            raise ConfigError(
                f"model {self._model} does not declare its inputs: "
                "name the column of each, as in columns={'x': 'age'}"
            )
        if columns is None:
            return {name: (name,) for name in self._specs}
        if len(self._specs) > 1:
            raise ConfigError(
                f"model {self._model} takes {quoted(self._specs)}: name the columns of each, as in "
                f"columns={{'{next(iter(self._specs))}': '{columns[0]}', ...}}"
            )
        return {name: tuple(columns) for name in self._specs}

    def _checked(self, columns: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
        selected = {
            name: (names,) if isinstance(names, str) else tuple(names) for name, names in columns.items()
        }
        if empty := [name for name, names in selected.items() if not names]:
            raise ConfigError(f"columns names no column for input {quoted(empty)}")
        if not self._specs:
            return selected
        if unknown := selected.keys() - self._specs.keys():
            raise ConfigError(
                f"model {self._model} has no input {quoted(sorted(unknown))} (it takes {quoted(self._specs)})"
            )
        return {name: selected.get(name, (name,)) for name in self._specs}

    def requests(self, batch: ColumnBatch) -> tuple[list[RowsRequest], dict[int, str]]:
        """Return the requests of a batch, and the reasons of rows without a request.

        Every row is in exactly one of both.

        Raises:
            ModelInputError: A column is missing, or cannot fit in any row.
        """
        if not batch.rows:
            return [], {}
        self._check_names(batch)
        reasons: dict[int, str] = {}
        inputs = {
            name: self._input(name, columns, batch, reasons)
            for name, columns in self._columns_by_input.items()
        }
        valid_rows = np.setdiff1d(np.arange(batch.rows), list(reasons), assume_unique=True)
        groups = _by_shape(valid_rows, list(inputs.values()))
        return [
            RowsRequest(
                tuple(Tensor(n, self._match_axes(n, values.take(rows))) for n, values in inputs.items()), rows
            )
            for rows in groups
        ], reasons

    def _check_names(self, batch: ColumnBatch) -> None:
        wanted = [column for columns in self._columns_by_input.values() for column in columns]
        if missing := [column for column in wanted if column not in batch.columns]:
            raise ModelInputError(
                self._model,
                f"it takes {quoted(self._columns_by_input)}, "
                f"and the batch has no column {quoted(missing)} "
                f"(it has {quoted(batch.columns)}): name the columns with columns=",
            )

    def _input(
        self, name: str, columns: tuple[str, ...], batch: ColumnBatch, reasons: dict[int, str]
    ) -> ColumnValues:
        spec = self._specs.get(name, TensorSpec(name, "FP32"))
        parts = [self._column(column, spec, batch, reasons, alone=len(columns) == 1) for column in columns]
        if len(parts) == 1:
            return parts[0]
        valid_rows = np.setdiff1d(np.arange(batch.rows), list(reasons), assume_unique=True)
        parts_taken = [part.take(valid_rows) for part in parts]
        self._check_width(spec, len(parts_taken))
        joined = (
            np.empty((batch.rows, len(parts_taken)), parts_taken[0].dtype)
            if len(valid_rows)
            else np.empty((batch.rows, len(parts_taken)))
        )
        if len({part.dtype.kind == "O" for part in parts_taken}) > 1:
            raise ModelInputError(
                self._model, f"input {name!r} gets text and numbers from columns {quoted(columns)}"
            )
        for index, part in enumerate(parts_taken):
            joined[valid_rows, index] = part
        return ColumnValues({}, dense=joined)

    def _column(
        self, column: str, spec: TensorSpec, batch: ColumnBatch, reasons: dict[int, str], *, alone: bool
    ) -> ColumnValues:
        values = batch.array(column)
        if alone:
            self._check_single(column, spec, values)
        converted = convert_column(values, spec if alone else _single_value_spec(spec), self._text)
        for row, why in converted.reasons.items():
            reasons.setdefault(row, f"column {column!r} {why}")
        wanted = spec.shape[1:] if alone and spec.shape is not None else None
        for row in range(batch.rows):
            if row in converted.reasons:
                continue
            shape = converted.shape(row)
            if not alone and shape:
                reasons.setdefault(
                    row,
                    f"column {column!r} has shape {list(shape)}, but the input takes one value per column",
                )
            elif wanted is not None and not _shape_fits(wanted, shape):
                reasons.setdefault(
                    row, f"column {column!r} has shape {list(shape)}, but the model takes {list(wanted)}"
                )
            if converted.dense is not None and row not in reasons:
                break  # All rows have this shape.
        return converted

    def _check_single(self, column: str, spec: TensorSpec, values: Array) -> None:
        """Raise ModelInputError for a column of single numbers for an input of several.

        Such a column fits in no row.
        """
        if values.ndim > 1 or values.dtype == object or spec.shape is None:
            return
        if not _shape_fits(spec.shape[1:], ()):
            raise ModelInputError(
                self._model,
                f"input {spec.name!r} takes {list(spec.shape)}, but column {column!r} has one value per row: "
                "name the columns of the input, in order, with columns=",
            )

    def _check_width(self, spec: TensorSpec, width: int) -> None:
        if spec.shape is not None and not _shape_fits(spec.shape[1:], (width,)):
            raise ModelInputError(
                self._model,
                f"input {spec.name!r} takes {list(spec.shape)}, but columns= names {width} columns for it",
            )

    def _match_axes(self, name: str, data: Array) -> Array:
        """Return ``[n]`` for ``[n, 1]``, or the reverse, if the model declares that shape."""
        spec = self._specs.get(name)
        if spec is None or spec.shape is None or len(spec.shape) == data.ndim:
            return data
        return data.reshape(len(data), *(1,) * (len(spec.shape) - 1))


def _single_value_spec(spec: TensorSpec) -> TensorSpec:
    """Return the spec of one of several columns of an input: a single value per row."""
    return spec if spec.shape is None else replace(spec, shape=(-1,))


def _by_shape(valid_rows: Array, inputs: Sequence[ColumnValues]) -> list[Array]:
    """Return groups of rows that can share a request: their tensors have the same shapes."""
    if not len(valid_rows):
        return []
    ragged = [converted for converted in inputs if converted.dense is None]
    if not ragged:
        return [valid_rows]
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for row in valid_rows.tolist():
        groups.setdefault(tuple(converted.shape(row) for converted in ragged), []).append(row)
    return [np.array(rows) for rows in groups.values()]


def _shape_fits(wanted: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if {wanted, shape} <= {(), (1,), (-1,)} and wanted != shape:
        return True
    return len(wanted) == len(shape) and all(w in (-1, s) for w, s in zip(wanted, shape, strict=True))


def quoted(names: object) -> str:
    """Return names for a message."""
    return ", ".join(map(repr, names)) or "none"  # type: ignore[call-overload]
