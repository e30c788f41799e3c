"""Inputs of served requests as the model takes them: the type of text, and the row axis."""

from dataclasses import replace
from typing import Any

from headrace.core.errors import ModelInputError
from headrace.core.model import BytesAs
from headrace.core.tensor import Array, InferRequest, ModelMetadata, Tensor, text_array


def convert_inputs(request: InferRequest, metadata: ModelMetadata, *, as_rows: bool) -> InferRequest:
    """Return the request with BYTES elements as the model takes them.

    Text arrives as str from JSON and as bytes elsewhere. With `as_rows`, tensors without axes become
    one row. Raises ModelInputError for invalid UTF-8.
    """
    for tensor in request.inputs:
        data = tensor.data
        if data.dtype.char == "O" or not data.ndim:
            break
    else:
        # Nearly every request ends here. On the hot path, a loop and `char` (not `kind`) are fast.
        return request
    if as_rows:
        request = request.with_row_axes()
    bytes_as = metadata.bytes_as
    if bytes_as == "sent":
        return request
    inputs = tuple(
        _tensor(t, bytes_as, metadata.name) if t.data.dtype.kind == "O" else t for t in request.inputs
    )
    return replace(request, inputs=inputs)


def _tensor(tensor: Tensor, bytes_as: BytesAs, model: str) -> Tensor:
    values: list[Any] = tensor.data.ravel().tolist()
    element_type = str if bytes_as == "str" else bytes
    if set(map(type, values)) <= {element_type}:
        return tensor
    converted = [_element(tensor.name, i, v, element_type, model) for i, v in enumerate(values)]
    data: Array = text_array(converted).reshape(tensor.data.shape)
    return replace(tensor, data=data)


def _element(name: str, index: int, value: Any, element_type: type, model: str) -> Any:
    if isinstance(value, bytes) and element_type is str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            why = f"input {name!r} takes text, but element {index} is not UTF-8 (byte {error.start})"
            raise ModelInputError(model, why) from None
    return value.encode() if isinstance(value, str) and element_type is bytes else value
