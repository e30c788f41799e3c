"""Choose the encoder of an output from the settings and the format of its records."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, assert_never

from typing_extensions import override

from headrace.core.block import Block
from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array, InferResponse, ModelMetadata, TensorSpec, empty_array
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.csv_encode import CsvEncoder, TransformCsvEncoder
from headrace.formats.encode import INPUT, TextEncoder, output_columns
from headrace.formats.json_encode import JsonLinesEncoder, TransformJsonEncoder
from headrace.formats.json_path import JsonPath, compile_path
from headrace.formats.json_select import ElementSelector, MemberSelector
from headrace.formats.parquet import ArrowEncoder, ParquetEncoder, RecordColumns
from headrace.formats.partition import PartitionedTableEncoder, PartitionedTextEncoder
from headrace.formats.place import ColumnsEncoder
from headrace.formats.read_options import V2
from headrace.runs.items import selected_rows
from headrace.runs.mapping import Mapper
from headrace.runs.output_columns import WrittenColumns, resolve_format
from headrace.runs.output_settings import TABLES
from headrace.runs.settings import RunSettings


class Encoders:
    """A factory of the encoders of a run's outputs. The mapper knows the format of the records."""

    def __init__(self, settings: RunSettings, mapper: Mapper) -> None:
        self._settings = settings
        self._output = settings.output
        self._mapper = mapper
        self._filter = compile_path(self._output.output_filter, slice_end=self._output.slice_end)
        self._cached_encoder: tuple[tuple[object, ...], Encoder] | None = None
        """The last text encoder and its key. Such an encoder has no state between records."""
        self._chosen = WrittenColumns(settings, mapper)
        self._cached_columns: tuple[object, tuple[TensorSpec, ...]] | None = None
        """The last columns, and the signature of their outputs."""

    def make(self, outputs: Mapping[str, Array], block: Block | None) -> Encoder:
        """Return an encoder for an output with these first predictions.

        `block` holds the first records, None without records. Raises ConfigError for outputs that
        the format cannot hold, or a header without names. The encoder of a part with joined CSV
        raises ConfigError for records whose layout differs from the first ones of the run.
        """
        if not block or self._settings.read.format != V2 or self._output.format == V2:
            return self._make_arranged(outputs, block)
        from headrace.runs.responses import RESPONSE, ResponseColumns, columns_of  # noqa: PLC0415 - rare

        first: InferResponse = outputs[RESPONSE][0]
        return ResponseColumns(self._make_arranged(columns_of(first), block), first)

    def _make_arranged(self, outputs: Mapping[str, Array], block: Block | None) -> Encoder:
        records = self._chosen.record_columns(block, outputs)
        arrange = self._chosen.arrangement(outputs, records)
        columns = outputs if arrange is None else arrange((), outputs)
        find_folders = self._chosen.find_folders(block, outputs)
        if find_folders is not None and self._output.format in TABLES:
            make = partial(self._table, self._columns_of(columns), records)
            return PartitionedTableEncoder(make, find_folders, arrange)
        encoder = self._make(columns, block, records)
        if find_folders is not None:
            return PartitionedTextEncoder(encoder, find_folders, arrange)
        return encoder if arrange is None else ColumnsEncoder(encoder, arrange)

    def _make(
        self, outputs: Mapping[str, Array], block: Block | None, records: RecordColumns | None
    ) -> Encoder:
        columns = self._columns_of(outputs)
        output_format = self._chosen.format
        match output_format:
            case "parquet" | "arrow":
                return self._table(columns, records)
            case "v2":
                from headrace.runs.responses import ResponseEncoder  # noqa: PLC0415 - for this format alone

                return ResponseEncoder()
            case "text":
                return self._text(columns)
            case "csv":
                return (
                    self._object_csv(columns, block) if self._settings.per_object else self._part_csv(columns)
                )
            case "jsonl" | "json" if self._settings.per_object:
                line = output_format == "jsonl" or self._output.assemble == "line"
                return self._reuse_or_make((columns,), lambda: self._json(columns, b"\n" if line else b""))
            case "jsonl" | "json":
                return self._part_json(columns)
            case _:
                assert_never(output_format)

    def _table(self, columns: tuple[TensorSpec, ...], records: RecordColumns | None) -> ParquetEncoder:
        if self._output.format == "arrow":
            return ArrowEncoder(columns, records=records)
        return ParquetEncoder(columns, records=records, fixed_lists=self._output.fixed_lists)

    @property
    def _record_join(self) -> Literal["none", "input"]:
        """The join of records, as the encoders of text have it."""
        return "input" if self._chosen.joins_records else "none"

    def make_empty(self, metadata: ModelMetadata, read_head: Callable[[], Block]) -> Encoder | None:
        """Return the encoder of an output without records, or None if the output is empty.

        The table of an object has the columns of the outputs with known shapes. CSV with a header has
        its header, if the model declares all its outputs and, for joined records, the names of the
        input columns are known. An output with partitions has no files without records. `read_head`
        returns an empty block with the column names of an object.
        """
        if self._output.partition_by:
            return None
        outputs = _empty_outputs(metadata)
        if self._output.format in TABLES:
            return self.make(outputs, read_head()) if self._settings.per_object else None
        if not self._writes_header or not outputs or len(outputs) < len(metadata.outputs):
            return None
        head = read_head()
        kind, dialect = self._mapper.layout_of(head)
        if resolve_format(self._settings, self._mapper.kind or kind) != "csv":
            return None
        of_run = self._settings.read.names or self._mapper.input_names
        of_object = head.column_names
        names = (of_object or of_run) if self._settings.per_object else (of_run or of_object)
        if dialect is not None and names is None and self._record_join == "input":
            return None
        arrange = self._chosen.arrangement(outputs, self._chosen.record_columns(head, outputs))
        columns = self._columns_of(outputs if arrange is None else arrange((), outputs))
        return self._csv(columns, dialect, None if dialect is None else names, header=True)

    @property
    def _writes_header(self) -> bool:
        """True if CSV outputs have a header, as far as the settings decide it."""
        header = self._output.header
        return self._settings.read.has_column_names if header is None else header

    def _columns_of(self, outputs: Mapping[str, Array]) -> tuple[TensorSpec, ...]:
        signature = tuple((name, data.dtype, data.shape[1:]) for name, data in outputs.items())
        if self._cached_columns is None or self._cached_columns[0] != signature:
            self._cached_columns = signature, output_columns(outputs)
        return self._cached_columns[1]

    def _reuse_or_make(self, key: tuple[object, ...], make: Callable[[], Encoder]) -> Encoder:
        """Return the last encoder if its key is the same: many small objects are alike."""
        if self._cached_encoder is None or self._cached_encoder[0] != key:
            self._cached_encoder = key, make()
        return self._cached_encoder[1]

    def _json(self, columns: tuple[TensorSpec, ...], separator: bytes) -> Encoder:
        return TransformJsonEncoder(
            columns,
            join=self._record_join,
            output_filter=self._filter,
            separator=separator,
            input_is_json=self._chosen.is_json,
        )

    def _part_json(self, columns: tuple[TensorSpec, ...]) -> Encoder:
        lines = JsonLinesEncoder(columns, join=self._record_join, input_is_json=self._chosen.is_json)
        if self._filter.is_root:
            return lines
        known = [column.name for column in columns]
        names = [INPUT, *known] if self._record_join == "input" else known
        return _FilteredLines(lines, self._filter, names)

    def _text(self, columns: tuple[TensorSpec, ...]) -> Encoder:
        if self._output.join != "none" or not self._filter.is_root:
            raise ConfigError(
                "the format text writes the model's text unchanged, so it cannot be joined or filtered: "
                "choose csv or jsonl"
            )
        return TextEncoder(columns, separator=b"\n" if self._output.assemble == "line" else b"")

    def _object_csv(self, columns: tuple[TensorSpec, ...], block: Block | None) -> Encoder:
        """Return an encoder with the layout of the object's own records."""
        kind, dialect = ("csv", self._mapper.dialect) if block is None else self._mapper.layout_of(block)
        names = self._mapper.input_names if block is None else block.column_names
        has_header = names is not None if self._output.header is None else self._output.header
        if dialect is None:
            names = None
        key = (columns, kind, dialect, names, has_header)
        return self._reuse_or_make(key, lambda: self._csv(columns, dialect, names, header=has_header))

    def _part_csv(self, columns: tuple[TensorSpec, ...]) -> Encoder:
        """Return an encoder with the layout of the run's first records, for records of all objects."""
        names, output = self._mapper.input_names, self._output
        header = names is not None if output.header is None else output.header
        dialect = self._mapper.dialect if self._mapper.kind == "csv" else None
        encoder = self._csv(columns, dialect, names, header=header)
        if self._record_join == "none":
            return encoder
        return _SingleLayoutEncoder(encoder, self._mapper, names if header else None)

    def _csv(
        self,
        columns: tuple[TensorSpec, ...],
        dialect: CsvDialect | None,
        names: tuple[str, ...] | None,
        *,
        header: bool,
    ) -> Encoder:
        """Return an encoder for records of this dialect; None stands for other formats.

        Joined records keep their dialect, and the predictions beside them have it, too. Predictions
        alone share the delimiter.
        """
        joins_csv = self._record_join == "input" and dialect is not None
        layout: dict[str, Any] = {
            "join": self._record_join,
            "header": header,
            "dialect": dialect if joins_csv or dialect is None else CsvDialect(dialect.delimiter),
            "input_columns": names,
            "input_is_csv": dialect is not None,
        }
        if self._filter.is_root:
            return CsvEncoder(columns, **layout)
        return TransformCsvEncoder(columns, output_filter=self._filter, **layout)


