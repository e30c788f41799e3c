"""Requests and responses of `handle` between an instance and its process: headers and arrays."""

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.core.handle import HandleRequest, HandleResponse
from headrace.core.tensor import Array
from headrace.engine.process.messages import OpaqueHeader, ResponseHeader


def _array(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def pack_requests(
    requests: Sequence[HandleRequest], now: float
) -> tuple[list[OpaqueHeader], dict[str, Array]]:
    """Return the headers of requests, and their parts as arrays in order."""
    headers: list[OpaqueHeader] = []
    arrays: dict[str, Array] = {}
    for request in requests:
        left_s = None if request.deadline is None else request.deadline - now
        headers.append(
            OpaqueHeader(list(request.parts), dict(request.headers), request.id, request.priority, left_s)
        )
        for data in request.parts.values():
            arrays[str(len(arrays))] = _array(data)
    return headers, arrays


def unpack_requests(
    headers: Sequence[OpaqueHeader], arrays: Mapping[str, Array], now: float
) -> list[HandleRequest]:
    """Return the requests of `pack_requests`."""
    parts = iter(arrays.values())
    return [
        HandleRequest(
            {name: next(parts).tobytes() for name in header.names},
            header.headers,
            header.id,
            None if header.left_s is None else now + header.left_s,
            header.priority,
        )
        for header in headers
    ]


def pack_response(response: HandleResponse, chunked: int | None) -> ResponseHeader:
    """Return the header of a response."""
    return ResponseHeader(response.status, response.content_type, dict(response.headers), chunked)


def pack_bodies(responses: Sequence[object]) -> dict[str, Array]:
    """Return the whole bodies of responses as arrays, in order."""
    bodies = [r.body for r in responses if isinstance(r, HandleResponse)]
    return {str(at): _array(body) for at, body in enumerate(bodies) if isinstance(body, bytes)}


def unpack_responses(headers: Sequence[ResponseHeader], arrays: Mapping[str, Array]) -> list[HandleResponse]:
    """Return the responses; a chunked body is empty here."""
    bodies = iter(arrays.values())
    return [
        HandleResponse(
            next(bodies).tobytes() if header.chunked is None else b"",
            header.status,
            header.content_type,
            header.headers,
        )
        for header in headers
    ]
