"""Iceberg tables as sources and outputs of runs. The adapter module of pyiceberg (extra `iceberg`)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import ConfigError, HeadraceError, MissingExtraError, StorageError
from headrace.formats.arrow import pyarrow
from headrace.formats.record_table import schema_text
from headrace.runs.table_output import DataFile, Table, table_schema
from headrace.storage.contract import ObjectInfo, TableFile

try:
    from pyiceberg import catalog as _catalog
    from pyiceberg import exceptions as _exceptions
    from pyiceberg import expressions as _expressions
    from pyiceberg import table as _table
except ImportError as _error:
    raise MissingExtraError("iceberg", "reading and writing Iceberg tables") from _error

# The types of pyiceberg are incomplete.
catalogs: Any = _catalog
exceptions: Any = _exceptions
expressions: Any = _expressions
tables: Any = _table

_COMMIT_ATTEMPTS: Final = 20
"""The commits that other writers may overtake."""
_RUN: Final = "headrace.run"
_FILES: Final = "headrace.files"
"""Properties of a snapshot: the id of its run, and the number of files of the run that the table then has."""


class IcebergTable(Table):
    """The table ``CATALOG/NAMESPACE.TABLE``, which may not exist yet, or that of a metadata file (read only).

    pyiceberg finds the catalog in its own configuration, and has the credentials of its catalog and files.

    Raises:
        ConfigError: The catalog is not configured, or a new table has no location.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._metadata_file = name if name.endswith(".metadata.json") else ""
        catalog, _, self._identifier = name.partition("/")
        if not self._metadata_file and (not catalog or "." not in self._identifier):
            raise ConfigError(
                f"iceberg:{name}: write iceberg:CATALOG/NAMESPACE.TABLE, or the URI of a metadata file"
            )
        self._catalog: Any = None if self._metadata_file else self._load_catalog(catalog)
        table = self._load()
        location = str(table.location()) if table is not None else self._new_location()
        self._uri = location.rstrip("/") + "/"

    def _load_catalog(self, name: str) -> Any:
        try:
            return catalogs.load_catalog(name)
        except ValueError as error:
            raise ConfigError(
                f"iceberg:{self._name}: the catalog {name!r} is not configured ({error}): name it in "
                f".pyiceberg.yaml, or set PYICEBERG_CATALOG__{name.upper()}__URI"
            ) from error
        except Exception as error:
            raise self._storage_error(error) from error

    def _new_location(self) -> str:
        """Return the folder of a table that does not exist yet."""
        namespace, _, table = self._identifier.rpartition(".")
        try:
            properties: Mapping[str, str] = self._catalog.load_namespace_properties(namespace)
        except exceptions.NoSuchNamespaceError as error:
            raise ConfigError(
                f"iceberg:{self._name}: there is no namespace {namespace!r}: create it"
            ) from error
        parent = properties.get("location")
        warehouse: str = self._catalog.properties.get("warehouse", "")
        if parent is None and "/" in warehouse:
            parent = f"{warehouse.rstrip('/')}/{namespace.replace('.', '/')}"
        if parent is None:
            raise ConfigError(
                f"iceberg:{self._name}: the table does not exist, and its catalog names no warehouse folder: "
                "create the table"
            )
        return f"{parent.rstrip('/')}/{table}"

    @property
    @override
    def uri(self) -> str:
        return self._uri

    @override
    def check(self) -> None:
        table = self._load()
        if self._metadata_file:
            raise ConfigError(f"{self._name}: a metadata file is read only: name the table by its catalog")
        if table is not None and not table.spec().is_unpartitioned():
            raise ConfigError(f"iceberg:{self._name}: a run cannot write to this table: it is partitioned")

    @override
    def commit(self, run_id: str, files: Sequence[DataFile], *, overwrite: bool) -> None:
        self.check()
        for attempt in range(_COMMIT_ATTEMPTS):
            table = self._load()
            try:
                if table is not None:
                    self._add(table, run_id, files, overwrite=overwrite)
                elif files:
                    self._create(run_id, files)
            except (exceptions.CommitFailedException, exceptions.TableAlreadyExistsError) as error:
                # Another writer was first, perhaps a second process of this run: look at the table again.
                if attempt == _COMMIT_ATTEMPTS - 1:
                    raise self._storage_error(error) from error
            except HeadraceError:
                raise
            except ValueError as error:
                raise ConfigError(
                    f"iceberg:{self._name}: the output does not fit the table: {error}. Change the table, "
                    "then --resume; or create another one"
                ) from error
            except Exception as error:
                raise self._storage_error(error) from error
            else:
                return

    def _create(self, run_id: str, files: Sequence[DataFile]) -> None:
        transaction = self._catalog.create_table_transaction(
            self._identifier, schema=table_schema(files[0]), location=self._uri.rstrip("/")
        )
        transaction.add_files([file.info.uri for file in files], snapshot_properties=_record(run_id, files))
        transaction.commit_transaction()

    def _add(self, table: Any, run_id: str, files: Sequence[DataFile], *, overwrite: bool) -> None:
        done = _committed_files(table, run_id)
        replaces = overwrite and done is None
        if not replaces and len(files) == (done or 0):
            return
        if files:
            table_schema(files[0])
        # pyiceberg would repeat a lost commit without a look at the run's record.
        properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        record = _record(run_id, files)
        with table.transaction() as transaction:
            if replaces and next(iter(table.scan().plan_files()), None) is not None:
                transaction.delete(expressions.AlwaysTrue(), snapshot_properties={} if files else record)
            if files:
                added = [file.info.uri for file in files[done or 0 :]]
                transaction.add_files(added, snapshot_properties=record)

    @override
    def files(self, version: int | None) -> list[ObjectInfo]:
        table = self._load()
        if table is None:
            raise StorageError(f"iceberg:{self._name}", "there is no such table")
        try:
            scan = table.scan(snapshot_id=version)
            tasks = list(scan.plan_files())
            schema = scan.projection()
        except Exception as error:
            raise self._storage_error(error) from error
        why = _unreadable(table, schema, tasks)
        if why is not None:
            raise ConfigError(f"iceberg:{self._name}: a run cannot read this table: {why}")
        text = schema_text(schema.as_arrow())
        infos = [
            ObjectInfo(
                task.file.file_path,
                task.file.file_size_in_bytes,
                table=TableFile(text, _partition_values(table, task.file)),
            )
            for task in tasks
        ]
        return sorted(infos, key=lambda info: info.uri)

    def _load(self) -> Any:
        """Return the table as it is now, or None if it does not exist."""
        try:
            if self._metadata_file:
                return tables.StaticTable.from_metadata(self._metadata_file)
            return self._catalog.load_table(self._identifier)
        except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
            return None
        except Exception as error:
            raise self._storage_error(error) from error

    def _storage_error(self, error: Exception) -> StorageError:
        return StorageError(f"iceberg:{self._name}", f"{type(error).__name__}: {error}")