def _empty_outputs(metadata: ModelMetadata) -> dict[str, Array]:
    """Return the model's outputs for no rows, for outputs of known shape."""
    return {
        spec.name: empty_array(spec)
        for spec in metadata.outputs
        if spec.shape is not None and -1 not in spec.shape[1:]
    }


class _FilteredLines(Encoder):
    """An encoder that reduces each JSON line of another one to the parts that a path selects.

    `names` are the members of a line. Raises ConfigError for a path that fits no line.
    """

    def __init__(self, inner: JsonLinesEncoder, path: JsonPath, names: Sequence[str]) -> None:
        match path.segments[0]:
            case ElementSelector():
                raise ConfigError(
                    f"the output filter {path.text} selects elements of an array, but the lines are objects: "
                    f"use the names {', '.join(names)}"
                )
            case MemberSelector(wanted) if missing := [name for name in wanted if name not in names]:
                raise ConfigError(
                    f'the output filter {path.text} selects "{missing[0]}", but the lines have '
                    f"{', '.join(names)}"
                )
            case _:
                pass
        self._inner = inner
        self._path = path

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        lines = self._inner.encode(selections, outputs).split(b"\n")[:-1]
        kept: list[bytes] = []
        try:
            kept.extend(map(self._path.raw, lines))
        except ValueError as error:
            at = _position(selections, len(kept))
            text = f"{at}: the output filter {self._path.text} cannot be applied: {error}"
            raise DataError(text) from None
        return b"".join(line + b"\n" for line in kept)


