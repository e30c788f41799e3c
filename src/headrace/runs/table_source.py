"""Tables of Delta Lake as sources: the data files of one version of a table are the objects of a run."""

import os
import re
from typing import Final

from headrace.core.errors import ConfigError, EmptySourceError
from headrace.runs.table_output import Table
from headrace.storage.cloud_credentials import library_options
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.storage.uri import parse

DELTA: Final = "delta:"
DELTA_LOG: Final = "_delta_log/"
"""The folder of the commits of a table, below its own."""
_VERSION: Final = re.compile(r"@(\d+)$")


def is_table(uri: str) -> bool:
    """Return True for the name of a table, such as ``delta:s3://bucket/table``."""
    return uri.startswith(DELTA)


def open_table(uri: str, stores: Stores) -> Table:
    """Return the table ``delta:FOLDER``, which may not exist.

    Raises ConfigError for a place without folders, and MissingExtraError without deltalake.
    """
    from headrace.runs.delta_table import DeltaTable  # noqa: PLC0415 - optional dependency

    folder = uri.removeprefix(DELTA)
    if not folder or parse(folder).scheme not in ("file", "s3", "gs", "az"):
        raise ConfigError(f"{uri}: write delta:FOLDER, with a folder on a disk, s3://, gs:// or az://")
    environ = os.environ if stores.environ is None else stores.environ
    return DeltaTable(folder, lambda: library_options(folder, environ))


def source_folder(source: str) -> str:
    """Return the folder of a table that is a source, without its version."""
    return _VERSION.sub("", source.removeprefix(DELTA))


def table_files(source: str, stores: Stores) -> list[ObjectInfo]:
    """Return the data files of ``delta:FOLDER`` or ``delta:FOLDER@VERSION``, sorted by URI.

    Raises EmptySourceError for a table without files, and the errors of `open_table` and `Table.files`.
    """
    version = _VERSION.search(source)
    table = open_table(DELTA + source_folder(source), stores)
    found = table.files(None if version is None else int(version[1]))
    if not found:
        raise EmptySourceError(source, "the table has no data files")
    return found
