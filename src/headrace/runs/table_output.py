"""The output of a run as a part of a table of Delta Lake or Iceberg: one commit, before the run is finished.

::

    TABLE/headrace-3f9c…/part-00000.parquet     the output of one run, which the commit adds to the table
    TABLE/headrace-3f9c…/_headrace/             the ledger of this run
    TABLE/_headrace/8a1b….json                  the folder of the last run of a source, for its resumption

A table records the run's id and the number of its files that it has. So a run that is killed between
the commit and the end of its ledger is resumed without a second commit.
"""

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, Final, Protocol

import orjson

from headrace.core.errors import ConfigError, CorruptError, CountMismatchError, OutputExistsError
from headrace.runs.ledger import Ledger
from headrace.runs.records import LEDGER_FOLDER, VERSION, dump_json, parse_record, parse_versioned
from headrace.runs.settings import RunSettings
from headrace.storage.contract import ObjectInfo, Store
from headrace.storage.resolve import Stores

_TAIL_BYTES: Final = 64 << 10
_FOOTER_THREADS: Final = 8
_PARTIAL: Final = ".partial"
_FOLDER: Final = re.compile(r"headrace-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a run: its object, its name below the table, and its metadata from Arrow."""

    info: ObjectInfo
    name: str
    metadata: Any

    @property
    def schema(self) -> Any:
        """The Arrow schema of the file."""
        return self.metadata.schema.to_arrow_schema()


class Table(Protocol):
    """A table whose files are read, or that files are added to. It may not exist. Used by one thread."""

    @property
    def uri(self) -> str:
        """The folder of the table, with a slash at its end."""
        ...

    def files(self, version: int | None) -> list[ObjectInfo]:
        """Return the data files of a version of the table (None: the last one), sorted by URI.

        Raises ConfigError for a table whose files alone do not have its rows, and StorageError, also for a
        version that does not exist.
        """
        ...

    def check(self) -> None:
        """Raise ConfigError if the table cannot take the output of a run."""
        ...

    def commit(self, run_id: str, files: Sequence[DataFile], *, overwrite: bool) -> None:
        """Add the files of a run that the table does not have yet, in one commit.

        `files` are all files of the run, in an order that later ones do not change. With `overwrite`, the
        first commit of the run also removes all other files. The table is created if it does not exist.
        Repeating a commit changes nothing.

        Raises ConfigError for a schema that the table does not take, and StorageError.
        """
        ...


class TableOutput:
    """The place of a run's output in a table, and the commit at its end. Used by one thread.

    A new run has a folder of its own. With `resume`, a run of the source that the table knows continues in
    its folder. With `overwrite`, the run replaces the content of the table in its commit.

    Raises:
        ConfigError: The table cannot take the output of a run.
        OutputExistsError: The last run of the source is unfinished, and both flags are False.
    """

    def __init__(
        self, table: Table, source: str | Sequence[str], stores: Stores, *, resume: bool, overwrite: bool
    ) -> None:
        self._table = table
        self._store: Store = stores.for_uri(table.uri)
        name = hashlib.sha256(orjson.dumps([source] if isinstance(source, str) else list(source))).hexdigest()
        self._pointer_uri = f"{table.uri}{LEDGER_FOLDER}/{name[:16]}.json"
        self._overwrite = overwrite
        table.check()
        folder = None if overwrite else self._last_folder(resume=resume)
        self.resumes = folder is not None
        """True if an earlier run is resumed, finished or not."""
        self.destination = f"{table.uri}{folder or f'headrace-{token_hex(8)}'}/"
        """The folder of the run."""

    def _last_folder(self, *, resume: bool) -> str | None:
        """Return the folder of the run to resume, or None if a new run begins."""
        if not any(info.uri == self._pointer_uri for info in self._store.list(self._pointer_uri)):
            return None
        pointer = parse_record(self._pointer_uri, self._store.get(self._pointer_uri), parse_versioned)
        folder = str(pointer["folder"])
        if not _FOLDER.fullmatch(folder):
            raise ConfigError(f"{self._pointer_uri}: {folder!r} is no folder of a run: delete this object")
        destination = f"{self._table.uri}{folder}/"
        ledger = Ledger(self._store, destination)
        if ledger.kind() is None:
            return None
        if not resume and ledger.final_report() is None:
            raise OutputExistsError(
                destination,
                "pass --resume to finish that run. To abandon it, delete "
                f"{self._pointer_uri}; --overwrite would replace the content of the table",
            )
        self._overwrite = bool(pointer["overwrite"])
        return folder if resume else None

    def settings(self, settings: RunSettings) -> RunSettings:
        """Return the settings of a run that writes Parquet.

        Raise ConfigError for another format, and for partitions.
        """
        if settings.output.partition_by:
            raise ConfigError(
                "the files of a table cannot be divided with --partition-by: leave it out, or write to a "
                "folder"
            )
        if settings.output.format not in ("auto", "parquet"):
            raise ConfigError(
                f"a table has Parquet files, not {settings.output.format}: leave the output format out"
            )
        return replace(settings, output=replace(settings.output, format="parquet", fixed_lists=False))

    def begin(self) -> None:
        """Record the folder of a new run, so that a resumption finds it. Write it before the run's ledger."""
        folder = self.destination.removeprefix(self._table.uri).rstrip("/")
        pointer = {"v": VERSION, "folder": folder, "overwrite": self._overwrite}
        self._store.put(self._pointer_uri, dump_json(pointer))

    def commit(self, run_id: str, rows_out: int) -> None:
        """Commit all files of the run, which have `rows_out` rows, but not those of broken objects.

        Raises CountMismatchError for another number of rows; the other errors are those of `Table.commit`.
        """
        found = [info for info in self._store.list(self.destination) if self._is_output(info.uri)]
        found.sort(key=lambda info: (len(info.uri), info.uri))
        with ThreadPoolExecutor(_FOOTER_THREADS, "headrace-footers") as threads:
            files = list(threads.map(self._data_file, found))
        rows = sum(file.metadata.num_rows for file in files)
        if rows != rows_out:
            raise CountMismatchError(self.destination, records_in=rows_out, out=rows, failed=0)
        # A model that declares no outputs gives empty files no columns.
        files = [file for file in files if file.metadata.num_rows and not file.name.endswith(_PARTIAL)]
        other = next((file for file in files if not file.schema.equals(files[0].schema)), None)
        if other is not None:
            raise ConfigError(
                f"{other.info.uri} has other columns than {files[0].info.uri}, and a table has one schema: "
                "let the model return the same outputs, types and shapes for all records"
            )
        self._table.commit(run_id, files, overwrite=self._overwrite)

    def _is_output(self, uri: str) -> bool:
        name = uri.removeprefix(self.destination)
        return name.endswith((".parquet", _PARTIAL)) and not name.startswith(f"{LEDGER_FOLDER}/")

    def _data_file(self, info: ObjectInfo) -> DataFile:
        """Return a file with its metadata, which is at its end."""
        from headrace.formats.arrow import parquet_modules  # noqa: PLC0415 - optional dependency

        pyarrow, parquet = parquet_modules()
        uri, size_bytes = info.uri, info.size_bytes or 0
        tail = self._store.get_range(uri, max(size_bytes - _TAIL_BYTES, 0), _TAIL_BYTES)
        footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
        if footer_bytes > len(tail):
            tail = self._store.get_range(uri, max(size_bytes - footer_bytes, 0), footer_bytes)
        try:
            metadata = parquet.read_metadata(pyarrow.BufferReader(b"PAR1" + tail[-footer_bytes:]))
        except (pyarrow.ArrowException, OSError) as error:
            raise CorruptError(f"the Parquet file cannot be read: {error}", byte=0, object=uri) from error
        return DataFile(info, uri.removeprefix(self._table.uri), metadata)


def table_schema(file: DataFile) -> Any:
    """Return the Arrow schema of a table with the columns of a file.

    Raises ConfigError for a type that tables do not have.
    """
    schema = file.schema.remove_metadata()
    for field in schema:
        if not _is_known(field.type):
            raise ConfigError(
                f"column {field.name!r} of {file.info.uri} is {field.type}, a type that tables do not have: "
                "let the model return signed integers, float32, float64, booleans or text"
            )
    return schema


def _is_known(kind: Any) -> bool:
    """Return True for a type of Arrow that a table reads with equal values."""
    from headrace.formats.arrow import pyarrow  # noqa: PLC0415 - optional dependency

    types = pyarrow.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_known(kind.value_type)
    if types.is_struct(kind):
        return all(_is_known(field.type) for field in kind)
    if types.is_timestamp(kind):
        return kind.unit == "us" and kind.tz is not None
    return (
        types.is_signed_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_date32(kind)
        or types.is_decimal128(kind)
    )
