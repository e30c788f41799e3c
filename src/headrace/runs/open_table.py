"""Tables of Delta Lake and Iceberg, by the names that users write.

As a source, the data files of one version of a table are the objects of a run.
"""

import os
import re
from typing import Final

from headrace.core.errors import ConfigError, EmptySourceError
from headrace.runs.table_output import Table
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.storage.uri import parse

DELTA: Final = "delta:"
ICEBERG: Final = "iceberg:"
DELTA_LOG: Final = "_delta_log/"
"""The folder of the commits of a table, below its own."""
_VERSION: Final = re.compile(r"@(\d+)$")


def is_table(uri: str) -> bool:
    """Return True for the name of a table: ``delta:FOLDER`` or ``iceberg:CATALOG/NAMESPACE.TABLE``."""
    return uri.startswith((DELTA, ICEBERG))


def open_table(uri: str, stores: Stores) -> Table:
    """Return the table ``delta:FOLDER`` or ``iceberg:NAME``, which may not exist.

    Raises ConfigError for an invalid name, MissingExtraError without the library of the format, and the
    errors of `IcebergTable`.
    """
    if uri.startswith(ICEBERG):
        from headrace.runs.iceberg_table import IcebergTable  # noqa: PLC0415 - optional dependency

        return IcebergTable(uri.removeprefix(ICEBERG))
    from headrace.runs.delta_table import DeltaTable  # noqa: PLC0415 - optional dependency
    from headrace.storage.cloud_credentials import library_options  # noqa: PLC0415 - runs on disks need none

    folder = uri.removeprefix(DELTA)
    if not folder or parse(folder).scheme not in ("file", "s3", "gs", "az"):
        raise ConfigError(f"{uri}: write delta:FOLDER, with a folder on a disk, s3://, gs:// or az://")
    environ = os.environ if stores.environ is None else stores.environ
    return DeltaTable(folder, lambda: library_options(folder, environ))


def source_folder(source: str) -> str | None:
    """Return the folder of a Delta table that is a source, without its version. None for other sources."""
    return _VERSION.sub("", source.removeprefix(DELTA)) if source.startswith(DELTA) else None


def table_files(source: str, stores: Stores) -> list[ObjectInfo]:
    """Return the data files of a table, sorted by URI.

    ``TABLE@VERSION`` names an older version, of Iceberg by the id of its snapshot.
    Raises EmptySourceError for a table without files, and the errors of `open_table` and `Table.files`.
    """
    version = _VERSION.search(source)
    table = open_table(_VERSION.sub("", source), stores)
    found = table.files(None if version is None else int(version[1]))
    if not found:
        raise EmptySourceError(source, "the table has no data files")
    return found
