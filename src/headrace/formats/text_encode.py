"""The text output of a model, written unchanged, for models that format their own lines."""

from collections.abc import Mapping, Sequence

from typing_extensions import override

from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.encode import check_outputs, row_width, text_bytes


class TextEncoder(Encoder):
    """An encoder of the model's one output, byte for byte (strings as UTF-8).

    Each text is followed by `separator`. Nothing is quoted or escaped, so the model must not write
    the separator within a text. Raises ConfigError for a model with several outputs, an output that
    is not text, or several texts per record. `encode` raises ModelContractError if outputs change
    their names or shapes.
    """

    def __init__(self, columns: Sequence[TensorSpec], *, separator: bytes = b"\n") -> None:
        if len(columns) != 1 or columns[0].datatype != "BYTES" or row_width(columns[0]) != 1:
            outputs = ", ".join(f"{c.name} ({c.datatype})" for c in columns) or "none"
            raise ConfigError(
                "accept text needs a model with one text output per record, "
                f"but the model's outputs are {outputs}: choose csv or jsonl"
            )
        self._columns = tuple(columns)
        self._separator = separator

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        rows, (data,) = check_outputs(self._columns, selections, outputs)
        texts = [text_bytes(value) for value in data.reshape(rows).tolist()]
        return self._separator.join([*texts, b""]) if texts else b""
