"""The Open Inference Protocol (V2) over REST: JSON bodies, and binary tensor data both ways.

A server decodes a body (and its ``Inference-Header-Content-Length`` header) to a request, and
encodes responses and metadata. A client does the reverse. Decoding accepts nested or flat data and
unknown keys. Every malformed body is a `DataError` that names the tensor and the defect, raised
before memory is allocated for the tensor.

A binary body is a JSON document whose tensors have ``parameters.binary_data_size`` in place of
``data``, followed by the raw values of these tensors in the same order.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import orjson

from headrace.core.errors import DataError, ModelContractError, ModelInputError, UnsupportedError
from headrace.core.sequence import may_omit_inputs
from headrace.core.tensor import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    Tensor,
    TensorSpec,
    statically_frozen,
)
from headrace.protocols.oip_json_fast import fast_decode_request, fast_encode_response
from headrace.protocols.tensors import (
    Bf16,
    TensorEncodingError,
    array_from_binary,
    array_from_json,
    binary_values,
    infer_raw_shape,
    json_values,
    validate_datatype,
    validate_shape,
)

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
TENSORS_MAX = 1024
"""Limit of the tensors in one body."""
ERROR_CHARS_MAX = 2000
"""Limit of the characters of an error's text. An HTML page is longer."""

_NO_BINARY_DATA: Final = memoryview(b"")
_Json = dict[str, Any]
_NO_BINARY_CHOICES: Final[Mapping[str, bool]] = {}


@statically_frozen
class WireBody:
    """A body ready to send.

    `json_bytes` is the length of its JSON part if binary tensors follow, else None.
    """

    body: bytes
    json_bytes: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The content type, and the header that binary tensors need."""
        if self.json_bytes is None:
            return {"Content-Type": "application/json"}
        return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(self.json_bytes)}


@statically_frozen
class JsonWireRequest:
    """A decoded request, and the choice of outputs that the response must carry as binary data."""

    request: InferRequest
    binary_default: bool
    binary_by_name: Mapping[str, bool]

    def binary(self, output: str) -> bool:
        """Return True if this output must be binary: its own parameter, else the request's default."""
        return self.binary_by_name.get(output, self.binary_default)


def parse_header_length(value: str | None) -> int | None:
    """Return the number in an ``Inference-Header-Content-Length`` header, None without the header."""
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 19):
        raise DataError(f"{HEADER_LENGTH} must be a number of bytes, not {value[:40]!r}")
    return int(value)


# Requests


def encode_request(
    request: InferRequest, *, binary: bool, datatypes: Mapping[str, str] | None = None
) -> WireBody:
    """Return the body of a request.

    Args:
        request: The request. Its deadline is not sent.
        binary: Send inputs as binary data, and request binary outputs.
        datatypes: The datatypes that the model declares, by input name. Only BF16 needs it: numpy
            has no such type.

    Raises:
        DataError: A value cannot be encoded (see `tensors`); the message names tensor and element.
    """
    document: _Json = {"id": request.id} if request.id else {}
    parameters = dict(request.parameters)
    if binary and not request.outputs:
        parameters["binary_data_output"] = True
    if parameters:
        document["parameters"] = parameters
    if request.outputs:
        choice = {"parameters": {"binary_data": True}} if binary else {}
        document["outputs"] = [{"name": name, **choice} for name in request.outputs]
    return _encode(document, "inputs", request.inputs, lambda _: binary, datatypes or {})


def decode_request(body: bytes, json_bytes: int | None = None, *, bf16: Bf16 = "bits") -> JsonWireRequest:
    """Return the request of a body.

    `json_bytes` is the value of the header. 0 (a raw tensor without JSON) is refused:
    `decode_raw_request` decodes such bodies, with the model's metadata.

    Raises:
        DataError: The body is malformed; the message says how.
        UnsupportedError: The request needs shared memory or classification.
    """
    document, rest = _split_body(body, json_bytes)
    if json_bytes is None and (quick := fast_decode_request(document, body)) is not None:
        return JsonWireRequest(quick, binary_default=False, binary_by_name=_NO_BINARY_CHOICES)
    for entry in _objects(document, "inputs"):
        if "parameters" in entry:
            _check_supported(_parameters(entry, "an input"), "an input")
    inputs = _tensors(document, "inputs", rest, bf16)
    parameters = _parameters(document, "the request")
    if not inputs and not may_omit_inputs(parameters):
        raise DataError("a request needs at least one tensor in 'inputs'")
    default = _boolean(parameters.pop("binary_data_output", False), "binary_data_output")
    names, choices = _requested_outputs(document)
    request = InferRequest(inputs, _text(document, "id"), names, parameters)
    return JsonWireRequest(request, default, choices)


