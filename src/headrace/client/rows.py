"""Rows of the requests to an endpoint: check, split and join them, and count refused ones."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import EndpointRefusedError, ModelContractError
from headrace.core.tensor import InferRequest, Tensor


def require_outputs(request: InferRequest, found: Collection[str], model: str) -> None:
    """Raise ModelContractError unless `found` has all outputs that the request names.

    The message lists the outputs found.
    """
    missing = [name for name in request.outputs if name not in found]
    if missing:
        raise ModelContractError(
            model,
            f"{message_prefix(request)}the endpoint returned no output {', '.join(map(repr, missing))} "
            f"(it has {', '.join(found)})",
        )


def message_prefix(request: InferRequest) -> str:
    """Return the start of a message about a request; "" if the request has no id."""
    return f"request {request.id}: " if request.id else ""


def require_rows(request: InferRequest, outputs: Sequence[Tensor], rows: int, model: str) -> None:
    """Raise ModelContractError unless each output has `rows` rows and none is missing."""
    prefix = message_prefix(request)
    for tensor in outputs:
        if not tensor.data.ndim:
            why = f"{prefix}output {tensor.name!r} has shape [] for {rows} rows: its first axis must be rows"
            raise ModelContractError(model, why)
    found = {t.name: t.rows for t in outputs}
    if not found:
        raise ModelContractError(model, f"{prefix}the endpoint returned no output for {rows} rows")
    for output, got in found.items():
        if got != rows:
            why = (
                f"{prefix}output {output!r} has {got} rows for {rows} rows: "
                "the endpoint must return one row for each row"
            )
            raise ModelContractError(model, why)
    require_outputs(request, found, model)


def select_rows(request: InferRequest, rows: NDArray[np.int64] | slice) -> InferRequest:
    """Return the request with some of its rows."""
    return replace(request, inputs=tuple(Tensor(t.name, t.data[rows]) for t in request.inputs))


def join_outputs(model: str, request: str, parts: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """Concatenate the outputs of the parts of one request.

    Raises ModelContractError unless the parts agree on names, datatypes and the shape of a row.
    """
    if len(parts) <= 1:
        return tuple(parts[0]) if parts else ()
    named: list[Mapping[str, Tensor]] = [{t.name: t for t in part} for part in parts]
    forms = [{n: (t.datatype, t.data.shape[1:]) for n, t in part.items()} for part in named]
    other = next((f for f in forms if f != forms[0]), None)
    if other is not None:
        why = f"request {request}: its outputs differ between calls: {forms[0]}, then {other}"
        raise ModelContractError(model, why)
    return tuple(Tensor(name, np.concatenate([part[name].data for part in named])) for name in named[0])


REFUSED_ROWS_MAX = 100
"""The limit of rows refused one by one before the first prediction."""


class RefusalGuard:
    """A counter of predicted and refused rows. It ends a run whose every row is refused.

    An endpoint refuses a wrong input name or type like a bad row. Without this limit, each row of
    the source would be sent twice and fail.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.predicted_rows = 0
        self.refused_rows = 0

    def record_success(self, rows: int) -> None:
        """Count rows with predictions."""
        self.predicted_rows += rows

    def record_refusal(self, why: str, status: int | None) -> None:
        """Count one row that was refused alone. Raises EndpointRefusedError at the limit."""
        self.refused_rows += 1
        if self.predicted_rows == 0 and self.refused_rows >= REFUSED_ROWS_MAX:
            raise EndpointRefusedError(
                self._url,
                f"it refused each of the first {self.refused_rows} rows, so the rows are not the cause: "
                f"do the inputs fit the model? Last refusal: {why}",
                status=status,
            )
