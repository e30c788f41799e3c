"""JSON that is no request yet, as requests: values for a model's one input, or an object of values by input. Pure.

What is meant is told by what the model declares: one row may be written without its brackets, a column flat, and numbers
take the declared datatype.
"""

from collections.abc import Sequence
from typing import Any, cast

from headrace.core.errors import DataError
from headrace.core.tensor import Array, InferRequest, ModelMetadata, Tensor, TensorSpec
from headrace.protocols.tensors import array_from_json


def request_of_json(value: Any, metadata: ModelMetadata) -> InferRequest:
    """The request that a parsed value means. Raises DataError, with what the model takes, for what does not fit it."""
    named = cast("dict[str, Any]", value) if isinstance(value, dict) else {_only_input(metadata): value}
    if not named:
        raise DataError(f"there is no input. {takes(metadata)}")
    arrays = {name: array_of_json(name, data, declared(name, metadata)) for name, data in named.items()}
    return InferRequest(tuple(Tensor(name, array) for name, array in arrays.items()))


def array_of_json(name: str, value: Any, spec: TensorSpec | None) -> Array:
    """An input's values as an array of what the model declares; DataError where they do not fit."""
    values: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    shape, first = _nesting(values)
    return fitted(name, array_from_json(name, datatype_for(spec, first), shape, values), spec)


def _only_input(metadata: ModelMetadata) -> str:
    if len(metadata.inputs) == 1:
        return metadata.inputs[0].name
    if not metadata.inputs:
        raise DataError('the model does not say what it takes: name its inputs, as in {"NAME": values}')
    raise DataError(f'say for which input it is, as in {{"NAME": values}}. {takes(metadata)}')


def declared(name: str, metadata: ModelMetadata) -> TensorSpec | None:
    """What a model says of an input; None where it says nothing of any. DataError where it has no such input."""
    for spec in metadata.inputs:
        if spec.name == name:
            return spec
    if metadata.inputs:
        raise DataError(f"the model has no input {name!r}. {takes(metadata)}")
    return None


def takes(metadata: ModelMetadata) -> str:
    """What a model takes, as a sentence without its full stop."""
    if not metadata.inputs:
        return "The server does not say what its model takes"
    told = (f"{s.name} {s.datatype}{'' if s.shape is None else f' {list(s.shape)}'}" for s in metadata.inputs)
    return f"It takes {', '.join(told)}"


def datatype_for(spec: TensorSpec | None, first: object) -> str:
    """What the model declares; where it declares nothing, what the values are, of which `first` is one."""
    # A Python model that declares nothing is told as FP32 [-1]: text must be able to reach it.
    open_ = spec is None or (spec.shape in (None, (-1,)) and spec.datatype == "FP32")
    if open_ and isinstance(first, str):
        return "BYTES"
    if open_ and isinstance(first, bool):
        return "BOOL"
    if spec is None:
        return "FP32"
    return "FP32" if spec.datatype == "BF16" else spec.datatype


def fitted(name: str, array: Array, spec: TensorSpec | None) -> Array:
    """With the dimensions that the model declares: one row may be written without its brackets, and a column flat."""
    if array.ndim == 0:
        array = array.reshape(1)
    shape = None if spec is None else spec.shape
    # [-1] is told by servers that do not know the shape, too.
    if shape is None or shape == (-1,):
        return array
    for fitting in (array, array[None], array[..., None]):
        if _fits(fitting.shape, shape):
            return fitting
    raise DataError(f"input {name!r} has shape {list(array.shape)}, but the model takes {list(shape)}")


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(w in (-1, s) for s, w in zip(shape, wanted, strict=True))


def _nesting(values: list[Any]) -> tuple[tuple[int, ...], object]:
    """The sizes of nested lists, and the first value in them; whether all are alike is checked by who makes the array."""
    sizes: list[int] = []
    found: Any = values
    while isinstance(found, list):
        inner = cast("list[Any]", found)
        sizes.append(len(inner))
        found = inner[0] if inner else 0.0
    return tuple(sizes), found
