"""Fast path of `oip_json` for nearly every body: a few tensors of numbers as JSON.

Each function returns None for any document that is not plainly valid. The general path of
`oip_json` and `tensors` then decodes the same document, and reports its defects. Both paths give
equal results for every body that both accept.
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
# Keyed by numpy's type numbers, which are looked up faster than dtypes. Byte order does not change
# the number.
_DATATYPES: Final = {dtype.num: cast("str", name) for name, dtype in _DTYPES.items()}
_TEXT: Final = frozenset({str})
_DATATYPES[np.dtype(object).num] = "BYTES"
_Json = dict[str, Any]


def fast_decode_request(document: _Json, body: bytes) -> InferRequest | None:
    """Return the request of a JSON document without parameters and requested outputs, else None."""
    # numpy would take booleans for numbers, so a body with true or false takes the general path.
    # Searching one character is much faster than a word, and usually settles it: "inputs" has the
    # only u.
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
    if not 0 < len(sizes) <= _DIMENSIONS_MAX or (parameters is not None and _affects_values(parameters)):
        return None
    for size in sizes:
        if type(size) is not int or size <= 0:
            return None
    try:
        # numpy's choice of dtype reveals the contents of the list: text or null would give another
        # dtype.
        found: Array = np.array(cast("Any", data))
        if found.ndim > 1 and found.shape != tuple(sizes):
            return None
        made = found if found.dtype is dtype else _convert(found, dtype)
        return None if made is None else Tensor(name, made.reshape(sizes), parameters or {})
    except (ValueError, OverflowError):
        return None


def _affects_values(parameters: Any) -> bool:
    """Return True if a tensor's parameters describe its values, or are malformed."""
    return type(parameters) is not dict or "binary_data_size" in parameters


def _convert(found: Array, dtype: np.dtype[Any]) -> Array | None:
    """Return the same numbers in another dtype, or None if a number does not fit."""
    kind = found.dtype
    if dtype is _FLOAT32 or dtype is _FLOAT64:
        if kind is not _FLOAT64:
            if kind is not _INT64:
                return None
            found = found.astype(_FLOAT64)
        if dtype is _FLOAT64:
            return found
        # argmax and argmin are much faster than max and min.
        flat = found if found.ndim == 1 else found.ravel()
        if flat[flat.argmax()] > _FLOAT32_MAX or flat[flat.argmin()] < -_FLOAT32_MAX:
            return None
        return found.astype(_FLOAT32)
    if kind is not _INT64:
        return None
    made = found.astype(dtype)
    return made if np.array_equal(made, found) else None


def fast_encode_response(response: InferResponse) -> bytes | None:
    """Return the body of a response whose outputs are finite numbers or text, else None."""
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
    # orjson writes infinities and NaN as null, and infinities must be refused. A text with the word
    # null also gives None.
    return None if b"null" in text else text
