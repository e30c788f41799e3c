"""Outputs of a model's `predict` or `step`: checked arrays by name, one row per input row."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from headrace.core.errors import ModelContractError, ModelInputError
from headrace.core.tensor import Array, InferRequest, TensorSpec, datatype_of, is_number

Outputs = dict[str, Array]

_UNNAMED = "output"


def concatenate(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return all rows of several parts, in new arrays."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class OutputCheck:
    """A converter of what `predict`, or another `method`, returns into `Outputs`.

    Raises ModelContractError for anything else. A single array gets the name of the one declared
    output, or ``output``. A tuple must have as many items as declared outputs. Lists and other
    array-likes become arrays; text arrays hold objects.
    """

    def __init__(self, model: str, specs: Sequence[TensorSpec], method: str = "predict") -> None:
        self._model = model
        self._method = method
        self._names = [s.name for s in specs]

    def __call__(self, returned: Any, rows: int, request: str) -> Outputs:
        """Check the outputs of one call for `rows` rows of the request with the id `request`."""
        if type(returned) is np.ndarray and len(self._names) <= 1:
            array: Array = returned
            # Numeric, with one row per input row: no conversion is needed.
            shape = array.shape
            if shape and shape[0] == rows and is_number(array.dtype):
                return {self._names[0] if self._names else _UNNAMED: array}
        by_name = self._by_name(returned, request)
        outputs = {name: self._array(name, data, rows, request) for name, data in by_name.items()}
        missing = [n for n in self._names if n not in outputs]
        if missing or not outputs:
            missing_names = f"output {', '.join(map(repr, missing))}" if missing else "any output"
            raise self._error(
                f"it returned {', '.join(outputs) or 'an empty mapping'}, without {missing_names}", request
            )
        return outputs

    def joined(self, parts: Sequence[Outputs], request: str) -> Outputs:
        """Join the outputs of one request. Names, types and row shapes must agree."""
        if len(parts) <= 1:
            return dict(parts[0]) if parts else {}
        shapes = [{n: (d.shape[1:], d.dtype.kind) for n, d in p.items()} for p in parts]
        if any(s != shapes[0] for s in shapes):
            other = next(s for s in shapes if s != shapes[0])
            raise self._error(f"its outputs differ from call to call: {shapes[0]}, then {other}", request)
        return concatenate(parts)

    def _by_name(self, returned: Any, request: str) -> Mapping[str, Any]:
        if isinstance(returned, Mapping):
            return {str(name): data for name, data in cast("Mapping[Any, Any]", returned).items()}
        if isinstance(returned, tuple):
            values = cast("tuple[Any, ...]", returned)
            if len(values) != len(self._names):
                raise self._error(
                    f"it returned a tuple of {len(values)}: return a mapping by output name instead", request
                )
            return dict(zip(self._names, values, strict=True))
        if returned is None:
            raise self._error(
                f"it returned None: does every path of {self._method} end with a return?", request
            )
        return {self._names[0] if len(self._names) == 1 else _UNNAMED: returned}

    def _array(self, name: str, data: Any, rows: int, request: str) -> Array:
        try:
            array: Array = np.asarray(data)
            datatype = datatype_of(array.dtype)
        except (TypeError, ValueError) as error:
            raise self._error(f"output {name!r} cannot be converted to an array: {error}", request) from error
        if array.ndim == 0 or len(array) != rows:
            received = "one value" if array.ndim == 0 else f"{len(array)} rows"
            raise self._error(
                f"output {name!r} has {received} for {rows} rows: {self._method} must return one row "
                "for each input row (raise RowError to refuse a row)",
                request,
            )
        # Numpy's own text types pad to the longest; protocols and formats expect objects.
        return array.astype(object) if datatype == "BYTES" and array.dtype.kind != "O" else array

    def _error(self, why: str, request: str) -> ModelContractError:
        return ModelContractError(self._model, f"request {request}: {why}" if request else why)


def select_outputs(outputs: Outputs, request: InferRequest, model: str) -> Outputs:
    """Return the outputs that a request names. Raises ModelInputError for a missing output."""
    missing = [n for n in request.outputs if n not in outputs]
    if missing:
        why = f"it has no output {', '.join(map(repr, missing))} (it has {', '.join(map(repr, outputs))})"
        raise ModelInputError(model, why)
    return {n: outputs[n] for n in request.outputs}