def _position(selections: Sequence[BlockSelection], row: int) -> str:
    """Return the position of a row of the selections, for a message."""
    for selection in selections:
        if row < len(selection):
            return str(selection.block.position(int(selected_rows(selection)[row])))
        row -= len(selection)
    raise IndexError(row)


class _SingleLayoutEncoder(Encoder):
    """An encoder of joined CSV that refuses records whose cells would be in the wrong columns."""

    def __init__(self, inner: Encoder, mapper: Mapper, names: tuple[str, ...] | None) -> None:
        self._inner = inner
        self._mapper = mapper
        self._names = names

    @override
    def begin(self) -> bytes:
        return self._inner.begin()

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        for selection in selections:
            self._check(selection.block)
        return self._inner.encode(selections, outputs)

    @override
    def finish(self) -> bytes:
        return self._inner.finish()

    def _check(self, block: Block) -> None:
        layout = self._mapper.layout_of(block)
        first = (self._mapper.kind, self._mapper.dialect if self._mapper.kind == "csv" else None)
        if layout != first:
            raise ConfigError(
                f"the records from {block.first} on are {_layout_words(*layout)}, those "
                f"before {_layout_words(*first)}, and cannot share one CSV file: choose "
                "--output-format jsonl, or run one format at a time"
            )
        if self._names is not None and block.column_names not in (None, self._names):
            raise ConfigError(
                f"the columns of the records from {block.first} on differ from the header of the output: "
                "choose --output-format jsonl or --no-output-header, or run one layout at a time"
            )


def _layout_words(kind: str | None, dialect: CsvDialect | None) -> str:
    return str(kind) if dialect is None else f"CSV with the delimiter {dialect.delimiter.decode()!r}"
