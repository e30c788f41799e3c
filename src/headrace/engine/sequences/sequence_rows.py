"""Requests of several sequences: split by parameters or, row by row, by control tensors; and joined."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import numpy as np
from typing_extensions import override

from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    HeadraceError,
    ModelContractError,
    ModelInputError,
    StoppedError,
)
from headrace.core.frozen import statically_frozen
from headrace.core.model_traceback import ModelTraceback
from headrace.core.sequence import (
    NO_SEQUENCE,
    SEQUENCE_PARAMETERS,
    SequenceControl,
    may_omit_inputs,
    parse_sequence_id,
)
from headrace.core.tensor import Array, InferRequest, InferResponse, RowFailure, Tensor
from headrace.engine.inputs import ModelInputs
from headrace.engine.model_methods import describe_error, internal_error
from headrace.engine.outputs import Outputs, ResponseBuilder
from headrace.engine.pending_request import PendingRequest, RequestResult, merge_key
from headrace.engine.sequences.row_request import OutputCollector, RowRequest

_log = logging.getLogger("headrace.engine")

STEP_OUTPUTS_MAX: Final = 65_536
"""Limit of step outputs collected for one response; or one for each row, if the request has more
rows.
"""

_WHOLE_REQUEST_ERRORS = (CancelledRequestError, DeadlineError, StoppedError)
"""Errors that fail a request as a whole."""
CONTROL_TENSORS: Final = frozenset(SEQUENCE_PARAMETERS[:3])
"""Names of input tensors that say for each row what the parameters of these names say for a
request.
"""


@statically_frozen
class SequenceRows:
    """The rows of a request that are steps of one sequence; an empty list for all rows."""

    control: SequenceControl
    rows: list[int] = field(default_factory=list[int])


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
    control = SequenceControl.from_parameters(request.parameters, request.namespace)
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
            groups.append(SequenceRows(replace(control, id=id, start=starts_sequence), []))
        rows_of_sequence = groups[index]
        rows_of_sequence.rows.append(row)
        if end:
            groups[index] = SequenceRows(replace(rows_of_sequence.control, end=True), rows_of_sequence.rows)
        if id and not end:
            open_groups[id] = index
        else:
            open_groups.pop(id, None)
    return groups


def make_row_requests(
    entry: PendingRequest,
    groups: Sequence[SequenceRows],
    collector: OutputCollector,
    split_inputs: ModelInputs | None,
) -> list[RowRequest]:
    """Return the row requests of a request, one for each of its sequences.

    `split_inputs` are the inputs of the model if tensors name the sequences, else None.
    """
    request = entry.request
    tensors = request.inputs if split_inputs is None else model_inputs(request, split_inputs)
    by_name = {tensor.name: tensor.data for tensor in tensors}
    row_requests = [
        RowRequest(
            entry,
            by_name,
            entry.rows if split_inputs is None else len(group.rows),
            collector,
            row_indices=None if split_inputs is None else group.rows,
            ends=group.control.end,
        )
        for group in groups
    ]
    if split_inputs is not None and entry.key is not entry:
        key = merge_key(tensors)
        for row_request in row_requests:
            row_request.key = key
    return row_requests


class MultiRowRequest(OutputCollector):
    """A collector of the outputs of one request's steps, for one response.

    A strict request fails with its first failing row. In any other request, each row gets exactly
    one row of outputs or is a failure; the request fails as a whole past its deadline, and if the
    model is stopped.
    """

    def __init__(self, row_requests: int, *, strict: bool, model: str, respond: ResponseBuilder) -> None:
        self._open_count = row_requests
        self._lock = threading.Lock()
        self._strict = strict
        self._model = model
        self._respond = respond
        self._outputs: list[tuple[int, RowRequest, Outputs]] = []
        self._failed: dict[int, RowFailure] = {}
        self._error: BaseException | None = None

    @override
    def add_output(
        self, row_request: RowRequest, row: int, outputs: Outputs, wakes: list[Callable[[], None]]
    ) -> bool:
        """Keep one row of outputs. Raises ModelContractError beyond STEP_OUTPUTS_MAX."""
        del wakes
        limit = max(STEP_OUTPUTS_MAX, row_request.entry.rows)
        with self._lock:
            if row_request.is_closed:
                raise CancelledRequestError("its sequence has ended")
            if len(self._outputs) < limit:
                self._outputs.append((row, row_request, outputs))
                return True
        raise ModelContractError(
            self._model,
            f"a request has more than {limit} outputs and still reschedules: use a stream",
        )

    @override
    def add_failure(
        self, row_request: RowRequest, row: int, why: str, traceback: ModelTraceback | None = None
    ) -> bool:
        if self._strict:
            return False
        with self._lock:
            if row_request.is_closed:
                return False
            self._failed[row] = RowFailure(row, why, traceback=traceback)
        return True

    @override
    def close(self, row_request: RowRequest, error: BaseException | None) -> RequestResult | None:
        with self._lock:
            if row_request.is_closed:
                return None
            row_request.is_closed = True
            if error is not None:
                self._fail_remaining(row_request, error)
            self._open_count -= 1
            if self._open_count:
                return None
        if self._error is not None:
            self._outputs.clear()
            return self._error
        try:
            return self._response(row_request)
        except HeadraceError as error_raised:
            return error_raised
        except Exception as error_raised:  # noqa: BLE001 - such as MemoryError: only this request fails
            _log.exception("the outputs of steps could not be joined", extra={"model": self._model})
            return internal_error(self._model, error_raised)

    @override
    def when_space(self, wake: Callable[[], None]) -> bool:
        del wake
        return False

    @override
    def rewind(self, row_request: RowRequest) -> bool:
        with self._lock:
            if row_request.is_closed:
                return True
            self._outputs = [outputs for outputs in self._outputs if outputs[1] is not row_request]
            for row in row_request.request_rows(0):
                self._failed.pop(row, None)
        return True

    def _fail_remaining(self, row_request: RowRequest, error: BaseException) -> None:
        if self._strict or not row_request.rows or isinstance(error, _WHOLE_REQUEST_ERRORS):
            self._error = self._error or error
            return
        for row in row_request.request_rows(row_request.row):
            self._failed.setdefault(row, RowFailure(row, describe_error(error)))

    def _response(self, row_request: RowRequest) -> InferResponse:
        request = row_request.entry.request
        # The outputs refer to their row requests, which refer to this object: break the cycle at
        # once.
        outputs, self._outputs = self._outputs, []
        if len(outputs) > 1:
            outputs.sort(key=lambda item: item[0])
        if not self._strict:
            self._check_one_output_per_row(outputs, row_request.entry.rows)
            outputs = [item for item in outputs if item[0] not in self._failed]
        failures = tuple(failure for _, failure in sorted(self._failed.items()))
        return self._respond(
            [outputs for _, _, outputs in outputs], request, failures, sequence_parameters(row_request)
        )

    def _check_one_output_per_row(
        self, outputs: Iterable[tuple[int, RowRequest, Outputs]], rows: int
    ) -> None:
        counts = [0] * rows
        for row, _, _ in outputs:
            counts[row] += 1
        for row, count in enumerate(counts):
            if count != 1 and row not in self._failed:
                why = f"its steps returned {count} rows of outputs instead of one"
                self._failed[row] = RowFailure(row, why)


def sequence_parameters(row_request: RowRequest) -> Mapping[str, Any]:
    """Return the response parameters of a sequence: its id, as the request gave it, and its end."""
    sequence = row_request.sequence
    if sequence is None or sequence.anonymous or row_request.row_indices is not None:
        return {}
    parameters: dict[str, Any] = {"sequence_id": row_request.parameters.get("sequence_id") or sequence.id}
    if sequence.end_reason is not None or row_request.sequence_ended:
        parameters["sequence_end"] = True
    return parameters
