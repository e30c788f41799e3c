"""A model's text as it stands: what a model writes that makes its own lines."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import Piece
from headrace.formats.encode import checked_outputs, row_width, text_bytes


class TextEncoder:
    r"""The model's one output, byte for byte (strings as UTF-8), each followed by `separator`.

    Nothing is quoted or escaped: a text that holds the separator is the model's affair. Raises ConfigError for a model
    with several outputs, or one that is no text, or more than one a record; `encode` raises ModelContractError when
    outputs change their names or shapes.
    """

    suffix: ClassVar[str] = ".txt"

    def __init__(self, columns: Sequence[TensorSpec], *, separator: bytes = b"\n") -> None:
        if len(columns) != 1 or columns[0].datatype != "BYTES" or row_width(columns[0]) != 1:
            found = ", ".join(f"{c.name} ({c.datatype})" for c in columns) or "none"
            raise ConfigError(
                f"accept text writes a model's one output of one text a record, and this model's outputs are {found}: "
                "choose csv or jsonl"
            )
        self._columns = tuple(columns)
        self._separator = separator

    def begin(self) -> bytes:
        """Nothing."""
        return b""

    def encode(self, pieces: Sequence[Piece], outputs: Mapping[str, Array]) -> bytes:
        """The texts."""
        rows, (data,) = checked_outputs(self._columns, pieces, outputs)
        texts = [text_bytes(value) for value in data.reshape(rows).tolist()]
        return self._separator.join([*texts, b""]) if texts else b""

    def finish(self) -> bytes:
        """Nothing."""
        return b""
