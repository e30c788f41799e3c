"""The requests of a batch of sequence steps: split a batch into requests, and join the responses."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from headrace.core.errors import ModelContractError
from headrace.core.tensor import InferRequest, InferResponse, RowFailure, Tensor


def end_request(id: str) -> InferRequest:
    """Return the request that ends a sequence without a step."""
    return InferRequest((), id=f"end-{id}", parameters={"sequence_id": id, "sequence_end": True})


def split_request(request: InferRequest, cuts: Sequence[int]) -> list[InferRequest]:
    """Return the request as several, split before these ascending rows."""
    return [
        replace(
            request,
            inputs=tuple(Tensor(t.name, t.data[start:stop], t.parameters) for t in request.inputs),
            id=f"{request.id}.{number}",
        )
        for number, (start, stop) in enumerate(pairwise((0, *cuts, request.rows)))
    ]


def join_responses(
    request: InferRequest, cuts: Sequence[int], responses: Sequence[InferResponse]
) -> InferResponse:
    """Return the responses to a split request as one.

    Raises:
        ModelContractError: The responses have different outputs.
    """
    failures: list[RowFailure] = []
    for start, response in zip((0, *cuts), responses, strict=True):
        failures += [replace(failure, row=failure.row + start) for failure in response.failures]
    with_outputs = [response for response in responses if response.outputs]
    names = [tuple(tensor.name for tensor in response.outputs) for response in with_outputs]
    if len(set(names)) > 1:
        raise ModelContractError(
            responses[0].model_name,
            f"its responses to one batch have different outputs: {_listed(names[0])}, then "
            f"{_listed(*set(names) - {names[0]})}",
        )
    outputs = [
        Tensor(name, np.concatenate([response[name] for response in with_outputs]))
        for name in (names[0] if names else ())
    ]
    return replace(responses[0], outputs=tuple(outputs), id=request.id, failures=tuple(failures))


def _listed(*names: tuple[str, ...]) -> str:
    return "; ".join(", ".join(some) or "nothing" for some in names)
