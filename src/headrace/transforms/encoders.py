"""Which encoder writes an object's output, from the settings and what its first records turned out to be."""

from collections.abc import Callable, Mapping

from headrace.core.block import Block
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import Encoder
from headrace.formats.encode import output_columns
from headrace.formats.json_path import compile_path
from headrace.formats.parquet import ArrowEncoder, ParquetEncoder
from headrace.formats.text_encode import TextEncoder
from headrace.formats.transform_csv import TransformCsvEncoder
from headrace.formats.transform_json import TransformJsonEncoder
from headrace.pipeline.mapping import JSON_KINDS, Mapper
from headrace.transforms.settings import Accept, TransformOutput

_JSON_LIKE = JSON_KINDS | {"parquet"}
"""The formats whose records are JSON texts, as they stand or as they are shown."""


def accepted(settings: TransformOutput, kind: str | None) -> Accept:
    """What is written, where the settings leave it to the format of the source's first records."""
    if settings.accept != "auto":
        return settings.accept
    return "jsonl" if kind in _JSON_LIKE else "csv"


class Encoders:
    """Makes each shard's encoder. The mapper knows what records are."""

    def __init__(self, settings: TransformOutput, mapper: Mapper) -> None:
        self._settings = settings
        self._mapper = mapper
        self._filter = compile_path(settings.output_filter, slice_end=settings.slice_end)
        self._made: tuple[tuple[object, ...], Encoder] | None = None
        """The encoder of text that was made last, and what it is for: it keeps nothing from one record to the next."""
        self._columns: tuple[object, tuple[TensorSpec, ...]] | None = None
        """The columns that were made last, and what outputs are like that have them."""

    def make(self, outputs: Mapping[str, Array], block: Block | None) -> Encoder:
        """An encoder for a shard whose first outputs are these, of records of `block` (None where there is none).

        Raises ConfigError for outputs that cannot be written so.
        """
        settings, accept = self._settings, accepted(self._settings, self._mapper.kind)
        columns = self._columns_of(outputs)
        match accept:
            case "parquet":
                return ParquetEncoder(columns, join=settings.join)
            case "arrow":
                return ArrowEncoder(columns, join=settings.join)
            case "text":
                return self._text(columns)
            case "csv":
                layout = ("csv", self._mapper.delimiter) if block is None else self._mapper.layout_of(block)
                names = self._mapper.input_names if block is None else block.column_names
                return self._once((columns, layout, names), lambda: self._csv(columns, *layout, names))
            case _:
                line = accept == "jsonl" or settings.assemble == "line"
                return self._once((columns,), lambda: self._json(columns, b"\n" if line else b""))

    def _columns_of(self, outputs: Mapping[str, Array]) -> tuple[TensorSpec, ...]:
        like = tuple((name, data.dtype, data.shape[1:]) for name, data in outputs.items())
        if self._columns is None or self._columns[0] != like:
            self._columns = like, output_columns(outputs)
        return self._columns[1]

    def _once(self, key: tuple[object, ...], make: Callable[[], Encoder]) -> Encoder:
        """The encoder that was made last, where it is for the same: many small objects are alike."""
        if self._made is None or self._made[0] != key:
            self._made = key, make()
        return self._made[1]

    def _json(self, columns: tuple[TensorSpec, ...], separator: bytes) -> Encoder:
        return TransformJsonEncoder(
            columns,
            join=self._settings.join,
            output_filter=self._filter,
            separator=separator,
            input_is_json=self._is_json,
        )

    def _text(self, columns: tuple[TensorSpec, ...]) -> Encoder:
        if self._settings.join != "none" or not self._filter.is_root:
            raise ConfigError(
                "accept text writes the model's text as it stands, so nothing can be joined to it or filtered: choose "
                "csv or jsonl"
            )
        return TextEncoder(columns, separator=b"\n" if self._settings.assemble == "line" else b"")

    def _csv(
        self, columns: tuple[TensorSpec, ...], kind: str, delimiter: str, names: tuple[str, ...] | None
    ) -> Encoder:
        wanted = names is not None if self._settings.header is None else self._settings.header
        is_csv = kind == "csv"
        return TransformCsvEncoder(
            columns,
            join=self._settings.join,
            output_filter=self._filter,
            header=wanted,
            delimiter=delimiter if is_csv else ",",
            input_columns=names if is_csv else None,
            input_is_csv=is_csv,
        )

    def _is_json(self, block: Block) -> bool:
        return self._mapper.layout_of(block)[0] in _JSON_LIKE
