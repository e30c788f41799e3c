"""The short way for what nearly every body is: a few tensors of numbers, as JSON, and nothing unusual about them.

Everything here gives up, with None, on whatever is not plainly right: then the careful way of `oip_json` and `tensors`
takes the same document, and says what is wrong with it, if anything is. What both ways take, both make the same of.
"""

from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.tensor import Array, InferRequest, InferResponse, Tensor

_DIMENSIONS_MAX: Final = 16
_TENSORS_MAX: Final = 64
_REQUEST_KEYS: Final = frozenset({"id", "inputs"})

_FLOAT32: Final = np.dtype(np.float32)
_FLOAT64: Final = np.dtype(np.float64)
_INT64: Final = np.dtype(np.int64)
_DTYPES: Final[dict[object, np.dtype[Any]]] = {
    "FP32": _FLOAT32,
    "FP64": _FLOAT64,
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": _INT64,
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
}
_DATATYPES: Final = {dtype: cast("str", name) for name, dtype in _DTYPES.items()}
_Json = dict[str, Any]


def quick_request(document: _Json, body: bytes | memoryview) -> InferRequest | None:
    """The request of a body that is a JSON document alone, without parameters and requested outputs; else None."""
    # Where nothing is true or false, no number can be either: numpy would take both for numbers.
    if b"true" in body or b"false" in body or not document.keys() <= _REQUEST_KEYS:
        return None
    entries = document.get("inputs")
    id_ = document.get("id", "")
    if type(entries) is not list or type(id_) is not str:
        return None
    listed = cast("list[Any]", entries)
    if len(listed) == 1:
        tensor = _tensor(listed[0])
        return None if tensor is None else InferRequest((tensor,), id_)
    if not 0 < len(listed) <= _TENSORS_MAX:
        return None
    found: dict[str, Tensor] = {}
    for entry in listed:
        tensor = _tensor(entry)
        if tensor is None or tensor.name in found:
            return None
        found[tensor.name] = tensor
    return InferRequest(tuple(found.values()), id_)


def _tensor(entry: Any) -> Tensor | None:
    try:
        name, dtype, shape, data = entry["name"], _DTYPES[entry["datatype"]], entry["shape"], entry["data"]
    except (KeyError, TypeError):
        return None
    if type(name) is not str or not name or type(data) is not list or type(shape) is not list:
        return None
    sizes = cast("list[Any]", shape)
    if not 0 < len(sizes) <= _DIMENSIONS_MAX or (len(entry) > 4 and entry.get("parameters")):
        return None
    for size in sizes:
        if type(size) is not int or size <= 0:
            return None
    try:
        # The type that numpy finds tells what is in the list: text and null would make it another one.
        found: Array = np.array(cast("Any", data))
        if found.ndim > 1 and found.shape != tuple(sizes):
            return None
        made = found if found.dtype is dtype else _converted(found, dtype)
        return None if made is None else Tensor(name, made.reshape(sizes))
    except (ValueError, OverflowError, FloatingPointError):
        return None


@np.errstate(over="raise")
def _narrowed(found: Array) -> Array:
    return found.astype(_FLOAT32)


def _converted(found: Array, dtype: np.dtype[Any]) -> Array | None:
    """The same numbers in another type; None, or FloatingPointError, where one does not fit."""
    kind = found.dtype
    if dtype is _FLOAT32 or dtype is _FLOAT64:
        if kind is not _FLOAT64:
            if kind is not _INT64:
                return None
            found = found.astype(_FLOAT64)
        return found if dtype is _FLOAT64 else _narrowed(found)
    if kind is not _INT64:
        return None
    made = found.astype(dtype)
    return made if np.array_equal(made, found) else None


def quick_response(response: InferResponse) -> bytes | None:
    """The body of a response whose outputs are all numbers and finite, as JSON; else None."""
    listed: list[_Json] = []
    for tensor in response.outputs:
        data = tensor.data
        datatype = _DATATYPES.get(data.dtype)
        if datatype is None or tensor.parameters:
            return None
        listed.append({"name": tensor.name, "shape": data.shape, "datatype": datatype, "data": data.ravel()})
    document: _Json = {"model_name": response.model_name}
    if response.model_version is not None:
        document["model_version"] = response.model_version
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = dict(response.parameters)
    document["outputs"] = listed
    try:
        text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return None
    # What is not finite is written as null: infinities must be refused.
    return None if b"null" in text else text