def _record(run_id: str, files: Sequence[DataFile]) -> dict[str, str]:
    """Return the record of a commit: the run, and how many of its files the table has afterwards."""
    return {_RUN: run_id, _FILES: str(len(files))}


def _committed_files(table: Any, run_id: str) -> int | None:
    """Return the number of a run's files that the table has, or None before the run's first commit."""
    summaries = [s.summary.additional_properties for s in table.snapshots() if s.summary is not None]
    return max((int(s[_FILES]) for s in summaries if s.get(_RUN) == run_id), default=None)


def _unreadable(table: Any, schema: Any, tasks: Sequence[Any]) -> str | None:
    """Return the reason for which the files of a table are not its rows, or None."""
    if any(task.delete_files for task in tasks):
        return "rows are deleted by delete files: rewrite its data files first"
    if any(str(task.file.file_format).rpartition(".")[2].upper() != "PARQUET" for task in tasks):
        return "it has files that are not Parquet"
    # Files have the names of their time, and headrace reads them by name.
    names: dict[int, str] = {}
    ids: dict[str, int] = {}
    for one in table.schemas().values():
        for name in one.column_names:
            id = one.find_field(name).field_id
            if names.setdefault(id, name) != name or ids.setdefault(name, id) != id:
                return f"its column {name!r} was renamed, or replaced by another one of its name"
    if any(getattr(field, "initial_default", None) is not None for field in schema.fields):
        return "a column has a default value in older files"
    return None


def _partition_values(table: Any, file: Any) -> dict[str, str | None]:
    """Return the texts of the partition values that are the values of columns.

    Files that another format's table had before may lack these columns.
    """
    values: dict[str, str | None] = {}
    schema = table.schema()
    for place, part in enumerate(table.specs()[file.spec_id].fields):
        if str(part.transform) == "identity":
            field = schema.find_field(part.source_id)
            values[field.name] = _as_text(file.partition[place], schema.as_arrow().field(field.name).type)
    return values


def _as_text(value: Any, kind: Any) -> str | None:
    """Return the text of a partition value. Dates and times are integers in their own unit."""
    if value is None or not (pyarrow.types.is_temporal(kind) and isinstance(value, int)):
        return None if value is None else str(pyarrow.scalar(value, kind).cast(pyarrow.string()))
    storage = pyarrow.int32() if pyarrow.types.is_date32(kind) else pyarrow.int64()
    return str(pyarrow.scalar(value, storage).cast(kind).cast(pyarrow.string()))
