"""A batch of Ray Data by its columns, in either format that is taken: a mapping of arrays, or an Arrow table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch's columns as they came, and how many rows they have."""

    columns: Mapping[str, Any]
    rows: int
    arrow: bool

    def array(self, name: str) -> Array:
        """A column with a row for each row: numbers, tensors, or objects; a null of an Arrow table is None."""
        column = self.columns[name]
        if not self.arrow:
            return column
        from headrace.formats.arrow import column_array  # noqa: PLC0415 - an extra, which Ray Data brings

        return column_array(column)

    def kept(self, name: str) -> Any:
        """A column as it goes on: as it came, but for Ray's own tensors, which it takes back as arrays only."""
        column = self.columns[name]
        if not self.arrow:
            return column
        from headrace.formats.arrow import column_array, is_tensors  # noqa: PLC0415 - see above

        return column_array(column) if is_tensors(column) else column


def batch_of(given: object) -> Batch:
    """What `map_batches` gave. Raises ConfigError for a format that is not taken, DataError where columns' lengths differ."""
    if isinstance(given, Mapping):
        columns = cast("Mapping[str, Any]", given)
        return Batch(columns, _rows(columns), arrow=False)
    if type(given).__module__.partition(".")[0] == "pyarrow":
        from headrace.formats.arrow import table_columns  # noqa: PLC0415 - it is there, as `given` shows

        columns = table_columns(given)
        return Batch(columns, _rows(columns), arrow=True)
    raise ConfigError(
        f"a batch is {type(given).__name__}, not a mapping of numpy arrays or an Arrow table: give map_batches "
        'batch_format="numpy" or "pyarrow"'
    )


def _rows(columns: Mapping[str, Any]) -> int:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise DataError(
            f"the columns of a batch differ in length ({listed}): every column needs a value for each row"
        )
    return next(iter(lengths.values()), 0)