def decode_raw_request(body: bytes, metadata: ModelMetadata, *, bf16: Bf16 = "bits") -> JsonWireRequest:
    """Return the request of a body that holds only the values of the model's one input.

    Every output will be binary.

    The size of the body gives the number of rows. If another size of the input is variable, the
    body is one row and its size gives the variable size. A BYTES input takes the whole body as its
    one element.

    Raises:
        DataError: The body does not fit the input.
        ModelInputError: The model has several inputs, or an input of unknown shape.
    """
    if len(metadata.inputs) != 1:
        why = f"a raw request needs a model with one input, but it has {len(metadata.inputs)}: send JSON too"
        raise ModelInputError(metadata.name, why)
    spec = metadata.inputs[0]
    if spec.shape is None:
        why = f"a raw request needs the shape of input {spec.name!r}, which is not known: send JSON too"
        raise ModelInputError(metadata.name, why)
    shape = infer_raw_shape(spec.name, spec.datatype, spec.shape, len(body))
    if spec.datatype == "BYTES":
        body = len(body).to_bytes(4, "little") + body
    array = array_from_binary(spec.name, spec.datatype, shape, memoryview(body), bf16=bf16)
    return JsonWireRequest(
        InferRequest((Tensor(spec.name, array),)), binary_default=True, binary_by_name=_NO_BINARY_CHOICES
    )


def _requested_outputs(document: _Json) -> tuple[tuple[str, ...], dict[str, bool]]:
    names: list[str] = []
    choices: dict[str, bool] = {}
    for requested in _objects(document, "outputs"):
        name = _name(requested, "outputs")
        if name in names:
            raise DataError(f"output {name!r} is requested twice")
        names.append(name)
        parameters = _parameters(requested, f"output {name!r}")
        _check_supported(parameters, f"output {name!r}")
        if "binary_data" in parameters:
            choices[name] = _boolean(parameters["binary_data"], "binary_data")
    return tuple(names), choices


# Responses


def encode_response(
    response: InferResponse,
    *,
    binary: Callable[[str], bool] | bool = False,
    datatypes: Mapping[str, str] | None = None,
) -> WireBody:
    """Return the body of a response. `binary` selects the outputs that are sent as binary data.

    Raises:
        DataError: A value cannot be encoded in the selected form.
        ModelContractError: A value is not a value of the protocol.
        ValueError: Rows failed. The protocol cannot express that, and omitting them would shift the
            others.
    """
    if response.failures:
        raise ValueError(f"{len(response.failures)} rows failed, which a V2 response cannot express")
    if not datatypes and binary is False and (quick := fast_encode_response(response)) is not None:
        return WireBody(quick)
    document: _Json = {"model_name": response.model_name}
    if response.model_version is not None:
        document["model_version"] = response.model_version
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = dict(response.parameters)

    def is_binary(output: str) -> bool:
        return binary(output) if callable(binary) else binary

    try:
        return _encode(document, "outputs", response.outputs, is_binary, datatypes or {})
    except TensorEncodingError as error:
        raise ModelContractError(response.model_name, str(error)) from error


