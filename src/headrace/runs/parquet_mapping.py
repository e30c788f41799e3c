"""The mapping of Parquet columns to model inputs: --columns, input names, or all numeric columns."""

from collections.abc import Sequence
from typing import Any

import orjson

from headrace.core.block import Block
from headrace.core.errors import ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec, dtype_of
from headrace.formats.contract import Decoder
from headrace.formats.parquet_decode import ColumnsInput, ParquetDecoder, values_dtype
from headrace.runs.settings import MappingOptions


def parquet_decoder(
    metadata: ModelMetadata, mapping: MappingOptions, learned: dict[str, Any], block: Block
) -> Decoder:
    """Return the decoder of a Parquet file for a model.

    `learned` receives what the first rows decide.

    Raises:
        ModelInputError: The rows can never fit the model.
    """
    return _Chooser(metadata, mapping, learned, block).decoder()


class _Chooser:
    """The selection of columns for each input, based on the first rows."""

    def __init__(
        self, metadata: ModelMetadata, mapping: MappingOptions, learned: dict[str, Any], block: Block
    ) -> None:
        self._model = metadata.name
        self._inputs = metadata.inputs or (TensorSpec("x", "FP32"),)
        self._learned = learned
        self._block = block
        self._names = block.column_names or tuple(block.columns)
        chosen: Sequence[str | int] = (
            mapping.columns if mapping.text_column is None else (mapping.text_column,)
        )
        self._chosen = tuple(self._name(column) for column in chosen)

    def decoder(self) -> Decoder:
        """Return the decoder with the columns and the shape of each input."""
        if len(self._inputs) > 1 and self._chosen and len(self._chosen) != len(self._inputs):
            raise ModelInputError(
                self._model,
                f"it has {len(self._inputs)} inputs, but --columns names {len(self._chosen)} columns",
            )
        inputs: dict[str, ColumnsInput] = {}
        for index, spec in enumerate(self._inputs):
            key = f"parquet_columns {spec.name}"
            if key not in self._learned:
                self._learned[key] = list(self._columns(index, spec))
            columns = tuple(self._learned[key])
            dtype = None if spec.datatype == "BYTES" else dtype_of(spec.datatype)
            inputs[spec.name] = ColumnsInput(columns, dtype, self._shape(spec, columns))
        return ParquetDecoder(inputs)

    def _name(self, column: str | int) -> str:
        if isinstance(column, str):
            return column
        if not 0 <= column < len(self._names):
            raise ModelInputError(
                self._model,
                f"there is no column {column}: the file has {len(self._names)} columns, counted from 0",
            )
        return self._names[column]

    def _columns(self, index: int, spec: TensorSpec) -> Sequence[str]:
        single_input = len(self._inputs) == 1
        chosen = self._chosen if single_input else self._chosen[index : index + 1]
        if not chosen and (spec.name in self._names or not single_input):
            chosen = (spec.name,)
        if chosen:
            missing = [
                name
                for name in chosen
                if name.partition(".")[0] not in self._names and name not in self._names
            ]
            if missing:
                raise self._misfit(f"there is no column {', '.join(missing)}")
            return chosen
        if len(self._names) == 1:
            return self._names
        if spec.datatype == "BYTES":
            raise self._misfit(f"input {spec.name!r} takes text: choose its column with --text-column")
        return self._numeric(spec)

    def _numeric(self, spec: TensorSpec) -> Sequence[str]:
        """Return all numeric columns, if the model takes as many."""
        columns = self._block.columns
        found = [n for n in self._names if n in columns and values_dtype(columns[n]).kind in "fiub"]
        shape = spec.shape or (-1, -1)
        takes = shape[1] if len(shape) == 2 else 1
        if not found or takes not in (-1, len(found)):
            raise self._misfit(
                f"input {spec.name!r} takes {'numbers' if takes == -1 else f'{takes} numbers'} per row, but "
                f"{len(found)} columns are numeric: choose columns with --columns"
            )
        return found

    def _shape(self, spec: TensorSpec, columns: tuple[str, ...]) -> tuple[int, ...]:
        """Return the shape of one row: the model's, with open sizes from the columns.

        List columns give the shape of the first row's lists.
        """
        flat = all(name in self._block.columns for name in columns)
        shape = None if spec.shape is None else spec.shape[1:]
        if len(columns) > 1:
            if shape is not None and shape not in ((-1,), (len(columns),)):
                raise self._misfit(
                    f"input {spec.name!r} takes {list(spec.shape or ())}, but {len(columns)} columns "
                    "are selected for it"
                )
            return (len(columns),)
        if shape is not None and -1 not in shape:
            return shape
        key = f"parquet_shape {spec.name}"
        if key not in self._learned:
            text = spec.datatype == "BYTES"
            open_shape = [] if shape is None and text else [1] * (1 if shape is None else len(shape))
            self._learned[key] = open_shape if flat else self._list_shape(next(iter(columns)))
        return tuple(self._learned[key])

    def _list_shape(self, column: str) -> list[int]:
        """Return the shape of the lists in the first row that has any."""
        for index in range(len(self._block)):
            value: Any = orjson.loads(self._block.record(index)).get(column)
            shape: list[int] = []
            while isinstance(value, list):
                shape.append(len(value))  # pyright: ignore[reportUnknownArgumentType]  # parsed JSON
                value = value[0] if value else None  # pyright: ignore[reportUnknownVariableType]
            if shape:
                return shape
        return [1]

    def _misfit(self, why: str) -> ModelInputError:
        return ModelInputError(
            self._model, f"{why} (the file at {self._block.first} has the columns {', '.join(self._names)})"
        )
