"""Which encoder writes a run's parts, from the settings and what the source turned out to be."""

from headrace.core.tensor import Array
from headrace.formats.contract import Encoder
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.encode import output_columns
from headrace.formats.jsonl_encode import JsonLinesEncoder
from headrace.formats.parquet import ParquetEncoder
from headrace.pipeline.mapping import Mapper
from headrace.pipeline.settings import StreamSettings


class Encoders:
    """Makes each part's encoder, once the first batch has shown outputs and columns."""

    def __init__(self, settings: StreamSettings, mapper: Mapper) -> None:
        self._output = settings.output
        self._mapper = mapper

    def make(self, outputs: dict[str, Array]) -> Encoder:
        """An encoder for a part whose first outputs are these.

        Raises ConfigError for outputs that cannot be written, or a header that nothing gives names for.
        """
        columns, join = output_columns(outputs), self._output.join
        if self._output.format == "parquet":
            return ParquetEncoder(columns, join=join)
        kind = self._mapper.kind
        if self._output.format == "jsonl":
            return JsonLinesEncoder(columns, join=join, input_is_json=kind == "jsonl")
        names = self._mapper.input_names
        header = self._output.header
        return CsvEncoder(
            columns,
            join=join,
            header=names is not None if header is None else header,
            delimiter=self._mapper.delimiter,
            input_columns=names,
            input_is_csv=kind == "csv",
        )
