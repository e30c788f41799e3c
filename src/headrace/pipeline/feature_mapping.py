"""Framed records (RecordIO, TFRecord) to a model's inputs: as they stand, or the features of the messages in them.

A model of one input of bytes gets whole records. Any other gets features: by --columns, by its inputs' names, or, of
one input, the record's only feature (`values`, as SageMaker calls it).
"""

from collections.abc import Mapping
from math import prod
from typing import Any, Final

from headrace.core.block import Block
from headrace.core.errors import ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec, dtype_of
from headrace.formats.contract import Decoder
from headrace.formats.csv_decode import RawDecoder
from headrace.formats.proto_decode import ProtoDecoder, ProtoInput
from headrace.formats.proto_features import EXAMPLE, RECORD, MessageKind, feature_values, features
from headrace.pipeline.settings import MappingOptions

FRAMED_KINDS: Final[Mapping[str, MessageKind]] = {"recordio": RECORD, "tfrecord": EXAMPLE}
"""The formats of framed records, and the messages that their records may be."""

_VECTOR: Final = "values"
_FIRST_RECORDS: Final = 100
"""How many of the first records are looked at to find one that tells the features."""


def framed_decoder(
    kind: str, metadata: ModelMetadata, mapping: MappingOptions, learned: dict[str, Any], block: Block
) -> Decoder:
    """The decoder of a framed format's records for this model; what the first of them decide goes to `learned`.

    Raises ModelInputError when nothing could ever fit.
    """
    inputs = metadata.inputs or (TensorSpec("x", "FP32"),)
    chosen = mapping.columns if mapping.text_column is None else (mapping.text_column,)
    if len(inputs) == 1 and inputs[0].datatype == "BYTES" and not chosen:
        as_column = inputs[0].shape is not None and len(inputs[0].shape) == 2
        return RawDecoder(inputs[0].name, as_column_vector=as_column)
    names = tuple(str(name) for name in chosen)
    return _Chooser(FRAMED_KINDS[kind], metadata.name, names, learned, block).decoder(inputs)


class _Chooser:
    """Chooses the features of each input, by what the first records have."""

    def __init__(
        self, kind: MessageKind, model: str, chosen: tuple[str, ...], learned: dict[str, Any], block: Block
    ) -> None:
        self._kind = kind
        self._model = model
        self._chosen = chosen
        self._learned = learned
        self._block = block
        self._sizes, self._why = _first_sizes(kind, block)

    def decoder(self, inputs: tuple[TensorSpec, ...]) -> Decoder:
        """Each input's features and shape."""
        if len(inputs) > 1 and self._chosen and len(self._chosen) != len(inputs):
            raise ModelInputError(
                self._model, f"it has {len(inputs)} inputs, but --columns names {len(self._chosen)} features"
            )
        made: dict[str, ProtoInput] = {}
        for index, spec in enumerate(inputs):
            wanted = self._chosen if len(inputs) == 1 else self._chosen[index : index + 1]
            key = f"features {spec.name}"
            if key not in self._learned:
                self._learned[key] = list(wanted or self._by_name(spec, inputs))
            names = tuple(self._learned[key])
            dtype = None if spec.datatype == "BYTES" else dtype_of(spec.datatype)
            made[spec.name] = ProtoInput(names, dtype, self._shape(spec, names))
        return ProtoDecoder(self._kind, made)

    def _by_name(self, spec: TensorSpec, inputs: tuple[TensorSpec, ...]) -> tuple[str, ...]:
        if self._sizes is None or spec.name in self._sizes:
            vector = self._sizes is None and len(inputs) == 1 and self._kind is RECORD
            return (_VECTOR,) if vector else (spec.name,)
        if len(inputs) == 1 and _VECTOR in self._sizes and self._kind is RECORD:
            return (_VECTOR,)
        if len(inputs) == 1 and len(self._sizes) == 1:
            return tuple(self._sizes)
        raise ModelInputError(
            self._model,
            f"it takes {', '.join(i.name for i in inputs)}, but the records from {self._block.first} on have the "
            f"features {', '.join(self._sizes) or '(none)'}: choose features with --columns or --text-column",
        )

    def _shape(self, spec: TensorSpec, names: tuple[str, ...]) -> tuple[int, ...]:
        """One row's shape: the model's; where that leaves a size open, as many values as the first record has."""
        shape = (-1,) if spec.shape is None else spec.shape[1:]
        if -1 not in shape:
            return shape
        key = f"feature_shape {spec.name}"
        if key not in self._learned:
            self._learned[key] = self._filled(spec, shape, names)
        return tuple(self._learned[key])

    def _filled(self, spec: TensorSpec, shape: tuple[int, ...], names: tuple[str, ...]) -> list[int]:
        if self._sizes is None:
            raise ModelInputError(
                self._model,
                f"the records from {self._block.first} on are no {self._kind.name} messages ({self._why}): what "
                "they hold cannot be told; a model with one BYTES input gets them as they stand",
            )
        missing = [name for name in names if name not in self._sizes]
        if missing:
            raise ModelInputError(
                self._model,
                f"the records from {self._block.first} on have no feature {', '.join(missing)} (they have "
                f"{', '.join(self._sizes) or 'none'}): choose others with --columns",
            )
        values = sum(self._sizes[name] for name in names)
        known = prod(size for size in shape if size != -1)
        if shape.count(-1) > 1 or not known or values % known:
            raise ModelInputError(
                self._model,
                f"input {spec.name!r} takes {list(spec.shape or shape)}, which {values} values a record do not fill",
            )
        return [values // known if size == -1 else size for size in shape]


def _first_sizes(kind: MessageKind, block: Block) -> tuple[dict[str, int] | None, str]:
    """How many values each feature has, of the first record that is such a message; or why none is."""
    first_why = "they are empty"
    for index in range(min(len(block), _FIRST_RECORDS)):
        record = block.record(index)
        try:
            found = {name.decode(): feature for name, feature in features(record, kind, None).items()}
            sizes = {name: len(feature_values(record, feature, name)) for name, feature in found.items()}
        except ValueError as error:
            first_why = str(error)
            continue
        if sizes:
            return sizes, ""
    return None, first_why
