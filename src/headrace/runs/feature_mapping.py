"""The mapping of framed records (RecordIO, TFRecord) to model inputs: raw bytes, or features.

A model with a single BYTES input receives whole records. Other models receive features of the
messages in them: those of --columns, or those with the names of the inputs. A model with one input
may also take the only feature of the records (`values` in SageMaker's format).
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
from headrace.runs.settings import MappingOptions

FRAMED_KINDS: Final[Mapping[str, MessageKind]] = {"recordio": RECORD, "tfrecord": EXAMPLE}
"""The formats of framed records, with the message type of their records."""

_VECTOR: Final = "values"
_FIRST_RECORDS: Final = 100
"""The number of records in which the first valid message is searched."""


def framed_decoder(
    kind: str, metadata: ModelMetadata, mapping: MappingOptions, learned: dict[str, Any], block: Block
) -> Decoder:
    """Return the decoder of a framed format for a model.

    `learned` receives what the first records decide.

    Raises:
        ModelInputError: The records can never fit the model.
    """
    inputs = metadata.inputs or (TensorSpec("x", "FP32"),)
    chosen = mapping.columns if mapping.text_column is None else (mapping.text_column,)
    if len(inputs) == 1 and inputs[0].datatype == "BYTES" and not chosen:
        as_column = inputs[0].shape is not None and len(inputs[0].shape) == 2
        return RawDecoder(inputs[0].name, as_column_vector=as_column)
    names = tuple(str(name) for name in chosen)
    return _Chooser(FRAMED_KINDS[kind], metadata.name, names, learned, block).decoder(inputs)


class _Chooser:
    """The selection of features for each input, based on the first records."""

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
        """Return the decoder with the features and the shape of each input."""
        if len(inputs) > 1 and self._chosen and len(self._chosen) != len(inputs):
            raise ModelInputError(
                self._model, f"it has {len(inputs)} inputs, but --columns names {len(self._chosen)} features"
            )
        proto_inputs: dict[str, ProtoInput] = {}
        for index, spec in enumerate(inputs):
            wanted = self._chosen if len(inputs) == 1 else self._chosen[index : index + 1]
            key = f"features {spec.name}"
            if key not in self._learned:
                self._learned[key] = list(wanted or self._by_name(spec, inputs))
            names = tuple(self._learned[key])
            dtype = None if spec.datatype == "BYTES" else dtype_of(spec.datatype)
            proto_inputs[spec.name] = ProtoInput(names, dtype, self._shape(spec, names))
        return ProtoDecoder(self._kind, proto_inputs)

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
            f"it takes {', '.join(i.name for i in inputs)}, but the records from {self._block.first} "
            f"on have the features {', '.join(self._sizes) or '(none)'}: choose features with "
            "--columns or --text-column",
        )

    def _shape(self, spec: TensorSpec, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the shape of one row: the model's, with open sizes filled from the first record."""
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
                f"the records from {self._block.first} on are no {self._kind.name} messages "
                f"({self._why}): use a model with one BYTES input, which receives whole records",
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
                f"input {spec.name!r} takes {list(spec.shape or shape)}, but a record has {values} values",
            )
        return [values // known if size == -1 else size for size in shape]


def _first_sizes(kind: MessageKind, block: Block) -> tuple[dict[str, int] | None, str]:
    """Return the number of values per feature of the first valid message, or None and the reason."""
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
