"""The selection of the encoder of a run's parts, by the settings and the source."""

from collections.abc import Mapping, Sequence

from headrace.core.block import Block
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.encode import output_columns
from headrace.formats.jsonl_encode import JsonLinesEncoder
from headrace.formats.parquet import ParquetEncoder
from headrace.runs.mapping import JSON_KINDS, Mapper
from headrace.runs.stream_settings import StreamSettings


class PartEncoders:
    """A factory of part encoders. It needs the first batch, with its outputs and columns."""

    def __init__(self, settings: StreamSettings, mapper: Mapper) -> None:
        self._output = settings.output
        self._mapper = mapper

    def make(self, outputs: dict[str, Array]) -> Encoder:
        """Return an encoder for a part with these first outputs.

        `encode` raises ConfigError for records whose layout differs from the first ones in joined
        CSV.

        Raises:
            ConfigError: An output cannot be written, or a header has no names.
        """
        columns, join = output_columns(outputs), self._output.join
        if self._output.format == "parquet":
            return ParquetEncoder(columns, join=join)
        if self._output.format == "jsonl":
            return JsonLinesEncoder(columns, join=join, input_is_json=self._is_json)
        names = self._mapper.input_names
        header = names is not None if self._output.header is None else self._output.header
        encoder = CsvEncoder(
            columns,
            join=join,
            header=header,
            delimiter=self._mapper.delimiter,
            input_columns=names,
            input_is_csv=self._mapper.kind == "csv",
        )
        return (
            encoder
            if join == "none"
            else _SingleLayoutEncoder(encoder, self._mapper, names if header else None)
        )

    def _is_json(self, block: Block) -> bool:
        return self._mapper.layout_of(block)[0] in {*JSON_KINDS, "parquet"}


class _SingleLayoutEncoder(Encoder):
    """An encoder of joined CSV that refuses records whose cells would be in the wrong columns."""

    def __init__(self, inner: CsvEncoder, mapper: Mapper, names: tuple[str, ...] | None) -> None:
        self._inner = inner
        self._mapper = mapper
        self._names = names

    def begin(self) -> bytes:
        return self._inner.begin()

    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        for selection in selections:
            self._check(selection.block)
        return self._inner.encode(selections, outputs)

    def finish(self) -> bytes:
        return self._inner.finish()

    def _check(self, block: Block) -> None:
        kind, delimiter = self._mapper.layout_of(block)
        first = (self._mapper.kind, self._mapper.delimiter if self._mapper.kind == "csv" else "")
        if (kind, delimiter) != first:
            raise ConfigError(
                f"the records from {block.first} on are {_layout_words(kind, delimiter)}, those "
                f"before {_layout_words(*first)}, and cannot share one CSV file: choose "
                "--output-format jsonl, or run one format at a time"
            )
        if self._names is not None and block.column_names not in (None, self._names):
            raise ConfigError(
                f"the columns of the records from {block.first} on differ from the header of the output: "
                "choose --output-format jsonl or --no-output-header, or run one layout at a time"
            )


def _layout_words(kind: str | None, delimiter: str) -> str:
    return f"CSV with the delimiter {delimiter!r}" if delimiter else str(kind)
