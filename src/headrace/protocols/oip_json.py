"""The Open Inference Protocol (V2) over REST: JSON bodies, with the binary tensor data extension both ways.

Arrives: a body, and the ``Inference-Header-Content-Length`` header where there was one. Leaves: requests, responses,
metadata; and the reverse. Lenient in what it takes (data nested or flat, unknown keys), strict in what it checks:
every malformed body is a `DataError` that names the tensor and what is wrong, before anything is allocated for it.

A binary body is a JSON document whose tensors carry ``parameters.binary_data_size`` in place of ``data``, then their
raw values in the same order.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import orjson

from headrace.core.errors import DataError, ModelContractError, ModelInputError, UnsupportedError
from headrace.core.record import record
from headrace.core.sequence import is_bare_end
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor, TensorSpec
from headrace.protocols.oip_quick import quick_request, quick_response
from headrace.protocols.tensors import (
    Bf16,
    NotTextError,
    array_from_binary,
    array_from_json,
    binary_values,
    checked_datatype,
    checked_shape,
    json_values,
    raw_shape,
)

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
TENSORS_MAX = 1024
"""Tensors in one body."""
ERROR_CHARS_MAX = 2000
"""Of an error's text; the rest of a page of HTML helps nobody."""

_NOTHING_BEHIND: Final = memoryview(b"")
_Json = dict[str, Any]
_NO_WISHES: Final[Mapping[str, bool]] = {}


@record
class WireBody:
    """A body ready to send. `json_bytes` is how much of it is JSON, when binary tensors follow."""

    body: bytes
    json_bytes: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Content type, and the header that binary tensors need."""
        if self.json_bytes is None:
            return {"Content-Type": "application/json"}
        return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(self.json_bytes)}


@record
class WireRequest:
    """A request as it came, and which of its outputs are to be answered as binary data."""

    request: InferRequest
    binary_default: bool
    binary_by_name: Mapping[str, bool]

    def binary(self, output: str) -> bool:
        """Whether this output is to be binary: its own wish, else the request's."""
        return self.binary_by_name.get(output, self.binary_default)


def header_length(value: str | None) -> int | None:
    """The value of the ``Inference-Header-Content-Length`` header; None where there is none."""
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 19):
        raise DataError(f"{HEADER_LENGTH} must be a number of bytes, not {value[:40]!r}")
    return int(value)


# Requests


def encode_request(
    request: InferRequest, *, binary: bool, datatypes: Mapping[str, str] | None = None
) -> WireBody:
    """A request's body.

    Args:
        request: Its deadline does not travel.
        binary: Inputs as binary data, and outputs asked for as such.
        datatypes: What the model declares, by input name; needed for BF16 only, which numpy cannot tell.

    Raises:
        DataError: A value cannot travel so (see `tensors`); the message names tensor and element.
    """
    document: _Json = {"id": request.id} if request.id else {}
    parameters = dict(request.parameters)
    if binary and not request.outputs:
        parameters["binary_data_output"] = True
    if parameters:
        document["parameters"] = parameters
    if request.outputs:
        wish = {"parameters": {"binary_data": True}} if binary else {}
        document["outputs"] = [{"name": name, **wish} for name in request.outputs]
    return _encode(document, "inputs", request.inputs, lambda _: binary, datatypes or {})


def decode_request(body: bytes, json_bytes: int | None = None, *, bf16: Bf16 = "bits") -> WireRequest:
    """A request from its body.

    Raises DataError, which says what is wrong with it, and UnsupportedError for shared memory and classification.
    `json_bytes` is the header's value. 0 (a raw tensor without any JSON) is refused: it needs the model's metadata, so it
    is for `decode_raw_request`.
    """
    document, rest = _parted(body, json_bytes)
    if json_bytes is None and (quick := quick_request(document, body)) is not None:
        return WireRequest(quick, binary_default=False, binary_by_name=_NO_WISHES)
    for entry in _objects(document, "inputs"):
        if "parameters" in entry:
            _check_offered(_parameters(entry, "an input"), "an input")
    inputs = _tensors(document, "inputs", rest, bf16)
    parameters = _parameters(document, "the request")
    if not inputs and not is_bare_end(parameters):
        raise DataError("a request needs at least one tensor in 'inputs'")
    default = _wish(parameters.pop("binary_data_output", False), "binary_data_output")
    names, wishes = _requested_outputs(document)
    request = InferRequest(inputs, _text(document, "id"), names, parameters)
    return WireRequest(request, default, wishes)


