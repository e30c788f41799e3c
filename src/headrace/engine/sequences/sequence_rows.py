"""Splits a request by its sequences: named by its parameters, or row by row by control tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from headrace.core.errors import ModelInputError
from headrace.core.sequence import (
    NO_SEQUENCE,
    SEQUENCE_PARAMETERS,
    SequenceControl,
    may_omit_inputs,
    parse_sequence_id,
)
from headrace.core.tensor import Array, InferRequest, Tensor
from headrace.engine.inputs import ModelInputs
from headrace.engine.sequences.row_request import SequenceRows

CONTROL_TENSORS: Final = frozenset(SEQUENCE_PARAMETERS[:3])
"""Names of input tensors that say for each row what the parameters of these names say for a
request.
"""


def has_control_tensors(request: InferRequest, inputs: ModelInputs) -> bool:
    """Return True if tensors name the sequence of each row, other than inputs of the model."""
    return any(_is_control_tensor(tensor, inputs) for tensor in request.inputs)


def model_inputs(request: InferRequest, inputs: ModelInputs) -> tuple[Tensor, ...]:
    """Return the tensors that are inputs of the model."""
    return tuple(tensor for tensor in request.inputs if not _is_control_tensor(tensor, inputs))


def _is_control_tensor(tensor: Tensor, inputs: ModelInputs) -> bool:
    return tensor.name in CONTROL_TENSORS and all(spec.name != tensor.name for spec in inputs.specs)


def count_steps(request: InferRequest, inputs: ModelInputs) -> int:
    """Return the number of steps of a request. One that ends or cancels a sequence needs no inputs.

    Raises ModelInputError if the request does not fit the model, DataError for invalid parameters.
    """
    if not request.inputs and may_omit_inputs(request.parameters):
        return 0
    if not has_control_tensors(request, inputs):
        return inputs.check(request)
    bare = InferRequest(model_inputs(request, inputs), request.id)
    rows = inputs.check(bare)
    for tensor in request.inputs:
        if _is_control_tensor(tensor, inputs):
            _check_control(tensor, rows, inputs.model)
    return rows


def _check_control(tensor: Tensor, rows: int, model: str) -> None:
    data = tensor.data
    if data.shape[:1] != (rows,) or data.size != rows:
        raise ModelInputError(
            model,
            f"input {tensor.name!r} must have one element for each of the {rows} rows, "
            f"but has shape {list(data.shape)}",
        )
    if tensor.name != "sequence_id" and data.dtype.kind not in "biu":
        raise ModelInputError(
            model, f"input {tensor.name!r} takes BOOL, but the request has {tensor.datatype}"
        )


def split_sequences(request: InferRequest, inputs: ModelInputs) -> tuple[list[SequenceRows], bool]:
    """Return the rows of a checked request by sequence, in the order of their first rows.

    There is at least one group. The second value is True if tensors name the sequences; then the
    parameters apply to every row where no tensor does. Raises DataError for invalid parameters.
    """
    control = SequenceControl.from_parameters(request.parameters)
    tensors = {tensor.name: tensor.data for tensor in request.inputs if _is_control_tensor(tensor, inputs)}
    if not tensors or control.cancel:
        return [SequenceRows(control)], bool(tensors)
    # A request without rows has no steps, whatever its parameters say.
    return _group_rows(control, tensors, _ids(control, tensors)) or [SequenceRows(NO_SEQUENCE)], True


def _ids(control: SequenceControl, tensors: Mapping[str, Array]) -> list[str]:
    tensor = tensors.get("sequence_id")
    if tensor is None:
        rows = len(next(iter(tensors.values())))
        return [control.id] * rows
    values: list[Any] = tensor.reshape(-1).tolist()
    return [parse_sequence_id(value) for value in values]


def _flags(tensors: Mapping[str, Array], name: str, rows: int) -> Sequence[bool]:
    tensor = tensors.get(name)
    return [False] * rows if tensor is None else np.asarray(tensor).reshape(-1).astype(bool).tolist()


def _group_rows(
    control: SequenceControl, tensors: Mapping[str, Array], ids: Sequence[str]
) -> list[SequenceRows]:
    rows = len(ids)
    starts, ends = _flags(tensors, "sequence_start", rows), _flags(tensors, "sequence_end", rows)
    start_first = control.start and "sequence_start" not in tensors
    seen: set[str] = set()
    groups: list[SequenceRows] = []
    open_groups: dict[str, int] = {}
    """Index of the group that the next row of a sequence joins."""
    for row, (id, start, end) in enumerate(zip(ids, starts, ends, strict=True)):
        index = None if start else open_groups.get(id)
        if index is None:
            index = len(groups)
            starts_sequence = bool(id) and (start or (start_first and id not in seen))
            seen.add(id)
            groups.append(
                SequenceRows(
                    SequenceControl(id, start=starts_sequence, end=control.end, auto=control.auto), []
                )
            )
        rows_of_sequence = groups[index]
        rows_of_sequence.rows.append(row)
        if end:
            groups[index] = SequenceRows(replace(rows_of_sequence.control, end=True), rows_of_sequence.rows)
        if id and not end:
            open_groups[id] = index
        else:
            open_groups.pop(id, None)
    return groups
