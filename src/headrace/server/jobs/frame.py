"""What is around every request: its id, and every error as the same JSON, with the status that `server.errors` has for it."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from secrets import token_hex
from typing import Any, Final

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from headrace.core.errors import DataError, ForbiddenError, HeadraceError
from headrace.server.errors import Status, status_of
from headrace.server.http import DisconnectedError, SlowBodyError
from headrace.server.observation import REQUEST_ID, safe_id

_log = logging.getLogger("headrace.server")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

REQUEST_TIMEOUT: Final = 408
_FACTS: Final = ("job_id", "state", "retry_after_s", "key")
"""Attributes of errors that a client puts back where they were."""


class Frame:
    """ASGI middleware. Every response carries ``X-Request-Id``, the caller's or one of ours; every error is `problem`."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = safe_id(headers.get(b"x-request-id", b"").decode("latin-1")) or token_hex(16)
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        started = False

        async def framed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            _refuse_tricks(scope, headers)
            await self._app(scope, receive, framed)
        except DisconnectedError:
            return
        except Exception as error:
            if started:
                _log.exception("a response failed after it was begun", extra={"request_id": request_id})
                raise
            await problem(error, request_id)(scope, receive, framed)


def problem(error: Exception, request_id: str) -> Response:
    """An error as a response: what went wrong, its kind and facts, and the id by which the log knows of it."""
    if isinstance(error, SlowBodyError):
        return _response(REQUEST_TIMEOUT, {"error": "the body did not arrive in time"}, request_id)
    status = status_of(error)
    document: dict[str, Any] = {"error": status.why, "type": _kind(error)}
    document |= {name: getattr(error, name) for name in _FACTS if hasattr(error, name)}
    return _response(status.http, document, request_id, _headers(status))


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What the framework itself answers: no such path, or no such method."""
    assert isinstance(error, HTTPException)
    document = {"error": str(error.detail), "type": "HTTPException"}
    return _response(error.status_code, document, request.state.request_id, dict(error.headers or {}))


async def on_validation_error(request: Request, error: Exception) -> Response:
    """Parameters that do not fit the schema: which, and why, in one line."""
    assert isinstance(error, RequestValidationError)
    told = "; ".join(
        f"{'.'.join(map(str, found['loc'][1:])) or found['loc'][0]}: {found['msg']}"
        for found in error.errors()[:5]
    )
    return problem(DataError(told), request.state.request_id)


def _refuse_tricks(scope: Message, headers: dict[bytes, bytes]) -> None:
    if b"%00" in scope.get("raw_path", b"") or b"%00" in scope["query_string"]:
        raise DataError("the address holds a NUL character")
    if headers.get(b"sec-fetch-site") == b"cross-site":
        # A page of somebody else's, in the browser of somebody who can reach us.
        raise ForbiddenError("this API is not for pages of other sites")


def _kind(error: Exception) -> str:
    return type(error).__name__ if isinstance(error, HeadraceError) else "InternalError"


def _headers(status: Status) -> dict[str, str]:
    headers: dict[str, str] = {}
    if status.retry_after_s is not None:
        headers["retry-after"] = str(status.retry_after_s)
    if status.http == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def _response(
    status: int, document: dict[str, Any], request_id: str, headers: dict[str, str] | None = None
) -> Response:
    body = orjson.dumps({**document, "request_id": request_id})
    return Response(body, status, headers, media_type="application/json")


__all__ = ["REQUEST_ID", "Frame", "on_http_exception", "on_validation_error", "problem"]
