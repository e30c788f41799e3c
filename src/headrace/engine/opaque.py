"""Responses of `Model.handle`: checked, with bodies that are read chunk by chunk."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from headrace.core.errors import ModelContractError
from headrace.core.handle import HandleResponse
from headrace.engine.streams import StreamCall

_TEXT: Final = "text/plain; charset=utf-8"
_OWN_HEADERS: Final = frozenset(
    {"connection", "content-length", "content-type", "keep-alive", "transfer-encoding", "upgrade"}
)
"""Headers of the connection, or with a field of their own."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, eq=False)
class ChunkedResponse:
    """A response whose body the model makes chunk by chunk."""

    response: HandleResponse
    """The response, whose body is not read yet."""
    open_stream: Callable[[StreamCall], None]
    """Begins to send the chunks to a stream. Any thread, once; without it, the body is dropped."""


def check_responses(model: str, returned: Any, requests: int) -> list[HandleResponse]:
    """Return what `handle` returned as responses, one for each request.

    Bytes and text become bodies with status 200. Raises ModelContractError for anything else.
    """
    if isinstance(returned, (str, bytes)) or not isinstance(returned, Sequence):
        kind = type(returned).__name__
        raise ModelContractError(
            model, f"handle returned a {kind}: return a list with one response for each request"
        )
    responses = cast("Sequence[Any]", returned)
    if len(responses) != requests:
        raise ModelContractError(
            model,
            f"handle returned {len(responses)} responses for {requests} requests: return one for each "
            "(raise RowError to refuse a request)",
        )
    return [_response(model, response) for response in responses]


def _check_head(model: str, response: HandleResponse) -> None:
    if type(response.status) is not int or not 200 <= response.status <= 599:
        raise ModelContractError(
            model, f"handle returned the status {response.status!r}: use a number from 200 to 599"
        )
    if response.status in (204, 304) and response.body != b"":
        raise ModelContractError(
            model, f"handle returned a body with the status {response.status}: remove it"
        )
    headers: list[tuple[Any, Any]] = [*response.headers.items(), ("content-type", response.content_type)]
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, str):
            raise ModelContractError(model, f"handle returned the header {name!r}: {value!r}: use text")
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ModelContractError(model, f"handle returned the invalid header {name!r}: {value!r}")
    if own := sorted(name for name in response.headers if name.lower() in _OWN_HEADERS):
        raise ModelContractError(
            model,
            f"handle returned the header {own[0]!r}: the server sets it (use content_type for the type)",
        )


def _response(model: str, response: Any) -> HandleResponse:
    if isinstance(response, bytes):
        return HandleResponse(response)
    if isinstance(response, str):
        return HandleResponse(response.encode(), content_type=_TEXT)
    if not isinstance(response, HandleResponse):
        kind = type(response).__name__
        raise ModelContractError(model, f"handle returned a {kind} as a response: return a HandleResponse")
    _check_head(model, response)
    body: Any = response.body
    if isinstance(body, (bytearray, memoryview)):
        return replace(response, body=bytes(cast("bytes", body)))
    if not isinstance(body, (bytes, Iterator, AsyncIterator)):
        kind = type(cast("object", body)).__name__
        raise ModelContractError(
            model, f"handle returned a body of type {kind}: use bytes or an iterator of bytes"
        )
    return response
