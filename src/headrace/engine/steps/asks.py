"""Which sequences a request is for, row by row: by its parameters, or by tensors with an element for each row."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from headrace.core.errors import ModelInputError
from headrace.core.sequence import (
    NO_SEQUENCE,
    SEQUENCE_PARAMETERS,
    SequenceAsk,
    is_bare_end,
    sequence_id_of,
)
from headrace.core.tensor import Array, InferRequest, Tensor
from headrace.engine.inputs import ModelInputs
from headrace.engine.steps.part import PartAsk

CONTROLS: Final = frozenset(SEQUENCE_PARAMETERS[:3])
"""Input tensors that say of each row what the parameters of these names say of a whole request."""


def controlled(request: InferRequest, inputs: ModelInputs) -> bool:
    """Whether tensors tell the sequence of each row; not those that the model takes itself."""
    return any(_controls(tensor, inputs) for tensor in request.inputs)


def without_controls(request: InferRequest, inputs: ModelInputs) -> tuple[Tensor, ...]:
    """The tensors that are for the model."""
    return tuple(tensor for tensor in request.inputs if not _controls(tensor, inputs))


def _controls(tensor: Tensor, inputs: ModelInputs) -> bool:
    return tensor.name in CONTROLS and all(spec.name != tensor.name for spec in inputs.specs)


def rows_of(request: InferRequest, inputs: ModelInputs) -> int:
    """How many steps a request asks for; one that ends a sequence, or cancels it, need not have inputs.

    Raises ModelInputError for what does not fit the model, DataError for what is said of its sequence.
    """
    if not request.inputs and is_bare_end(request.parameters):
        return 0
    if not controlled(request, inputs):
        return inputs.check(request)
    bare = InferRequest(without_controls(request, inputs), request.id)
    rows = inputs.check(bare)
    for tensor in request.inputs:
        if _controls(tensor, inputs):
            _check_control(tensor, rows, inputs.model)
    return rows


def _check_control(tensor: Tensor, rows: int, model: str) -> None:
    data = tensor.data
    if data.shape[:1] != (rows,) or data.size != rows:
        raise ModelInputError(
            model,
            f"input {tensor.name!r} must have an element for each of the {rows} rows, but has shape {list(data.shape)}",
        )
    if tensor.name != "sequence_id" and data.dtype.kind not in "biu":
        raise ModelInputError(model, f"input {tensor.name!r} takes BOOL, but was given {tensor.datatype}")


def asks_of(request: InferRequest, inputs: ModelInputs) -> tuple[list[PartAsk], bool]:
    """The parts of a request that was checked: all rows of one sequence each, in the order of their first rows. At least one.

    Whether tensors tell whose the rows are: then each part names its own; what no tensor tells, the parameters tell of every
    row. Raises DataError for what is said of its sequences.
    """
    ask = SequenceAsk.of(request.parameters)
    tensors = {tensor.name: tensor.data for tensor in request.inputs if _controls(tensor, inputs)}
    if not tensors or ask.cancel:
        return [PartAsk(ask)], bool(tensors)
    # Of no rows nothing is asked, whatever the parameters say of each.
    return _parts(ask, tensors, _ids(ask, tensors)) or [PartAsk(NO_SEQUENCE)], True


def _ids(ask: SequenceAsk, tensors: Mapping[str, Array]) -> list[str]:
    found = tensors.get("sequence_id")
    if found is None:
        rows = len(next(iter(tensors.values())))
        return [ask.id] * rows
    values: list[Any] = found.reshape(-1).tolist()
    return [sequence_id_of(value) for value in values]


def _flags(tensors: Mapping[str, Array], name: str, rows: int) -> Sequence[bool]:
    found = tensors.get(name)
    return [False] * rows if found is None else np.asarray(found).reshape(-1).astype(bool).tolist()


def _parts(ask: SequenceAsk, tensors: Mapping[str, Array], ids: Sequence[str]) -> list[PartAsk]:
    rows = len(ids)
    starts, ends = _flags(tensors, "sequence_start", rows), _flags(tensors, "sequence_end", rows)
    start_first = ask.start and "sequence_start" not in tensors
    seen: set[str] = set()
    parts: list[PartAsk] = []
    growing: dict[str, int] = {}
    """Where the part is that a row of this sequence belongs to."""
    for row, (id, start, end) in enumerate(zip(ids, starts, ends, strict=True)):
        at = None if start else growing.get(id)
        if at is None:
            at = len(parts)
            starts_here = bool(id) and (start or (start_first and id not in seen))
            seen.add(id)
            parts.append(PartAsk(SequenceAsk(id, start=starts_here, end=ask.end, auto=ask.auto), []))
        part = parts[at]
        part.rows.append(row)
        if end:
            parts[at] = PartAsk(replace(part.sequence, end=True), part.rows)
        if id and not end:
            growing[id] = at
        else:
            growing.pop(id, None)
    return parts
