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

_FLOAT32: Final = np.dtype(np.float32)
_FLOAT64: Final = np.dtype(np.float64)
_INT64: Final = np.dtype(np.int64)
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
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
# By numpy's own numbers, which are found sooner than dtypes are hashed. What has another byte order has the same number.
_DATATYPES: Final = {dtype.num: cast("str", name) for name, dtype in _DTYPES.items()}
_TEXT: Final = frozenset({str})
_DATATYPES[np.dtype(object).num] = "BYTES"
_Json = dict[str, Any]


def quick_request(document: _Json, body: bytes) -> InferRequest | None:
    """The request of a body that is a JSON document alone, without parameters and requested outputs; else None."""
    # Where nothing is true or false, no number can be either: numpy would take both for numbers.
    # One letter is found much sooner than a word, and nearly always there is no such word: "inputs" has a u.
    if (body.count(b"u") > 1 and b"true" in body) or (b"l" in body and b"false" in body):
        return None
    entries, id_ = document.get("inputs"), ""
    if len(document) > 1:
        id_ = document.get("id")
        if len(document) > 2 or type(id_) is not str:
            return None
    if type(entries) is not list:
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
    parameters = entry.get("parameters")
    if not 0 < len(sizes) <= _DIMENSIONS_MAX or (parameters is not None and _matter(parameters)):
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
        return None if made is None else Tensor(name, made.reshape(sizes), parameters or {})
    except (ValueError, OverflowError):
        return None


def _matter(parameters: Any) -> bool:
    """Whether a tensor's parameters say where its values are, or are wrong."""
    return type(parameters) is not dict or "binary_data_size" in parameters


def _converted(found: Array, dtype: np.dtype[Any]) -> Array | None:
    """The same numbers in another type; None where one does not fit, or may not."""
    kind = found.dtype
    if dtype is _FLOAT32 or dtype is _FLOAT64:
        if kind is not _FLOAT64:
            if kind is not _INT64:
                return None
            found = found.astype(_FLOAT64)
        if dtype is _FLOAT64:
            return found
        # Where they are is found much sooner than what they are.
        flat = found if found.ndim == 1 else found.ravel()
        if flat[flat.argmax()] > _FLOAT32_MAX or flat[flat.argmin()] < -_FLOAT32_MAX:
            return None
        return found.astype(_FLOAT32)
    if kind is not _INT64:
        return None
    made = found.astype(dtype)
    return made if np.array_equal(made, found) else None


def quick_response(response: InferResponse) -> bytes | None:
    """The body of a response whose outputs are all finite numbers or text, as JSON; else None."""
    listed: list[_Json] = []
    for tensor in response.outputs:
        data = tensor.data
        dtype = data.dtype
        datatype = _DATATYPES.get(dtype.num)
        if datatype is None or not dtype.isnative or tensor.parameters:
            return None
        values: Any = data.ravel()
        if datatype == "BYTES":
            values = values.tolist()
            if not _TEXT.issuperset(map(type, values)):
                return None
        listed.append({"name": tensor.name, "shape": data.shape, "datatype": datatype, "data": values})
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
    # What is not finite is written as null: infinities must be refused. Text may have the word too.
    return None if b"null" in text else text
