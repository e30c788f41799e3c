"""Plain JSON values to requests: one input's values, or an object of values by input. Pure.

The model's metadata decides how values are read. One row may be written without its brackets, a
column may be flat, and numbers take the declared datatype.
"""

from collections.abc import Sequence
from typing import Any, cast

from headrace.core.errors import DataError
from headrace.core.tensor import Array, InferRequest, ModelMetadata, Tensor, TensorSpec
from headrace.protocols.tensors import array_from_json


def request_from_json(value: Any, metadata: ModelMetadata) -> InferRequest:
    """Return the request of a parsed value.

    Raises DataError, with the model's inputs, for a value that does not fit.
    """
    named = cast("dict[str, Any]", value) if isinstance(value, dict) else {_only_input(metadata): value}
    if not named:
        raise DataError(f"the request has no input. {describe_inputs(metadata)}")
    arrays = {
        name: input_from_json(name, data, find_input_spec(name, metadata)) for name, data in named.items()
    }
    return InferRequest(tuple(Tensor(name, array) for name, array in arrays.items()))


def input_from_json(name: str, value: Any, spec: TensorSpec | None) -> Array:
    """Return the values of an input as an array of the declared datatype and shape.

    Raises DataError if they do not fit.
    """
    values: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    shape, first = _nesting(values)
    return fit_to_spec(name, array_from_json(name, datatype_for(spec, first), shape, values), spec)


def _only_input(metadata: ModelMetadata) -> str:
    if len(metadata.inputs) == 1:
        return metadata.inputs[0].name
    if not metadata.inputs:
        raise DataError('the model does not declare its inputs: name them, as in {"NAME": values}')
    raise DataError(f'name the input, as in {{"NAME": values}}. {describe_inputs(metadata)}')


def find_input_spec(name: str, metadata: ModelMetadata) -> TensorSpec | None:
    """Return the spec of an input, or None if the model declares no inputs.

    Raises DataError for an unknown input.
    """
    for spec in metadata.inputs:
        if spec.name == name:
            return spec
    if metadata.inputs:
        raise DataError(f"the model has no input {name!r}. {describe_inputs(metadata)}")
    return None


def describe_inputs(metadata: ModelMetadata) -> str:
    """Return the model's inputs as a sentence without its full stop."""
    if not metadata.inputs:
        return "The server does not declare the model's inputs"
    described = (
        f"{s.name} {s.datatype}{'' if s.shape is None else f' {list(s.shape)}'}" for s in metadata.inputs
    )
    return f"It takes {', '.join(described)}"


def datatype_for(spec: TensorSpec | None, first: object) -> str:
    """Return the declared datatype, or, for an undeclared input, the datatype of its values.

    `first` is one of them.
    """
    # Servers report FP32 [-1] for a Python model without declared inputs. Text must be able to
    # reach such a model.
    undeclared = spec is None or (spec.shape in (None, (-1,)) and spec.datatype == "FP32")
    if undeclared and isinstance(first, str):
        return "BYTES"
    if undeclared and isinstance(first, bool):
        return "BOOL"
    if spec is None:
        return "FP32"
    return "FP32" if spec.datatype == "BF16" else spec.datatype


def fit_to_spec(name: str, array: Array, spec: TensorSpec | None) -> Array:
    """Return the array with the declared dimensions.

    A row may lack its brackets, and a column may be flat.
    """
    if array.ndim == 0:
        array = array.reshape(1)
    shape = None if spec is None else spec.shape
    # Servers that do not know the shape also report [-1].
    if shape is None or shape == (-1,):
        return array
    for candidate in (array, array[None], array[..., None]):
        if _fits(candidate.shape, shape):
            return candidate
    raise DataError(f"input {name!r} has shape {list(array.shape)}, but the model takes {list(shape)}")


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(w in (-1, s) for s, w in zip(shape, wanted, strict=True))


def _nesting(values: list[Any]) -> tuple[tuple[int, ...], object]:
    """Return the sizes of nested lists and the first value in them.

    `array_from_json` checks that all lists are alike.
    """
    sizes: list[int] = []
    found: Any = values
    while isinstance(found, list):
        inner = cast("list[Any]", found)
        sizes.append(len(inner))
        found = inner[0] if inner else 0.0
    return tuple(sizes), found
