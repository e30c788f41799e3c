"""What ``infer`` over HTTP does between a body and a body, whichever way the request came."""

from collections.abc import Callable, Mapping
from typing import Final

from headrace.core.tensor import InferResponse, ModelMetadata
from headrace.protocols import oip_json
from headrace.protocols.schedule import scheduled
from headrace.server.errors import Status, status_of
from headrace.server.http import JSON, Headers
from headrace.server.observation import CURRENT, Observation

HEADER_LENGTH: Final = oip_json.HEADER_LENGTH.lower().encode()
_NONE: Final[Mapping[str, str]] = {}
_OCTETS: Final = b"application/octet-stream"


def read_request(
    headers: Mapping[bytes, bytes], body: bytes, metadata: ModelMetadata, clock: Callable[[], float]
) -> oip_json.WireRequest:
    """An inference request as it came, with its deadline and priority. Raises what `oip_json.decode_request` does."""
    length = headers.get(HEADER_LENGTH)
    json_bytes = None if length is None else oip_json.header_length(length.decode("latin-1"))
    if json_bytes == 0:
        return oip_json.decode_raw_request(body, metadata, bf16="float32")
    wire = oip_json.decode_request(body, json_bytes, bf16="float32")
    if not wire.request.parameters:
        return wire
    return oip_json.WireRequest(scheduled(wire.request, clock()), wire.binary_default, wire.binary_by_name)


def written_response(
    response: InferResponse, wire: oip_json.WireRequest, metadata: ModelMetadata
) -> oip_json.WireBody:
    """The answer to a request, in the form that it asks for. Raises what `oip_json.encode_response` does."""
    binary = wire.binary if wire.binary_default or wire.binary_by_name else False
    return oip_json.encode_response(response, binary=binary, datatypes=declared_bf16(metadata))


def declared_bf16(metadata: ModelMetadata) -> Mapping[str, str]:
    """Outputs that the model declares as BF16, which numpy cannot tell."""
    for spec in metadata.outputs:
        if spec.datatype == "BF16":
            return {s.name: s.datatype for s in metadata.outputs if s.datatype == "BF16"}
    return _NONE


def content_headers(body: oip_json.WireBody) -> tuple[bytes, Headers]:
    """The content type of a response, and the headers that binary tensors need besides."""
    if body.json_bytes is None:
        return JSON, ()
    return _OCTETS, ((HEADER_LENGTH, b"%d" % body.json_bytes),)


def told_status(error: Exception, seen: Observation) -> Status:
    """The status of an error; what is logged of it has the id that the answer has."""
    token = CURRENT.set(seen)
    try:
        status = status_of(error)
    finally:
        CURRENT.reset(token)
    seen.failed(error, status)
    return status


def error_headers(status: Status) -> Headers:
    """What the head of an error says besides."""
    headers: list[tuple[bytes, bytes]] = []
    if status.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % status.retry_after_s))
    if status.http == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
