"""What the elements of BYTES inputs are: the protocol sends text as str in JSON and as bytes elsewhere, a model has one of them."""

from dataclasses import replace
from typing import Any

from headrace.core.errors import ModelInputError
from headrace.core.model import BytesAs
from headrace.core.tensor import Array, InferRequest, Tensor, text_array


def with_texts(request: InferRequest, bytes_as: BytesAs, model: str) -> InferRequest:
    """The request with BYTES elements as the model wants them. ModelInputError for bytes that are no UTF-8."""
    for tensor in request.inputs:
        if tensor.data.dtype.kind == "O":
            break
    else:
        # Nearly always: a loop, since this is on the way of every request.
        return request
    if bytes_as == "sent":
        return request
    inputs = tuple(_tensor(t, bytes_as, model) if t.data.dtype.kind == "O" else t for t in request.inputs)
    return replace(request, inputs=inputs)


def _tensor(tensor: Tensor, bytes_as: BytesAs, model: str) -> Tensor:
    values: list[Any] = tensor.data.ravel().tolist()
    wanted = str if bytes_as == "str" else bytes
    if set(map(type, values)) <= {wanted}:
        return tensor
    made = [_element(tensor.name, i, v, wanted, model) for i, v in enumerate(values)]
    data: Array = text_array(made).reshape(tensor.data.shape)
    return replace(tensor, data=data)


def _element(name: str, index: int, value: Any, wanted: type, model: str) -> Any:
    if isinstance(value, bytes) and wanted is str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            why = f"input {name!r} takes text, but element {index} is not UTF-8 (byte {error.start})"
            raise ModelInputError(model, why) from None
    return value.encode() if isinstance(value, str) and wanted is bytes else value
