"""The columns of tables that a run needs. Readers of Parquet and ORC do not read the others."""

from collections.abc import Mapping

from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata
from headrace.formats.read_options import TABLE_FORMATS
from headrace.runs.field_mapping import TableMapping
from headrace.runs.schema import RecordSchema, Schema
from headrace.runs.settings import MappingOptions, OutputSettings

TableColumns = Mapping[str, tuple[str, ...]]
"""The needed columns by format. All columns of a format that is not there are needed."""


def needed_columns(
    metadata: ModelMetadata, mapping: MappingOptions, output: OutputSettings, schema: Schema
) -> TableColumns:
    """Return the columns of each format of tables in the schema that the model and the output need.

    These are the columns of the model's inputs and of the sequences. An output that is joined with the
    records needs all columns.
    """
    if output.join == "input":
        return {}
    tables = [records for records in schema.formats if records.format in TABLE_FORMATS]
    found = {records.format: _input_columns(metadata, mapping, records) for records in tables}
    return {name: columns for name, columns in found.items() if columns is not None}


def _input_columns(
    metadata: ModelMetadata, mapping: MappingOptions, records: RecordSchema
) -> tuple[str, ...] | None:
    """Return the columns that become inputs or sequences, or None if the records do not fit the model."""
    try:
        return TableMapping(metadata, mapping, records).needed_columns()
    except (ConfigError, ModelInputError):
        return None  # Decoding raises the error, and shows whole records.
