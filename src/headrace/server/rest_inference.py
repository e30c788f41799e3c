"""The steps of ``infer`` over HTTP that ASGI exchanges and the fast path share."""

from collections.abc import Callable, Mapping
from typing import Final

from headrace.core.handle import BODY, HandleRequest
from headrace.core.tensor import InferResponse, ModelMetadata
from headrace.protocols import oip_json
from headrace.protocols.scheduling_parameters import apply_scheduling_parameters
from headrace.server.errors import ErrorStatus, status_of
from headrace.server.http import JSON, Headers
from headrace.server.multipart import is_form, parse_form
from headrace.server.observation import CURRENT, RequestObservation

HEADER_LENGTH: Final = oip_json.HEADER_LENGTH.lower().encode()
_NONE: Final[Mapping[str, str]] = {}
_OCTETS: Final = b"application/octet-stream"


def read_request(
    headers: Mapping[bytes, bytes], body: bytes, metadata: ModelMetadata, clock: Callable[[], float]
) -> oip_json.JsonWireRequest:
    """Return the decoded inference request with its deadline and priority.

    Raise the errors of `oip_json.decode_request`.
    """
    length = headers.get(HEADER_LENGTH)
    json_bytes = None if length is None else oip_json.parse_header_length(length.decode("latin-1"))
    if json_bytes == 0:
        return oip_json.decode_raw_request(body, metadata, bf16="float32")
    wire = oip_json.decode_request(body, json_bytes, bf16="float32")
    if not wire.request.parameters:
        return wire
    return oip_json.JsonWireRequest(
        apply_scheduling_parameters(wire.request, clock()), wire.binary_default, wire.binary_by_name
    )


def read_opaque_request(headers: Mapping[bytes, bytes], body: bytes) -> HandleRequest:
    """Return the request of ``handle``. The model does not see the key of the server.

    Raises DataError and LimitError for an invalid form.
    """
    content_type = headers.get(b"content-type", b"")
    parts = parse_form(content_type, body) if is_form(content_type) else {BODY: body}
    by_name = {n.decode("latin-1"): v.decode("latin-1") for n, v in headers.items() if n != b"authorization"}
    return HandleRequest(parts, by_name)


def encode_response_body(
    response: InferResponse, wire: oip_json.JsonWireRequest, metadata: ModelMetadata
) -> oip_json.WireBody:
    """Return the encoded response in the form that the request selects.

    Raise the errors of `oip_json.encode_response`.
    """
    binary = wire.binary if wire.binary_default or wire.binary_by_name else False
    return oip_json.encode_response(response, binary=binary, datatypes=bf16_outputs(metadata))


def bf16_outputs(metadata: ModelMetadata) -> Mapping[str, str]:
    """Return the outputs that the model declares as BF16. NumPy has no such dtype."""
    for spec in metadata.outputs:
        if spec.datatype == "BF16":
            return {s.name: s.datatype for s in metadata.outputs if s.datatype == "BF16"}
    return _NONE


def content_headers(body: oip_json.WireBody) -> tuple[bytes, Headers]:
    """Return the content type of a response, and the extra headers of binary tensors."""
    if body.json_bytes is None:
        return JSON, ()
    return _OCTETS, ((HEADER_LENGTH, b"%d" % body.json_bytes),)


def observed_error_status(error: Exception, observation: RequestObservation) -> ErrorStatus:
    """Return the status of an error. Log records about it have the id of the response."""
    token = CURRENT.set(observation)
    try:
        status = status_of(error)
    finally:
        CURRENT.reset(token)
    observation.on_error(error, status)
    return status


def error_headers(status: ErrorStatus) -> Headers:
    """Return the additional headers of an error response."""
    headers: list[tuple[bytes, bytes]] = []
    if status.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % status.retry_after_s))
    if status.http == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