def decode_raw_request(body: bytes, metadata: ModelMetadata, *, bf16: Bf16 = "bits") -> WireRequest:
    """The request of a body that is nothing but the values of the model's one input; every output is to be binary.

    The size of the body tells the number of rows; where one other size of the input varies it tells that one, of one row.
    A BYTES input gets the whole body as its one element. Raises DataError for a body that does not fit, ModelInputError
    for a model of which the shape cannot be told so.
    """
    if len(metadata.inputs) != 1:
        why = (
            f"a raw request is for models of one input, and it has {len(metadata.inputs)}: send the JSON too"
        )
        raise ModelInputError(metadata.name, why)
    spec = metadata.inputs[0]
    if spec.shape is None:
        why = f"the shape of input {spec.name!r} is not known, which a raw request needs: send the JSON too"
        raise ModelInputError(metadata.name, why)
    shape = raw_shape(spec.name, spec.datatype, spec.shape, len(body))
    if spec.datatype == "BYTES":
        body = len(body).to_bytes(4, "little") + body
    array = array_from_binary(spec.name, spec.datatype, shape, memoryview(body), bf16=bf16)
    return WireRequest(
        InferRequest((Tensor(spec.name, array),)), binary_default=True, binary_by_name=_NO_WISHES
    )


def _requested_outputs(document: _Json) -> tuple[tuple[str, ...], dict[str, bool]]:
    names: list[str] = []
    wishes: dict[str, bool] = {}
    for asked in _objects(document, "outputs"):
        name = _name(asked, "outputs")
        if name in names:
            raise DataError(f"output {name!r} is asked for twice")
        names.append(name)
        parameters = _parameters(asked, f"output {name!r}")
        _check_offered(parameters, f"output {name!r}")
        if "binary_data" in parameters:
            wishes[name] = _wish(parameters["binary_data"], "binary_data")
    return tuple(names), wishes


# Responses


def encode_response(
    response: InferResponse,
    *,
    binary: Callable[[str], bool] | bool = False,
    datatypes: Mapping[str, str] | None = None,
) -> WireBody:
    """A response's body; `binary` says which outputs travel as binary data.

    Raises DataError for values that cannot travel in the form that is asked for, ModelContractError for what is no value of the
    protocol at all, and ValueError when rows failed: the protocol cannot say so, and leaving them out would shift the others.
    """
    if response.failures:
        raise ValueError(f"{len(response.failures)} rows failed, which a V2 response cannot say")
    if not datatypes and binary is False and (quick := quick_response(response)) is not None:
        return WireBody(quick)
    document: _Json = {"model_name": response.model_name}
    if response.model_version is not None:
        document["model_version"] = response.model_version
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = dict(response.parameters)

    def chosen(output: str) -> bool:
        return binary(output) if callable(binary) else binary

    try:
        return _encode(document, "outputs", response.outputs, chosen, datatypes or {})
    except NotTextError as error:
        raise ModelContractError(response.model_name, str(error)) from error


def decode_response(body: bytes, json_bytes: int | None = None, *, bf16: Bf16 = "bits") -> InferResponse:
    """A response from its body, JSON or binary; DataError says what is wrong with it.

    Takes the NaN and Infinity that some servers write into JSON.
    """
    document, rest = _parted(body, json_bytes, lenient=True)
    if "outputs" not in document:
        raise DataError(
            f"a response has 'outputs', but this has only {', '.join(map(repr, document)) or 'nothing'}"
        )
    version = document.get("model_version")
    return InferResponse(
        _tensors(document, "outputs", rest, bf16),
        model_name=_text(document, "model_name"),
        model_version=None if version is None else str(version),
        id=_text(document, "id"),
        parameters=_parameters(document, "the response"),
    )


# Metadata and errors


def encode_metadata(metadata: ModelMetadata) -> bytes:
    """A model's metadata document."""
    document: _Json = {"name": metadata.name, "platform": metadata.platform}
    if metadata.version is not None:
        document["versions"] = [metadata.version]
    for key, specs in (("inputs", metadata.inputs), ("outputs", metadata.outputs)):
        document[key] = [
            {"name": s.name, "datatype": s.datatype, "shape": list(s.shape or (-1,))} for s in specs
        ]
    return orjson.dumps(document)


