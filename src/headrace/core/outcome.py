"""The result of one record of a stream: its prediction or its failure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from headrace.core.block import Failure, Position


@dataclass(frozen=True, slots=True)
class Prediction:
    """The outputs of one record by name: numpy scalars for 1-D outputs, else arrays of one row.

    `record` has the raw bytes of the input. It is empty for media, whose bytes are not kept.
    """

    position: Position
    outputs: Mapping[str, Any]
    record: bytes = b""

    ok: ClassVar[Literal[True]] = True


Outcome = Prediction | Failure
"""A prediction or a failure. A stream raises exceptions only for itself, never for a record.

``isinstance(outcome, Prediction)`` tells them apart for every type checker. mypy also narrows by
``if outcome.ok``; pyright, by design, needs ``if outcome.ok is True``.
"""
