"""The partitions of records: the folders that the values of columns and outputs name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from headrace.core.errors import ConfigError
from headrace.core.tensor import Array
from headrace.formats.arrow import pyarrow
from headrace.formats.contract import BlockSelection
from headrace.formats.encode import is_text, text_bytes
from headrace.formats.parquet import RecordColumns
from headrace.formats.partition import RowFolders, folder_name

_WHOLE_SECOND: Final = re.compile(r"\.0+(?=Z?$)")


class PartitionColumns:
    """The columns by whose values an output is divided.

    Args:
        names: The names of the columns in the folders, each with the name of its output, or None for a column
            of the records.
        records: The columns of the records, by their names in the folders; None if there are only outputs.
    """

    def __init__(self, names: Mapping[str, str | None], records: RecordColumns | None) -> None:
        self._names = names
        self._records = records

    def find_folders(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> RowFolders:
        """Return the folders of records and their outputs, and for each record the index of its folder.

        Raises:
            ConfigError: The type of a column has no text that all readers understand.
            DataError: A record has no value of the column's type, or one that is too long.
        """
        table: Any = None
        if self._records is not None:
            batches = [self._records.batch(selection) for selection in selections]
            table = pyarrow.Table.from_batches(batches, self._records.schema)
        folders, numbers = [""], np.zeros(sum(map(len, selections)), np.int64)
        for name, output in self._names.items():
            column = _output_column(output, outputs[output]) if output is not None else table.column(name)
            values, places = _values(name, column)
            parts = [folder_name(name, value) for value in values]
            present, numbers = np.unique(numbers * len(parts) + places, return_inverse=True)
            pairs = (divmod(number, len(parts)) for number in present.tolist())
            folders = [f"{folders[before]}{parts[part]}/" for before, part in pairs]
        return folders, numbers


def _output_column(name: str, data: Array) -> Any:
    """Return an output of one value for each record as an Arrow array."""
    if data.size != len(data):
        raise ConfigError(
            f"--partition-by {name}: the output has {data.size // max(len(data), 1)} values for each record: "
            "choose an output with one value"
        )
    values = data.reshape(-1)
    if not is_text(values):
        return pyarrow.array(values)
    texts = [None if v is None else text_bytes(v).decode(errors="backslashreplace") for v in values.tolist()]
    return pyarrow.array(texts, pyarrow.string())


def _values(name: str, column: Any) -> tuple[Sequence[str | None], Array]:
    """Return the values of a column as text, each once, and for each record the index of its value."""
    types, kind = pyarrow.types, column.type
    if types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    is_known = any(
        is_kind(kind)
        for is_kind in (
            types.is_string,
            types.is_large_string,
            types.is_string_view,
            types.is_integer,
            types.is_boolean,
            types.is_date,
            types.is_timestamp,
            types.is_decimal,
            types.is_null,
        )
    )
    if not is_known:
        raise ConfigError(
            f"--partition-by {name}: the column is {kind}, whose values do not name folders: choose a column "
            "of text, integers, booleans, dates or times"
        )
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    texts: list[str] = encoded.dictionary.cast(pyarrow.string()).to_pylist()
    if types.is_timestamp(kind):
        texts = [_WHOLE_SECOND.sub("", text) for text in texts]
    values = [*texts, None]
    places: Array = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
    return values, places.astype(np.int64)
