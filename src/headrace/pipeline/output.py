"""Which encoder writes a run's parts, from the settings and what the source turned out to be."""

from collections.abc import Mapping, Sequence

from headrace.core.block import Block
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array
from headrace.formats.contract import Encoder, Piece
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.encode import output_columns
from headrace.formats.jsonl_encode import JsonLinesEncoder
from headrace.formats.parquet import ParquetEncoder
from headrace.pipeline.mapping import JSON_KINDS, Mapper
from headrace.pipeline.settings import StreamSettings


class Encoders:
    """Makes each part's encoder, once the first batch has shown outputs and columns."""

    def __init__(self, settings: StreamSettings, mapper: Mapper) -> None:
        self._output = settings.output
        self._mapper = mapper

    def make(self, outputs: dict[str, Array]) -> Encoder:
        """An encoder for a part whose first outputs are these.

        Raises ConfigError for outputs that cannot be written, or a header that nothing gives names for; `encode`
        raises it for records that cannot stand in one CSV file with the source's first ones.
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
        return encoder if join == "none" else _OneLayout(encoder, self._mapper, names if header else None)

    def _is_json(self, block: Block) -> bool:
        return self._mapper.layout_of(block)[0] in {*JSON_KINDS, "parquet"}


class _OneLayout:
    """Joined CSV: refuses records that would put cells, and so predictions, under the wrong columns."""

    def __init__(self, inner: CsvEncoder, mapper: Mapper, names: tuple[str, ...] | None) -> None:
        self._inner = inner
        self._mapper = mapper
        self._names = names

    def begin(self) -> bytes:
        return self._inner.begin()

    def encode(self, pieces: Sequence[Piece], outputs: Mapping[str, Array]) -> bytes:
        for piece in pieces:
            self._check(piece.block)
        return self._inner.encode(pieces, outputs)

    def finish(self) -> bytes:
        return self._inner.finish()

    def _check(self, block: Block) -> None:
        kind, delimiter = self._mapper.layout_of(block)
        first = (self._mapper.kind, self._mapper.delimiter if self._mapper.kind == "csv" else "")
        if (kind, delimiter) != first:
            raise ConfigError(
                f"the records from {block.first} on are {_layout_words(kind, delimiter)}, those before "
                f"{_layout_words(*first)}, and cannot be joined in one CSV file: choose --output-format jsonl, or "
                "read one kind at a time"
            )
        if self._names is not None and block.column_names not in (None, self._names):
            raise ConfigError(
                f"the records from {block.first} on have other columns, or in another order, than the header of the "
                "output: choose --output-format jsonl or --no-output-header, or read one kind at a time"
            )


def _layout_words(kind: str | None, delimiter: str) -> str:
    return f"CSV with {delimiter!r} between cells" if delimiter else str(kind)