def decode_metadata(body: bytes) -> ModelMetadata:
    """A model's metadata: name, last version, platform, and what is said of its inputs and outputs.

    A tensor whose shape is not told has None. BF16 is told as it is. Raises DataError.
    """
    document = _document(body)
    versions = document.get("versions")
    listed = cast("list[object]", versions) if isinstance(versions, list) else []
    return ModelMetadata(
        name=_text(document, "name"),
        version=str(listed[-1]) if listed else None,
        platform=_text(document, "platform"),
        inputs=tuple(_spec(t, "inputs") for t in _objects(document, "inputs")),
        outputs=tuple(_spec(t, "outputs") for t in _objects(document, "outputs")),
    )


def _spec(tensor: _Json, where: str) -> TensorSpec:
    name = _name(tensor, where)
    datatype = checked_datatype(name, tensor.get("datatype"))
    shape = tensor.get("shape")
    if not isinstance(shape, list):
        return TensorSpec(name, datatype)
    try:
        # Some gateways write 64-bit integers as strings.
        sizes = tuple(int(size) for size in cast("list[Any]", shape))
    except (TypeError, ValueError):
        raise DataError(f"tensor {name!r}: its shape must be a list of sizes") from None
    return TensorSpec(name, datatype, tuple(max(size, -1) for size in sizes))


def encode_error(why: str, kind: str = "") -> bytes:
    """An error's body; `kind` is a word for programs, where the status alone does not tell."""
    told = {"kind": kind} if kind else {}
    try:
        return orjson.dumps({"error": why, **told})
    except TypeError:  # lone surrogates, which a model's own message may have
        return orjson.dumps({"error": why.encode(errors="replace").decode(), **told})


def decode_error_kind(body: bytes) -> str:
    """The word by which an error's body tells its kind; empty where it has none."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    kind = cast("_Json", found).get("kind") if isinstance(found, dict) else None
    return kind if isinstance(kind, str) else ""


def decode_error(body: bytes) -> str:
    """What an error's body says, whatever its form: ``error``, FastAPI's ``detail``, ``message``, or plain text.

    At most ERROR_CHARS_MAX characters in one line; empty when the body is.
    """
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _one_line(body[: 4 * ERROR_CHARS_MAX].decode(errors="replace"))
    if isinstance(found, dict):
        document = cast("_Json", found)
        found = next((document[k] for k in ("error", "detail", "message") if document.get(k)), document)
    try:
        return _one_line(found if isinstance(found, str) else orjson.dumps(found).decode())
    except TypeError:  # nested deeper than can be written
        return _one_line(body[: 4 * ERROR_CHARS_MAX].decode(errors="replace"))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:ERROR_CHARS_MAX]


# Both ways


def _encode(
    document: _Json,
    key: str,
    tensors: Sequence[Tensor],
    binary: Callable[[str], bool],
    datatypes: Mapping[str, str],
) -> WireBody:
    buffers: list[bytes | memoryview] = []
    listed: list[_Json] = []
    for tensor in tensors:
        datatype = tensor.datatype
        if datatypes.get(tensor.name) == "BF16" and tensor.data.dtype.name in ("uint16", "float32"):
            datatype = "BF16"
        entry: _Json = {"name": tensor.name, "shape": list(tensor.data.shape), "datatype": datatype}
        if tensor.parameters:
            entry["parameters"] = dict(tensor.parameters)
        if binary(tensor.name):
            values = binary_values(tensor.name, datatype, tensor.data)
            buffers.append(values if isinstance(values, bytes) else values.data)
            size = len(values) if isinstance(values, bytes) else values.nbytes
            entry["parameters"] = {**tensor.parameters, "binary_data_size": size}
        else:
            entry["data"] = json_values(tensor.name, datatype, tensor.data)
        listed.append(entry)
    try:
        text = orjson.dumps({**document, key: listed}, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise NotTextError(f"this cannot be written as JSON: {error}") from error
    return WireBody(b"".join((text, *buffers)), len(text)) if buffers else WireBody(text)


def _parted(body: bytes, json_bytes: int | None, *, lenient: bool = False) -> tuple[_Json, memoryview]:
    """The JSON document, and what follows it."""
    if json_bytes is None:
        return _document(body, lenient=lenient), _NOTHING_BEHIND
    if json_bytes == 0:
        raise DataError(f"{HEADER_LENGTH} 0 (a raw tensor without JSON) is not taken: send the JSON too")
    if json_bytes > len(body):
        raise DataError(f"{HEADER_LENGTH} is {json_bytes}, but the body has only {len(body)} bytes")
    whole = memoryview(body)
    return _document(whole[:json_bytes], lenient=lenient), whole[json_bytes:]


def _document(text: bytes | memoryview, *, lenient: bool = False) -> _Json:
    try:
        found: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        found = _lenient(text) if lenient else None
        if found is None:
            raise DataError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"the body must be a JSON object, not {type(found).__name__}")
    return cast("_Json", found)


def _lenient(text: bytes | memoryview) -> Any:
    """JSON with the literals NaN and Infinity, as Python's own encoder writes them; None when it is not that."""
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError):
        return None


