"""The columns of tables that a run needs. Readers of Parquet and ORC do not read the others."""

from collections.abc import Mapping

from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata
from headrace.formats.read_options import TABLE_FORMATS
from headrace.runs.field_mapping import TableMapping
from headrace.runs.output_settings import OutputSettings
from headrace.runs.schema import RecordSchema, Schema
from headrace.runs.settings import MappingOptions

TableColumns = Mapping[str, tuple[str, ...]]
"""The needed columns by format. All columns of a format that is not there are needed."""


def needed_columns(
    metadata: ModelMetadata, mapping: MappingOptions, output: OutputSettings, schema: Schema
) -> TableColumns:
    """Return the columns of each format of tables in the schema that the model and the output need.

    These are the columns of the model's inputs and of the sequences, and those that the output keeps or is
    partitioned by. An output that is joined with whole records needs all columns.
    """
    if output.join == "input" and not output.keep:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for records in schema.formats:
        # An error about a kept column that does not exist shows all columns.
        if records.format in TABLE_FORMATS and set(output.keep) <= set(records.names):
            columns = _input_columns(metadata, mapping, records)
            if columns is not None:
                partitions = [name for name in output.partition_by if name in records.names]
                found[records.format] = tuple(dict.fromkeys((*columns, *output.keep, *partitions)))
    return found


def _input_columns(
    metadata: ModelMetadata, mapping: MappingOptions, records: RecordSchema
) -> tuple[str, ...] | None:
    """Return the columns that become inputs or sequences, or None if the records do not fit the model."""
    try:
        return TableMapping(metadata, mapping, records).needed_columns()
    except (ConfigError, ModelInputError):
        return None  # Decoding raises the error, and shows whole records.
