"""Batches of any size for a model whose file fixes how many rows it takes."""

from collections.abc import Callable, Mapping

import numpy as np

from headrace.core.errors import ModelContractError
from headrace.core.tensor import Array


def in_pieces(
    run: Callable[[dict[str, Array]], dict[str, Array]], tensors: Mapping[str, Array], size: int, model: str
) -> dict[str, Array]:
    """Call `run` with `size` rows at a time, the last call filled up with its own last row; outputs joined again.

    Raises ModelContractError, for the model of that name, when an output has another number of rows.
    """
    rows = len(next(iter(tensors.values())))
    parts: list[dict[str, Array]] = []
    for start in range(0, rows, size):
        piece = {n: d[start : start + size] for n, d in tensors.items()}
        short = size - len(next(iter(piece.values())))
        if short:
            piece = {n: np.concatenate([d, np.repeat(d[-1:], short, axis=0)]) for n, d in piece.items()}
        outputs = run(piece)
        for name, data in outputs.items():
            if not data.ndim or len(data) != size:
                why = f"output {name!r} has shape {list(data.shape)} for {size} rows: its first axis must be rows"
                raise ModelContractError(model, why)
        parts.append({n: d[: size - short] for n, d in outputs.items()})
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