def _tensors(document: _Json, key: str, rest: memoryview, bf16: Bf16) -> tuple[Tensor, ...]:
    """The tensors of a body; all bytes behind the JSON must be some tensor's."""
    found: dict[str, Tensor] = {}
    at = 0
    for entry in _objects(document, key):
        name = _name(entry, key)
        if name in found:
            raise DataError(f"tensor {name!r} is in {key!r} twice")
        datatype = checked_datatype(name, entry.get("datatype"))
        shape = checked_shape(name, entry.get("shape"))
        parameters = _parameters(entry, f"tensor {name!r}")
        size = _binary_size(entry, name, parameters.pop("binary_data_size", None))
        if size is None:
            array = array_from_json(name, datatype, shape, entry["data"])
        else:
            if size > len(rest) - at:
                raise DataError(
                    f"tensor {name!r}: its binary_data_size is {size}, but only {len(rest) - at} bytes are left"
                )
            array = array_from_binary(name, datatype, shape, rest[at : at + size], bf16=bf16)
            at += size
        found[name] = Tensor(name, array, parameters)
    if at != len(rest):
        raise DataError(f"{len(rest) - at} bytes follow the last tensor")
    return tuple(found.values())


def _binary_size(entry: _Json, name: str, size: Any) -> int | None:
    """Bytes of binary data; None when the values are JSON. Exactly one of both must be there."""
    if (size is None) == (entry.get("data") is None):
        both = "neither" if size is None else "both"
        raise DataError(f"tensor {name!r} needs either 'data' or 'binary_data_size', but has {both}")
    if size is not None and (type(size) is not int or size < 0):
        raise DataError(f"tensor {name!r}: binary_data_size must be a number of bytes, not {size!r:.40}")
    return size


def _check_offered(parameters: _Json, what: str) -> None:
    """Refuse what Triton's clients may ask of a tensor, and what would quietly be something else if it were passed over."""
    if "shared_memory_region" in parameters:
        raise UnsupportedError(
            f"{what}: shared memory is not offered: send the tensors in the request, as binary data"
        )
    if "classification" in parameters:
        raise UnsupportedError(f"{what}: classification is not offered: ask for the scores and sort them")


def _objects(document: _Json, key: str) -> Iterable[_Json]:
    listed = document.get(key)
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(isinstance(o, dict) for o in cast("list[object]", listed)):
        raise DataError(f"{key!r} must be a list of objects")
    objects = cast("list[_Json]", listed)
    if len(objects) > TENSORS_MAX:
        raise DataError(f"{key!r} has {len(objects)} tensors; at most {TENSORS_MAX} are taken")
    return objects


def _name(entry: _Json, where: str) -> str:
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise DataError(f"a tensor in {where!r} has no name")
    return name


def _text(document: _Json, key: str) -> str:
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{key!r} must be a string, not {type(value).__name__}")
    return value


def _parameters(holder: _Json, what: str) -> _Json:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise DataError(f"'parameters' of {what} must be an object, not {type(parameters).__name__}")
    return dict(cast("_Json", parameters))


def _wish(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise DataError(f"{key!r} must be true or false, not {value!r:.40}")
    return value
