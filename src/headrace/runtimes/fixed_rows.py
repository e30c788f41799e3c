"""Batches of any size for a model whose file fixes the number of rows."""

from collections.abc import Callable, Mapping

import numpy as np

from headrace.core.errors import ModelContractError
from headrace.core.tensor import Array


def run_in_fixed_batches(
    run: Callable[[dict[str, Array]], dict[str, Array]], tensors: Mapping[str, Array], size: int, model: str
) -> dict[str, Array]:
    """Call `run` with `size` rows at a time and return the joined outputs.

    The last call is padded with copies of its last row; the padding is cut off again.

    Raises:
        ModelContractError: An output has another number of rows. `model` is the name in the
            message.
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
                shape = list(data.shape)
                why = f"output {name!r} has shape {shape} for {size} rows: its first axis must be rows"
                raise ModelContractError(model, why)
        parts.append({n: d[: size - short] for n, d in outputs.items()})
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
