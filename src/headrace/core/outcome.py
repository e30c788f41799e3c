"""What a caller of a stream gets for each record: its prediction, or its failure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.core.block import Failure, Position


@dataclass(frozen=True, slots=True)
class Prediction:
    """One record's outputs by name: numpy scalars for 1-D outputs, row arrays otherwise.

    `record` is the input's raw bytes (empty for media, whose bytes are never held).
    """

    position: Position
    outputs: Mapping[str, Any]
    record: bytes = b""

    ok: ClassVar[bool] = True


Outcome = Prediction | Failure
"""A prediction or a failure. Exceptions are for a broken stream, never for a record."""
