"""What a model's `predict`, or `step`, returned, as arrays by name with a row for each row; or why it is no such thing."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from headrace.core.errors import ModelContractError, ModelInputError
from headrace.core.tensor import Array, InferRequest, TensorSpec, datatype_of, is_number

Outputs = dict[str, Array]

_UNNAMED = "output"


def together(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """All rows of several parts, in arrays that are nobody else's."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class OutputCheck:
    """Turns what `predict`, or another `method`, returns into `Outputs`; ModelContractError where it keeps no promise.

    A single array gets the name of the one declared output, or ``output``; a tuple is taken where as many outputs
    are declared. Lists and other array-likes become arrays, text arrays hold objects.
    """

    def __init__(self, model: str, specs: Sequence[TensorSpec], method: str = "predict") -> None:
        self._model = model
        self._method = method
        self._names = [s.name for s in specs]

    def __call__(self, returned: Any, rows: int, request: str) -> Outputs:
        """Check what one call returned for `rows` rows of the request that is called `request`."""
        if type(returned) is np.ndarray and len(self._names) <= 1:
            array: Array = returned
            # Numbers of the protocol, with a row for each row: there is nothing to be turned into anything.
            shape = array.shape
            if shape and shape[0] == rows and is_number(array.dtype):
                return {self._names[0] if self._names else _UNNAMED: array}
        named = self._named(returned, request)
        outputs = {name: self._array(name, data, rows, request) for name, data in named.items()}
        missing = [n for n in self._names if n not in outputs]
        if missing or not outputs:
            lacks = f"output {', '.join(map(repr, missing))}" if missing else "any output"
            raise self._error(
                f"it returned {', '.join(outputs) or 'an empty mapping'}, without {lacks}", request
            )
        return outputs

    def joined(self, parts: Sequence[Outputs], request: str) -> Outputs:
        """Parts of one request, one after another. They must agree on names, types and the shape of a row."""
        if len(parts) <= 1:
            return dict(parts[0]) if parts else {}
        shapes = [{n: (d.shape[1:], d.dtype.kind) for n, d in p.items()} for p in parts]
        if any(s != shapes[0] for s in shapes):
            other = next(s for s in shapes if s != shapes[0])
            raise self._error(f"its outputs differ from call to call: {shapes[0]}, then {other}", request)
        return together(parts)

    def _named(self, returned: Any, request: str) -> Mapping[str, Any]:
        if isinstance(returned, Mapping):
            return {str(name): data for name, data in cast("Mapping[Any, Any]", returned).items()}
        if isinstance(returned, tuple):
            several = cast("tuple[Any, ...]", returned)
            if len(several) != len(self._names):
                raise self._error(
                    f"it returned a tuple of {len(several)}: return a mapping by output name instead", request
                )
            return dict(zip(self._names, several, strict=True))
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
            raise self._error(
                f"output {name!r} is no array that can be handed on: {error}", request
            ) from error
        if array.ndim == 0 or len(array) != rows:
            got = "one value" if array.ndim == 0 else f"{len(array)} rows"
            raise self._error(
                f"output {name!r} has {got} for {rows} rows: {self._method} must return a row for each row that it is "
                "given (raise RowError to refuse one)",
                request,
            )
        # Text of numpy's own kinds is padded to the longest; objects are what every protocol and format expects.
        return array.astype(object) if datatype == "BYTES" and array.dtype.kind != "O" else array

    def _error(self, why: str, request: str) -> ModelContractError:
        return ModelContractError(self._model, f"request {request}: {why}" if request else why)


def wanted(outputs: Outputs, request: InferRequest, model: str) -> Outputs:
    """The outputs that a request asks for. Raises ModelInputError for one that is not there."""
    missing = [n for n in request.outputs if n not in outputs]
    if missing:
        why = f"it has no output {', '.join(map(repr, missing))} (it has {', '.join(map(repr, outputs))})"
        raise ModelInputError(model, why)
    return {n: outputs[n] for n in request.outputs}
