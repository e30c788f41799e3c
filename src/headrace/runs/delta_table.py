"""Delta Lake tables as sources and outputs of runs. The adapter module of deltalake (extra `delta`)."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError, StorageError
from headrace.formats.arrow import pyarrow
from headrace.formats.record_table import schema_text
from headrace.runs.table_output import DataFile, Table, table_schema
from headrace.storage.contract import ObjectInfo, TableFile

try:
    import deltalake as _deltalake
    from deltalake import exceptions as _exceptions
    from deltalake import transaction as _transaction
except ImportError as _error:
    raise MissingExtraError("delta", "reading and writing Delta Lake tables") from _error

# The types of deltalake are incomplete.
deltalake: Any = _deltalake
exceptions: Any = _exceptions
transaction: Any = _transaction

_PARTITION: Final = "partition."
"""The beginning of the names of the columns of partition values."""
_COMMIT_ATTEMPTS: Final = 5
"""The commits that other writers may overtake. Each of them retries by itself, too."""
_TEXT_CHARACTERS_MAX: Final = 64
"""Longer texts are not in the statistics of a file."""
_WRITER_FEATURES: Final = frozenset(
    {"appendOnly", "checkConstraints", "deletionVectors", "invariants", "timestampNtz", "v2Checkpoint"}
)
"""The features of tables to which a run can add files; columns with rules are refused nevertheless."""
_READER_FEATURES: Final = frozenset(
    {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
)
"""The features of tables whose files a run reads as they are."""
_COLUMN_RULES: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


class DeltaTable(Table):
    """A Delta Lake table, which may not exist yet.

    Args:
        uri: The folder of the table.
        options: A function that returns the settings of its store, with fresh credentials.
    """

    def __init__(self, uri: str, options: Callable[[], Mapping[str, str]]) -> None:
        self._uri = uri.rstrip("/") + "/"
        self._options = options

    @property
    @override
    def uri(self) -> str:
        return self._uri

    @override
    def check(self) -> None:
        table = self._open()
        why = None if table is None else _refusal(table)
        if why is not None:
            raise ConfigError(f"{self._uri}: a run cannot write to this Delta table: {why}")

    @override
    def commit(self, run_id: str, files: Sequence[DataFile], *, overwrite: bool) -> None:
        self.check()
        for attempt in range(_COMMIT_ATTEMPTS):
            table = self._open()
            try:
                if table is None:
                    self._create(run_id, files)
                else:
                    self._add(table, run_id, files, overwrite=overwrite)
            except exceptions.DeltaError as error:
                # Another writer was first, perhaps a second process of this run: look at the table again.
                was_first = isinstance(error, exceptions.CommitFailedError) or table is None
                if not was_first or attempt == _COMMIT_ATTEMPTS - 1:
                    raise self._storage_error(error) from error
            else:
                return

    def _create(self, run_id: str, files: Sequence[DataFile]) -> None:
        if files:
            transaction.create_table_with_add_actions(
                self._uri,
                _delta_schema(files[0]),
                [_add_action(file) for file in files],
                storage_options=dict(self._options()),
                commit_properties=_properties(run_id, files),
            )

    def _add(self, table: Any, run_id: str, files: Sequence[DataFile], *, overwrite: bool) -> None:
        done: int | None = table.transaction_version(run_id)
        replaces = overwrite and done is None
        if not replaces and len(files) == (done or 0):
            return
        schema = _delta_schema(files[0]) if files and replaces else table.schema()
        if not replaces:
            self._check_schema(table.schema(), _delta_schema(files[0]))
        table.create_write_transaction(
            [_add_action(file) for file in files[done or 0 :]],
            mode="overwrite" if replaces else "append",
            schema=schema,
            commit_properties=_properties(run_id, files),
        )

    def _check_schema(self, table: Any, added: Any) -> None:
        """Raise ConfigError unless files of the schema `added` fit the table."""
        columns = {field.name: field for field in table.fields}
        for field in added.fields:
            column = columns.pop(field.name, None)
            if column is None or column.type != field.type:
                has = "no such column" if column is None else f"this column as {column.type}"
                raise ConfigError(
                    f"{self._uri}: the run has the column {field.name!r} of type {field.type}, and the Delta "
                    f"table has {has}: change the table, then --resume; or replace its content with "
                    "--overwrite"
                )
        required = [name for name, column in columns.items() if not column.nullable]
        if required:
            raise ConfigError(
                f"{self._uri}: the column {required[0]!r} of the Delta table must not be null, and "
                "the run has no such column: make it nullable, then --resume"
            )

    @override
    def files(self, version: int | None) -> list[ObjectInfo]:
        table = self._open()
        if table is None:
            raise StorageError(self._uri, "there is no Delta table: its folder _delta_log is missing")
        try:
            if version is not None:
                table.load_as_version(version)
            why = _unreadable(table)
            if why is not None:
                raise ConfigError(f"{self._uri}: a run cannot read this Delta table: {why}")
            schema = pyarrow.schema(table.schema().to_arrow())
            actions = pyarrow.table(table.get_add_actions(flatten=True))
        except exceptions.DeltaError as error:
            raise self._storage_error(error) from error
        text = schema_text(schema)
        values = {
            name.removeprefix(_PARTITION): actions.column(name).cast(pyarrow.string()).to_pylist()
            for name in actions.column_names
            if name.startswith(_PARTITION)
        }
        paths, sizes = (actions.column(name).to_pylist() for name in ("path", "size_bytes"))
        infos = [
            ObjectInfo(
                self._file_uri(unquote(path)),
                size,
                table=TableFile(text, {name: texts[row] for name, texts in values.items()}),
            )
            for row, (path, size) in enumerate(zip(paths, sizes, strict=True))
        ]
        return sorted(infos, key=lambda info: info.uri)

    def _file_uri(self, path: str) -> str:
        """Return the URI of a file. Raise ConfigError for a file outside of the table's folder.

        A run may have the permission to read the folder, and no other.
        """
        if path.startswith("/") or "://" in path or ".." in path.split("/"):
            raise ConfigError(
                f"{self._uri}: the file {path} of the Delta table is outside of its folder, as the files of "
                "a shallow clone are: read the table that was cloned"
            )
        return self._uri + path

    def _open(self) -> Any:
        """Return the table as it is now, or None if it does not exist."""
        options = dict(self._options())
        try:
            if not deltalake.DeltaTable.is_deltatable(self._uri, options):
                return None
            return deltalake.DeltaTable(self._uri, storage_options=options)
        except exceptions.DeltaError as error:
            raise self._storage_error(error) from error

    def _storage_error(self, error: Exception) -> StorageError:
        # The lines after the first are a trace of the library.
        return StorageError(self._uri, f"the Delta table: {str(error).partition(chr(10))[0]}")


def _properties(run_id: str, files: Sequence[DataFile]) -> Any:
    """Return the record of a commit: the run, and how many of its files the table has afterwards."""
    return deltalake.CommitProperties(app_transactions=[deltalake.Transaction(run_id, len(files))])


def _unreadable(table: Any) -> str | None:
    """Return the reason for which the files of a table are not its rows, or None."""
    unknown = sorted(set(table.protocol().reader_features or ()) - _READER_FEATURES)
    if unknown:
        return f"it has the features {', '.join(unknown)}"
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        return "it maps the names of its columns"
    if any(len(batch) for batch in pyarrow.RecordBatchReader.from_stream(table.deletion_vectors())):
        return "rows are deleted by deletion vectors: purge them first (REORG TABLE … APPLY (PURGE))"
    return None


def _refusal(table: Any) -> str | None:
    """Return the reason for which no files can be added to a table, or None."""
    metadata, protocol = table.metadata(), table.protocol()
    if metadata.partition_columns:
        return f"it is partitioned by {', '.join(metadata.partition_columns)}"
    unknown = sorted(set(protocol.writer_features or ()) - _WRITER_FEATURES)
    if unknown:
        return f"it has the features {', '.join(unknown)}"
    names = [name for name in metadata.configuration if name.startswith("delta.constraints.")]
    if names:
        return f"it has the constraint {names[0].rpartition('.')[2]}, which a run does not check"
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        return "it maps the names of its columns"
    ruled = [field.name for field in table.schema().fields if any(r in field.metadata for r in _COLUMN_RULES)]
    return f"its column {ruled[0]!r} has a rule for its values" if ruled else None


def _delta_schema(file: DataFile) -> Any:
    return deltalake.Schema.from_arrow(table_schema(file))


def _add_action(file: DataFile) -> Any:
    return transaction.AddAction(
        path=file.name,
        size=file.info.size_bytes,
        partition_values={},
        modification_time=int(file.info.modified_s * 1000),
        data_change=True,
        stats=json.dumps(_statistics(file.metadata)),
    )


def _statistics(metadata: Any) -> dict[str, Any]:
    """Return the statistics of a file in the form of Delta: rows, and nulls and bounds of flat columns.

    Floats have no upper bound: NaN is above all numbers for readers, but not for Parquet's statistics.
    """
    nulls: dict[str, int] = {}
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns if groups else 0):
        chunks = [group.column(index) for group in groups]
        name, found = chunks[0].path_in_schema, [chunk.statistics for chunk in chunks]
        if "." in name or any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        bounds = [bound for one in found if one.has_min_max for bound in (one.min, one.max)]
        if len(bounds) == 2 * len(found) and all(map(_is_bound, bounds)):
            low[name] = min(bounds)
            if not isinstance(bounds[0], float):
                high[name] = max(bounds)
    return {"numRecords": metadata.num_rows, "nullCount": nulls, "minValues": low, "maxValues": high}


def _is_bound(value: Any) -> bool:
    """Return True for a value that JSON holds exactly."""
    if isinstance(value, str):
        return len(value) <= _TEXT_CHARACTERS_MAX
    if isinstance(value, float):
        return value - value == 0  # neither infinite nor NaN
    return isinstance(value, int) and not isinstance(value, bool)
