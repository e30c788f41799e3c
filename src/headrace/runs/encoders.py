"""Choose the encoder of an object's output from the settings and the format of its records."""

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
from headrace.runs.mapping import JSON_KINDS, Mapper
from headrace.runs.settings import Accept, TransformOutput

_JSON_FORMATS = JSON_KINDS | {"parquet"}
"""Formats whose records are, or are shown as, JSON."""


def resolve_accept(settings: TransformOutput, kind: str | None) -> Accept:
    """Return the output format; "auto" follows the format of the source's first records."""
    if settings.accept != "auto":
        return settings.accept
    return "jsonl" if kind in _JSON_FORMATS else "csv"


class ShardEncoders:
    """A factory of the shards' encoders. The mapper knows the format of the records."""

    def __init__(self, settings: TransformOutput, mapper: Mapper) -> None:
        self._settings = settings
        self._mapper = mapper
        self._filter = compile_path(settings.output_filter, slice_end=settings.slice_end)
        self._cached_encoder: tuple[tuple[object, ...], Encoder] | None = None
        """The last text encoder and its key. Such an encoder has no state between records."""
        self._cached_columns: tuple[object, tuple[TensorSpec, ...]] | None = None
        """The last columns, and the signature of their outputs."""

    def make(self, outputs: Mapping[str, Array], block: Block | None) -> Encoder:
        """Return an encoder for a shard with these first outputs.

        `block` holds the first records, None without records. Raises ConfigError for outputs that
        the format cannot hold.
        """
        settings, accept = self._settings, resolve_accept(self._settings, self._mapper.kind)
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
                return self._reuse_or_make(
                    (columns, layout, names), lambda: self._csv(columns, *layout, names)
                )
            case _:
                line = accept == "jsonl" or settings.assemble == "line"
                return self._reuse_or_make((columns,), lambda: self._json(columns, b"\n" if line else b""))

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
            join=self._settings.join,
            output_filter=self._filter,
            separator=separator,
            input_is_json=self._is_json,
        )

    def _text(self, columns: tuple[TensorSpec, ...]) -> Encoder:
        if self._settings.join != "none" or not self._filter.is_root:
            raise ConfigError(
                "accept text writes the model's text unchanged, so it cannot be joined or filtered: "
                "choose csv or jsonl"
            )
        return TextEncoder(columns, separator=b"\n" if self._settings.assemble == "line" else b"")

    def _csv(
        self, columns: tuple[TensorSpec, ...], kind: str, delimiter: str, names: tuple[str, ...] | None
    ) -> Encoder:
        has_header = names is not None if self._settings.header is None else self._settings.header
        is_csv = kind == "csv"
        return TransformCsvEncoder(
            columns,
            join=self._settings.join,
            output_filter=self._filter,
            header=has_header,
            delimiter=delimiter if is_csv else ",",
            input_columns=names if is_csv else None,
            input_is_csv=is_csv,
        )

    def _is_json(self, block: Block) -> bool:
        return self._mapper.layout_of(block)[0] in _JSON_FORMATS
