"""Tables of Delta Lake and Iceberg, by the names that users write."""

import os
from collections.abc import Sequence
from typing import Final

from headrace.core.errors import ConfigError
from headrace.runs.table_output import TableOutput
from headrace.storage.cloud_credentials import library_options
from headrace.storage.resolve import Stores
from headrace.storage.uri import parse

DELTA: Final = "delta:"


def is_table(uri: str) -> bool:
    """Return True for the name of a table, such as ``delta:s3://bucket/table``."""
    return uri.startswith(DELTA)


def open_table_output(
    output: str, source: str | Sequence[str], stores: Stores, *, resume: bool, overwrite: bool
) -> TableOutput:
    """Return the place of a run's output in the table `output`.

    Raises MissingExtraError, and the errors of `TableOutput`.
    """
    from headrace.runs.delta_table import DeltaTable  # noqa: PLC0415 - optional dependency

    uri = output.removeprefix(DELTA)
    if not uri or parse(uri).scheme not in ("file", "s3", "gs", "az"):
        raise ConfigError(f"{output}: write delta:FOLDER, with a folder on a disk, s3://, gs:// or az://")
    environ = os.environ if stores.environ is None else stores.environ
    table = DeltaTable(uri, lambda: library_options(uri, environ))
    return TableOutput(table, source, stores, resume=resume, overwrite=overwrite)
