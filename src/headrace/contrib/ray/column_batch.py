"""A batch of Ray Data by columns: a mapping of numpy arrays, or an Arrow table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """The columns of a batch, unchanged, and the number of its rows."""

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
