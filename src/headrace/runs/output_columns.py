"""Choose the columns of an output: places, columns of the records, and outputs of the model."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from headrace.core.block import Block
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, ModelMetadata
from headrace.formats.contract import BlockSelection
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.parquet import RecordColumns, WholeRecords
from headrace.formats.partition import FindFolders
from headrace.formats.place import Arrange, PlaceJoin, place_columns
from headrace.formats.read_options import TABLE_FORMATS, V2
from headrace.runs.infer import JSON_KINDS
from headrace.runs.mapping import Mapper
from headrace.runs.output_settings import TABLES, EncodedFormat
from headrace.runs.schema import Column, RecordSchema, Schema, columns_names
from headrace.runs.settings import RunSettings

_JSON_FORMATS = JSON_KINDS | TABLE_FORMATS | {V2}
"""Formats whose records are, or are shown as, JSON."""


def resolve_format(settings: RunSettings, kind: str | None) -> EncodedFormat:
    """Return the output format. `kind` is the format of the source's first records.

    "auto" is csv for a stream; for a transform, it is jsonl if the records are JSON, else csv.
    """
    if settings.output.format != "auto":
        return settings.output.format
    return "jsonl" if settings.per_object and kind in _JSON_FORMATS else "csv"


def check_columns(settings: RunSettings, metadata: ModelMetadata, schema: Schema) -> None:
    """Raise ConfigError for names of `keep`, `drop` and `rename` that cannot fit the run.

    The columns are those of the first format of the schema, and the outputs that the model declares.
    Columns that are not known, such as undeclared outputs, are checked at the first records.
    """
    if schema.formats:
        mapper = Mapper(metadata, settings.mapping, settings.read, schema)
        declared = [spec.name for spec in metadata.outputs]
        WrittenColumns(settings, mapper).check(schema.formats[0], declared)


class WrittenColumns:
    """A chooser of the columns of a run's outputs, from the settings and the schema of the records."""

    def __init__(self, settings: RunSettings, mapper: Mapper) -> None:
        self._settings = settings
        self._output = settings.output
        self._mapper = mapper

    @property
    def format(self) -> EncodedFormat:
        """The format of the output."""
        return resolve_format(self._settings, self._mapper.kind)

    @property
    def _writes_table(self) -> bool:
        return self.format in TABLES

    @property
    def place(self) -> PlaceJoin | None:
        """The places that are written beside the predictions, if any. Whole objects have no other input."""
        join = self._output.join
        if self._output.keep and join == "input":
            return None
        if join == "input":
            return "input" if self._mapper.kind == "whole" else None
        return None if join == "none" else join

    @property
    def joins_records(self) -> bool:
        """True if whole records are joined."""
        return self._output.join == "input" and self.place is None and not self._output.keep

    @property
    def _writes_columns(self) -> bool:
        """True if columns of the records are written, not whole records."""
        return bool(self._output.keep) or (self.joins_records and self._writes_table)

    def check(self, records: RecordSchema, outputs: Sequence[str]) -> None:
        """Raise ConfigError for names that are no columns of these records and outputs, or are there twice.

        Without outputs, only the names of `--keep` are checked.
        """
        chosen: Collection[str] = ()
        if self._writes_columns:
            if not self._has_columns(records):
                return
            names = columns_names(records.written_columns)
            self._check_kept(names)
            chosen = self._chosen_names(names, outputs).values() if outputs else ()
        elif outputs:
            self._check_known(outputs)
        if outputs:
            if self._has_columns(records):
                self._check_partitions([*columns_names(records.written_columns), *outputs])
            self._check_distinct(chosen, self._output_names(outputs).values())

    def _has_columns(self, records: RecordSchema) -> bool:
        """Return True if the schema has the columns of whole records.

        With an input filter, it describes a part of a JSON record.
        """
        if records.format in JSON_KINDS:
            return bool(records.names) and self._mapper.options.input_filter == "$"
        return records.format in {"csv", *TABLE_FORMATS}

    def record_columns(self, block: Block | None, outputs: Collection[str]) -> RecordColumns | None:
        """Return the columns of the records to write; None if there are none, or whole records are written.

        An output per object has the columns of its own records, `block`; a part those of the run. Names of
        `--drop` and `--rename` mean the outputs, if a column has the name of an output.

        Raise ConfigError for names that do not exist.
        """
        keep = self._output.keep
        if not self._writes_columns:
            self._check_known(outputs)
            return None
        from headrace.runs.record_columns import ChosenColumns  # noqa: PLC0415 - needs an extra

        columns = self._all_columns(block, None)
        names: list[str] = columns.schema.names
        self._check_kept(names)
        chosen = self._chosen_names(names, outputs)
        if not chosen:
            return None
        if list(chosen.items()) == [(name, name) for name in names]:
            return columns
        return ChosenColumns(self._all_columns(block, keep) if keep else columns, chosen)

    def find_folders(self, block: Block | None, outputs: Collection[str]) -> FindFolders | None:
        """Return the function that finds the partitions of records; None if the output has no partitions.

        Raise ConfigError for names that are neither outputs nor columns of the records.
        """
        wanted = self._output.partition_by
        if not wanted:
            return None
        from headrace.runs import partition_columns, record_columns  # noqa: PLC0415 - need an extra

        of_records: RecordColumns | None = None
        kept = [name for name in wanted if name not in outputs]
        if kept:
            self._check_partitions([*self._all_columns(block, None).schema.names, *outputs])
            columns = self._all_columns(block, kept, as_text=True)
            of_records = record_columns.ChosenColumns(columns, {name: self._new_name(name) for name in kept})
        names = {self._new_name(name): name if name in outputs else None for name in wanted}
        return partition_columns.PartitionColumns(names, of_records).find_folders

    def _chosen_names(self, names: Sequence[str], outputs: Collection[str]) -> dict[str, str]:
        """Return the new names of the columns of the records to write by their old names, of `names`."""
        self._check_known([*names, *outputs])
        return {
            name: name if name in outputs else self._new_name(name)
            for name in self._output.keep or names
            if name in outputs or name not in (*self._output.drop, *self._output.partition_by)
        }

    def _check_kept(self, names: Collection[str]) -> None:
        """Raise ConfigError if a name of `--keep` is not among the columns of the records."""
        missing = next((name for name in self._output.keep if name not in names), None)
        if missing is not None:
            raise ConfigError(
                f"--keep {missing}: no column has this name: the columns are {', '.join(names)}"
            )

    def _check_known(self, names: Collection[str]) -> None:
        """Raise ConfigError if a name of `--drop` or `--rename` is not among the columns."""
        known = {*names, *self._output.partition_by}
        for setting, wanted in (("drop", self._output.drop), ("rename", self._output.new_names)):
            missing = next((name for name in wanted if name not in known), None)
            if missing is not None:
                raise ConfigError(
                    f"--{setting} {missing}: no output and no written column of the record has this name: "
                    f"the names are {', '.join(names)}"
                )

    def _check_partitions(self, names: Collection[str]) -> None:
        """Raise ConfigError if a name of `--partition-by` is not among the columns and outputs."""
        missing = next((name for name in self._output.partition_by if name not in names), None)
        if missing is not None:
            raise ConfigError(
                f"--partition-by {missing}: no output and no column of the record has this name: the names "
                f"are {', '.join(names)}"
            )

    def _all_columns(
        self, block: Block | None, kept: Sequence[str] | None, *, as_text: bool = False
    ) -> RecordColumns:
        """Return all columns of the records, or those with the names in `kept`.

        With `as_text`, cells of CSV are text, with all their digits.
        """
        from headrace.runs import record_columns as columns_of  # noqa: PLC0415 - needs an extra

        kind = self._mapper.kind if block is None else self._mapper.layout_of(block)[0]
        if block is not None and block.table is not None:
            has_dictionaries = self._output.format != "arrow"
            return columns_of.TableColumns(block.table, has_dictionaries=has_dictionaries, kept=kept)
        records = self._mapper.schema.find(kind or "") or RecordSchema(
            kind or "", tuple(map(Column, self._output.keep))
        )
        if kind == "csv":
            names = None if block is None or not self._settings.per_object else block.column_names
            columns = _named_columns(records, names)
            if self.format == "csv" or as_text:
                # CSV keeps the digits of its cells.
                columns = [replace(column, type="text") for column in columns]
            return columns_of.CsvColumns(columns, self._csv_dialect, kept)
        if kind in JSON_KINDS and self._has_columns(records):
            return columns_of.JsonColumns(records.written_columns, self.is_json, kept)
        return WholeRecords(has_bytes=kind not in JSON_KINDS)

    def _csv_dialect(self, block: Block) -> CsvDialect:
        """Return the dialect of a block. Raise ConfigError if its records are not CSV."""
        kind, dialect = self._mapper.layout_of(block)
        if dialect is None:
            raise ConfigError(
                f"the records from {block.first} on are {kind}, those before are CSV, and cannot share one "
                "table: run one format at a time"
            )
        return dialect if self.format != "csv" else replace(dialect, null_words=())

    def arrangement(self, outputs: Mapping[str, Array], records: RecordColumns | None) -> Arrange | None:
        """Return the function that arranges the columns to write; None if these are the outputs alone.

        `records` is the result of `record_columns` for the outputs.

        Raise ConfigError for two columns with the same name.
        """
        place = self.place
        kept = None if self._writes_table else records
        new_names = self._output_names(outputs)
        self._check_distinct([] if records is None else records.schema.names, new_names.values())
        if place is None and kept is None and list(new_names.items()) == [(name, name) for name in outputs]:
            return None

        def arrange(selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> dict[str, Array]:
            columns: dict[str, Array] = {}
            if kept is not None:
                from headrace.runs.record_columns import record_arrays  # noqa: PLC0415 - needs an extra

                columns |= record_arrays(kept, selections)
            if place is not None:
                columns |= place_columns(place, selections)
            return columns | {new_names[n]: data for n, data in outputs.items() if n in new_names}

        return arrange

    def _output_names(self, outputs: Collection[str]) -> dict[str, str]:
        """Return the new names of the outputs to write by their old names."""
        left_out = (*self._output.drop, *self._output.partition_by)
        return {name: self._new_name(name) for name in outputs if name not in left_out}

    def _new_name(self, name: str) -> str:
        return self._output.new_names.get(name, name)

    def _check_distinct(self, of_records: Collection[str], of_outputs: Collection[str]) -> None:
        """Raise ConfigError if two columns have the same name, or no column is left."""
        places = [] if self.place is None else list(place_columns(self.place, ()))
        names = Counter([*places, *of_records, *of_outputs])
        clash = next((name for name, count in names.items() if count > 1), None)
        if clash is not None:
            raise ConfigError(
                f"two columns of the output have the name {clash!r}: rename or drop the output of the model "
                f"(--rename {clash}=NEW, --drop {clash}), or choose the columns of the record with --keep"
            )
        if not names and not self.joins_records:
            self._check_left()

    def _check_left(self) -> None:
        """Raise ConfigError, for an output without columns, if options have removed them."""
        removing = {"--drop": self._output.drop, "--partition-by": self._output.partition_by}
        options = [option for option, names in removing.items() if names]
        if options:
            leave = "leaves" if len(options) == 1 else "leave"
            raise ConfigError(
                f"{' and '.join(options)} {leave} no column to write: remove a name from "
                f"{' or '.join(options)}, or write columns of the record (--keep)"
            )

    def is_json(self, block: Block) -> bool:
        """Return True if the records of a block are, or are shown as, JSON."""
        return self._mapper.layout_of(block)[0] in _JSON_FORMATS


def _named_columns(records: RecordSchema, names: Sequence[str] | None) -> Sequence[Column]:
    """Return the columns of CSV records with these names, in this order; text for unknown names."""
    if names is None:
        return records.columns
    return [records.column(name) or Column(name) for name in names]
