"""A batch's columns to requests: which column goes to which input, and which rows go together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import Array, ModelMetadata, Tensor, TensorSpec
from headrace.ray.batch import Batch
from headrace.ray.cells import Cells, Text, cells_of

Columns = Sequence[str] | Mapping[str, str | Sequence[str]]
"""Columns for a model of one input, in their order; or an input's, or several inputs', by its name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The tensors of one request, and which rows of the batch they are, ascending."""

    tensors: tuple[Tensor, ...]
    rows: Array


def check_columns(columns: Columns | None) -> Columns | None:
    """The option as it came; ConfigError for what would be read as letters, or names nothing."""
    if isinstance(columns, str):
        raise ConfigError(f'columns takes a list: columns=["{columns}"]')
    if columns is not None and not columns:
        raise ConfigError("columns names no column: leave it out, and columns are taken by the inputs' names")
    return columns


class InputColumns:
    """Makes requests of batches, for one model.

    By the inputs' names, unless `columns` says otherwise. Several columns for one input become one tensor ``[n, columns]``.
    Values become the type that the model declares: any number a float, whole numbers in range integers. A value that
    cannot costs its row. Rows whose tensors have different shapes go in requests of their own.
    """

    def __init__(self, metadata: ModelMetadata, columns: Columns | None, text: Text) -> None:
        self._model = metadata.name
        self._specs = {spec.name: spec for spec in metadata.inputs}
        self._chosen = self._choose(columns)
        self._text: Text = text

    def _choose(self, columns: Columns | None) -> dict[str, tuple[str, ...]]:
        """The columns of each input."""
        if isinstance(columns, Mapping):
            return self._checked(columns)
        if not self._specs:
            raise ConfigError(
                f"model {self._model} does not tell its inputs: name the column for each, as in columns={{'x': 'age'}}"
            )
        if columns is None:
            return {name: (name,) for name in self._specs}
        if len(self._specs) > 1:
            raise ConfigError(
                f"model {self._model} takes {_listed(self._specs)}: name the columns for each, as in "
                f"columns={{'{next(iter(self._specs))}': '{columns[0]}', ...}}"
            )
        return {name: tuple(columns) for name in self._specs}

    def _checked(self, columns: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
        chosen = {
            name: (given,) if isinstance(given, str) else tuple(given) for name, given in columns.items()
        }
        if empty := [name for name, given in chosen.items() if not given]:
            raise ConfigError(f"columns names no column for input {_listed(empty)}")
        if not self._specs:
            return chosen
        if unknown := chosen.keys() - self._specs.keys():
            raise ConfigError(
                f"model {self._model} has no input {_listed(sorted(unknown))} (it takes {_listed(self._specs)})"
            )
        return {name: chosen.get(name, (name,)) for name in self._specs}

    def asked(self, batch: Batch) -> tuple[list[Asked], dict[int, str]]:
        """The requests for a batch, and why rows are in none. Every row is in exactly one of both.

        Raises ModelInputError where a column is missing, or could fit in no row.
        """
        if not batch.rows:
            return [], {}
        self._check_names(batch)
        whys: dict[int, str] = {}
        inputs = {name: self._input(name, columns, batch, whys) for name, columns in self._chosen.items()}
        good = np.setdiff1d(np.arange(batch.rows), list(whys), assume_unique=True)
        groups = _by_shape(good, list(inputs.values()))
        return [
            Asked(tuple(Tensor(n, self._shaped(n, cells.of(rows))) for n, cells in inputs.items()), rows)
            for rows in groups
        ], whys

    def _check_names(self, batch: Batch) -> None:
        wanted = [column for columns in self._chosen.values() for column in columns]
        if missing := [column for column in wanted if column not in batch.columns]:
            raise ModelInputError(
                self._model,
                f"it takes {_listed(self._chosen)}, and the batch has no column {_listed(missing)} (it has "
                f"{_listed(batch.columns)}): name the columns with columns=",
            )

    def _input(self, name: str, columns: tuple[str, ...], batch: Batch, whys: dict[int, str]) -> Cells:
        spec = self._specs.get(name, TensorSpec(name, "FP32"))
        parts = [self._column(column, spec, batch, whys, alone=len(columns) == 1) for column in columns]
        if len(parts) == 1:
            return parts[0]
        good = np.setdiff1d(np.arange(batch.rows), list(whys), assume_unique=True)
        made = [part.of(good) for part in parts]
        self._check_width(spec, len(made))
        joined = (
            np.empty((batch.rows, len(made)), made[0].dtype)
            if len(good)
            else np.empty((batch.rows, len(made)))
        )
        if len({part.dtype.kind == "O" for part in made}) > 1:
            raise ModelInputError(
                self._model, f"input {name!r} is given text and numbers, by columns {_listed(columns)}"
            )
        for index, part in enumerate(made):
            joined[good, index] = part
        return Cells({}, dense=joined)

    def _column(
        self, column: str, spec: TensorSpec, batch: Batch, whys: dict[int, str], *, alone: bool
    ) -> Cells:
        values = batch.array(column)
        if alone:
            self._check_single(column, spec, values)
        cells = cells_of(values, spec if alone else _of_one(spec), self._text)
        for row, why in cells.whys.items():
            whys.setdefault(row, f"column {column!r} {why}")
        wanted = spec.shape[1:] if alone and spec.shape is not None else None
        for row in range(batch.rows):
            if row in cells.whys:
                continue
            shape = cells.shape(row)
            if not alone and shape:
                whys.setdefault(
                    row, f"column {column!r} is {list(shape)}, where one value is taken of each column"
                )
            elif wanted is not None and not _shape_fits(wanted, shape):
                whys.setdefault(
                    row, f"column {column!r} is {list(shape)}, where the model takes {list(wanted)}"
                )
            if cells.dense is not None and row not in whys:
                break  # all rows have this shape
        return cells

    def _check_single(self, column: str, spec: TensorSpec, values: Array) -> None:
        """A column of single numbers for an input of several fits in no row: it is the choice of columns that is wrong."""
        if values.ndim > 1 or values.dtype == object or spec.shape is None:
            return
        if not _shape_fits(spec.shape[1:], ()):
            raise ModelInputError(
                self._model,
                f"input {spec.name!r} takes {list(spec.shape)}, and column {column!r} holds one value a row: name "
                "the columns that it is made of, in their order, with columns=",
            )

    def _check_width(self, spec: TensorSpec, width: int) -> None:
        if spec.shape is not None and not _shape_fits(spec.shape[1:], (width,)):
            raise ModelInputError(
                self._model,
                f"input {spec.name!r} takes {list(spec.shape)}, but columns= names {width} columns for it",
            )

    def _shaped(self, name: str, data: Array) -> Array:
        """``[n]`` for ``[n, 1]``, or the other way round, as the model has it."""
        spec = self._specs.get(name)
        if spec is None or spec.shape is None or len(spec.shape) == data.ndim:
            return data
        return data.reshape(len(data), *(1,) * (len(spec.shape) - 1))


def _of_one(spec: TensorSpec) -> TensorSpec:
    """What one of an input's several columns is: a value a row."""
    return spec if spec.shape is None else replace(spec, shape=(-1,))


def _by_shape(good: Array, inputs: Sequence[Cells]) -> list[Array]:
    """The rows that can stand in one request: those whose tensors have the same shapes."""
    if not len(good):
        return []
    ragged = [cells for cells in inputs if cells.dense is None]
    if not ragged:
        return [good]
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for row in good.tolist():
        groups.setdefault(tuple(cells.shape(row) for cells in ragged), []).append(row)
    return [np.array(rows) for rows in groups.values()]


def _shape_fits(wanted: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if {wanted, shape} <= {(), (1,), (-1,)} and wanted != shape:
        return True
    return len(wanted) == len(shape) and all(w in (-1, s) for w, s in zip(wanted, shape, strict=True))


def _listed(names: object) -> str:
    return ", ".join(map(repr, names)) or "none"  # type: ignore[call-overload]
