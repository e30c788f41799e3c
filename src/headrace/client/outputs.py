"""What an endpoint's answer must hold, and how a request is parted, whatever it is asked by."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ModelContractError
from headrace.core.tensor import InferRequest, Tensor


def require_outputs(request: InferRequest, found: Collection[str], model: str) -> None:
    """Raise ModelContractError, naming what there is, unless all outputs that the request asks for are among `found`."""
    missing = [name for name in request.outputs if name not in found]
    if missing:
        raise ModelContractError(
            model,
            f"{called(request)}the endpoint answered without output {', '.join(map(repr, missing))} "
            f"(it has {', '.join(found)})",
        )


def called(request: InferRequest) -> str:
    """How a message about a request begins; empty where it has no id."""
    return f"request {request.id}: " if request.id else ""


def require_rows(request: InferRequest, outputs: Sequence[Tensor], rows: int, model: str) -> None:
    """Hold the endpoint to a row for each row, and to the outputs that the request asks for. Raises ModelContractError."""
    found = {t.name: t.rows for t in outputs}
    name = called(request)
    if not found:
        raise ModelContractError(model, f"{name}the endpoint answered {rows} rows without any output")
    for output, got in found.items():
        if got != rows:
            why = (
                f"{name}output {output!r} has {got} rows for {rows} rows: the endpoint must answer every row"
            )
            raise ModelContractError(model, why)
    require_outputs(request, found, model)


def part_of(request: InferRequest, rows: NDArray[np.int64] | slice) -> InferRequest:
    """The same request for some of its rows."""
    return replace(request, inputs=tuple(Tensor(t.name, t.data[rows]) for t in request.inputs))


def joined(model: str, request: str, parts: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """The outputs of one request's parts, one after another.

    Raises ModelContractError unless parts agree on names, types and the shape of a row.
    """
    if len(parts) <= 1:
        return tuple(parts[0]) if parts else ()
    named: list[Mapping[str, Tensor]] = [{t.name: t for t in part} for part in parts]
    forms = [{n: (t.datatype, t.data.shape[1:]) for n, t in part.items()} for part in named]
    other = next((f for f in forms if f != forms[0]), None)
    if other is not None:
        why = f"request {request}: its outputs differ from call to call: {forms[0]}, then {other}"
        raise ModelContractError(model, why)
    return tuple(Tensor(name, np.concatenate([part[name].data for part in named])) for name in named[0])
