"""The middleware around every request of the job API: request ids, and errors as JSON.

Each error has the status that `headrace.server.errors` defines.
"""

import logging
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Any, Final

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from headrace.core.errors import DataError, ForbiddenError, HeadraceError
from headrace.server.errors import ErrorStatus, status_of
from headrace.server.http import (
    AsgiMessage,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    DisconnectedError,
    SlowBodyError,
)
from headrace.server.observation import REQUEST_ID, safe_id

_log = logging.getLogger("headrace.server")

_App = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]

REQUEST_TIMEOUT: Final = 408
_FACTS: Final = ("job_id", "state", "retry_after_s", "key")
"""Attributes of errors that headrace's client restores."""


class RequestMiddleware:
    """ASGI middleware that adds request ids and converts errors.

    Every response has an ``X-Request-Id``: the client's, or a generated one. Every error becomes a
    `problem_response`.
    """

    def __init__(self, app: _App) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = safe_id(headers.get(b"x-request-id", b"").decode("latin-1")) or token_hex(16)
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        started = False

        async def send_with_id(message: AsgiMessage) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            _reject_unsafe(scope, headers)
            await self._app(scope, receive, send_with_id)
        except DisconnectedError:
            return
        except Exception as error:
            if started:
                _log.exception("a response failed after its start", extra={"request_id": request_id})
                raise
            await problem_response(error, request_id)(scope, receive, send_with_id)


def problem_response(error: Exception, request_id: str) -> Response:
    """Return an error as a response: message, kind, facts and request id."""
    if isinstance(error, SlowBodyError):
        return _response(REQUEST_TIMEOUT, {"error": "the body did not arrive in time"}, request_id)
    status = status_of(error)
    document: dict[str, Any] = {"error": status.why, "type": _kind(error)}
    document |= {name: getattr(error, name) for name in _FACTS if hasattr(error, name)}
    return _response(status.http, document, request_id, _headers(status))


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Return the response to an unknown path or an unsupported method."""
    assert isinstance(error, HTTPException)
    document = {"error": str(error.detail), "type": "HTTPException"}
    return _response(error.status_code, document, request.state.request_id, dict(error.headers or {}))


async def on_validation_error(request: Request, error: Exception) -> Response:
    """Return the response to invalid parameters, with each parameter and reason."""
    assert isinstance(error, RequestValidationError)
    message = "; ".join(
        f"{'.'.join(map(str, found['loc'][1:])) or found['loc'][0]}: {found['msg']}"
        for found in error.errors()[:5]
    )
    return problem_response(DataError(message), request.state.request_id)


def _reject_unsafe(scope: AsgiScope, headers: dict[bytes, bytes]) -> None:
    if b"%00" in scope.get("raw_path", b"") or b"%00" in scope["query_string"]:
        raise DataError("the URL contains a NUL character")
    if headers.get(b"sec-fetch-site") == b"cross-site":
        # A page of another site, in a browser that can reach this server, sent the request.
        raise ForbiddenError("cross-site browser requests are refused")


def _kind(error: Exception) -> str:
    return type(error).__name__ if isinstance(error, HeadraceError) else "InternalError"


def _headers(status: ErrorStatus) -> dict[str, str]:
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


__all__ = ["REQUEST_ID", "RequestMiddleware", "on_http_exception", "on_validation_error", "problem_response"]
