"""Requests of a batch whose rows are steps of sequences: one, or where one is not enough several, and their answers as one. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from headrace.core.errors import ModelContractError
from headrace.core.tensor import InferRequest, InferResponse, RowFailure, Tensor


def ending(id: str) -> InferRequest:
    """The request that ends a sequence without a step."""
    return InferRequest((), id=f"end-{id}", parameters={"sequence_id": id, "sequence_end": True})


def parted(request: InferRequest, cuts: Sequence[int]) -> list[InferRequest]:
    """The request as several, cut before these rows, which ascend."""
    return [
        replace(
            request,
            inputs=tuple(Tensor(t.name, t.data[start:stop], t.parameters) for t in request.inputs),
            id=f"{request.id}.{number}",
        )
        for number, (start, stop) in enumerate(pairwise((0, *cuts, request.rows)))
    ]


def joined(request: InferRequest, cuts: Sequence[int], answers: Sequence[InferResponse]) -> InferResponse:
    """The answers to these, as one to the request. Raises ModelContractError when they have different outputs."""
    failures: list[RowFailure] = []
    for start, answer in zip((0, *cuts), answers, strict=True):
        failures += [replace(failure, row=failure.row + start) for failure in answer.failures]
    given = [answer for answer in answers if answer.outputs]
    names = [tuple(tensor.name for tensor in answer.outputs) for answer in given]
    if len(set(names)) > 1:
        raise ModelContractError(
            answers[0].model_name,
            f"it gave {_listed(names[0])} once, and once something else: {_listed(*set(names) - {names[0]})}",
        )
    outputs = [
        Tensor(name, np.concatenate([answer[name] for answer in given]))
        for name in (names[0] if names else ())
    ]
    return replace(answers[0], outputs=tuple(outputs), id=request.id, failures=tuple(failures))


def _listed(*names: tuple[str, ...]) -> str:
    return "; ".join(", ".join(some) or "nothing" for some in names)