def decode_response(body: bytes, json_bytes: int | None = None, *, bf16: Bf16 = "bits") -> InferResponse:
    """Return the response of a JSON or binary body. Raises DataError for a malformed body.

    NaN and Infinity are accepted, since some servers write them into JSON.
    """
    document, rest = _split_body(body, json_bytes, lenient=True)
    if "outputs" not in document:
        raise DataError(
            f"the response has no 'outputs', only {', '.join(map(repr, document)) or 'an empty object'}"
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
    """Return the metadata document of a model."""
    document: _Json = {"name": metadata.name, "platform": metadata.platform}
    if metadata.version is not None:
        document["versions"] = [metadata.version]
    for key, specs in (("inputs", metadata.inputs), ("outputs", metadata.outputs)):
        document[key] = [
            {"name": s.name, "datatype": s.datatype, "shape": list(s.shape or (-1,))} for s in specs
        ]
    return orjson.dumps(document)


def decode_metadata(body: bytes) -> ModelMetadata:
    """Return a model's metadata: name, last version, platform, and specs of its inputs and outputs.

    A tensor without a shape in the document has shape None. BF16 stays BF16. Raises DataError for a
    malformed document.
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
    datatype = validate_datatype(name, tensor.get("datatype"))
    shape = tensor.get("shape")
    if not isinstance(shape, list):
        return TensorSpec(name, datatype)
    try:
        # Some gateways write 64-bit integers as strings.
        sizes = tuple(int(size) for size in cast("list[Any]", shape))
    except (TypeError, ValueError):
        raise DataError(f"tensor {name!r}: its shape must be a list of sizes") from None
    return TensorSpec(name, datatype, tuple(max(size, -1) for size in sizes))


def encode_error(why: str, kind: str = "", **facts: Any) -> bytes:
    """Return the body of an error: its text and, for programs, further facts.

    `kind` is a word for programs where the status is ambiguous.
    """
    if kind:
        facts["kind"] = kind
    try:
        return orjson.dumps({"error": why, **facts})
    except TypeError:  # A model's own message may have lone surrogates.
        return orjson.dumps({"error": why.encode(errors="replace").decode(), **facts})


def decode_error_kind(body: bytes) -> str:
    """Return the kind in an error's body, or "" if it has none."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    kind = cast("_Json", found).get("kind") if isinstance(found, dict) else None
    return kind if isinstance(kind, str) else ""


def decode_error(body: bytes) -> str:
    """Return an error body's message: ``error``, FastAPI's ``detail``, ``message``, or plain text.

    The message is one line of up to ERROR_CHARS_MAX characters, and empty for an empty body.
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
    except TypeError:  # The error is nested too deeply for orjson.
        return _one_line(body[: 4 * ERROR_CHARS_MAX].decode(errors="replace"))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:ERROR_CHARS_MAX]


# Requests and responses


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
        raise TensorEncodingError(f"the tensors cannot be written as JSON: {error}") from error
    return WireBody(b"".join((text, *buffers)), len(text)) if buffers else WireBody(text)


def _split_body(body: bytes, json_bytes: int | None, *, lenient: bool = False) -> tuple[_Json, memoryview]:
    """Return the JSON document and the bytes behind it."""
    if json_bytes is None:
        return _document(body, lenient=lenient), _NO_BINARY_DATA
    if json_bytes == 0:
        raise DataError(
            f"{HEADER_LENGTH} is 0 (a raw tensor without JSON), which is not supported here: send JSON too"
        )
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
    """Return JSON with the literals NaN and Infinity, as Python's encoder writes them.

    Return None for other text.
    """
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError):
        return None


def _tensors(document: _Json, key: str, rest: memoryview, bf16: Bf16) -> tuple[Tensor, ...]:
    """Return the tensors of a body. Every byte behind the JSON must belong to a tensor."""
    found: dict[str, Tensor] = {}
    at = 0
    for entry in _objects(document, key):
        name = _name(entry, key)
        if name in found:
            raise DataError(f"tensor {name!r} is in {key!r} twice")
        datatype = validate_datatype(name, entry.get("datatype"))
        shape = validate_shape(name, entry.get("shape"))
        parameters = _parameters(entry, f"tensor {name!r}")
        size = _binary_size(entry, name, parameters.pop("binary_data_size", None))
        if size is None:
            array = array_from_json(name, datatype, shape, entry["data"])
        else:
            if size > len(rest) - at:
                raise DataError(
                    f"tensor {name!r}: its binary_data_size is {size}, "
                    f"but only {len(rest) - at} bytes are left"
                )
            array = array_from_binary(name, datatype, shape, rest[at : at + size], bf16=bf16)
            at += size
        found[name] = Tensor(name, array, parameters)
    if at != len(rest):
        raise DataError(f"{len(rest) - at} bytes follow the last tensor")
    return tuple(found.values())


def _binary_size(entry: _Json, name: str, size: Any) -> int | None:
    """Return the number of bytes of binary data, or None if the values are JSON.

    The entry must have exactly one of both.
    """
    if (size is None) == (entry.get("data") is None):
        both = "neither" if size is None else "both"
        raise DataError(f"tensor {name!r} needs either 'data' or 'binary_data_size', but has {both}")
    if size is not None and (type(size) is not int or size < 0):
        raise DataError(f"tensor {name!r}: binary_data_size must be a number of bytes, not {size!r:.40}")
    return size


def _check_supported(parameters: _Json, what: str) -> None:
    """Raise UnsupportedError for Triton's parameters that headrace does not implement.

    Ignoring them would change results.
    """
    if "shared_memory_region" in parameters:
        raise UnsupportedError(
            f"{what}: shared memory is not offered: send the tensors in the request, as binary data"
        )
    if "classification" in parameters:
        raise UnsupportedError(f"{what}: classification is not offered: request the scores and sort them")


def _objects(document: _Json, key: str) -> Iterable[_Json]:
    listed = document.get(key)
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(isinstance(o, dict) for o in cast("list[object]", listed)):
        raise DataError(f"{key!r} must be a list of objects")
    objects = cast("list[_Json]", listed)
    if len(objects) > TENSORS_MAX:
        raise DataError(f"{key!r} has {len(objects)} tensors; the limit is {TENSORS_MAX}")
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


def _boolean(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise DataError(f"{key!r} must be true or false, not {value!r:.40}")
    return value
