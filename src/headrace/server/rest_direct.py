"""The fast path of ``infer``, for requests that arrived whole.

Its responses are byte-identical to those of `WebApp`, which handles the requests it declines.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from typing_extensions import override

from headrace.core.errors import ModelError
from headrace.jobs.access import Scope
from headrace.protocols import oip_json
from headrace.server.application import Guard
from headrace.server.dataplane import Dataplane
from headrace.server.errors import CLIENT_DISCONNECTED, error_body, error_headers
from headrace.server.http import JSON, X_REQUEST_ID, Headers, compress_body, echoed_request_id
from headrace.server.listener import DeferredResponse, DirectHandler, DirectResponse, RestLimits
from headrace.server.observation import RequestObservation, ResponseCounters, observed_error_status
from headrace.server.rest_inference import (
    encode_response_body,
    read_request,
)

ACTION: Final = "infer"
ROUTES_MAX: Final = 4096
"""The maximum number of cached targets. Each version has two; the limit is a safeguard."""

_JSON_HEAD: Final = b"content-type: %b\r\n" % JSON
_HeaderMap = Mapping[bytes, bytes]


class _Target(NamedTuple):
    """The model and the version that a target names. The version may be empty."""

    model: str
    version: str


class DirectInference(DirectHandler):
    """The direct handler of ``infer``.

    Args:
        dataplane: The models.
        counters: The counters of the responses.
        guard: The checks of every request.
        limits: As for exchanges; requests with larger bodies are declined.
        find: Returns the model and version whose ``infer`` a path names, or None for other paths.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        counters: ResponseCounters,
        guard: Guard,
        limits: RestLimits,
        *,
        find: Callable[[str], tuple[str, str] | None],
        clock: Callable[[], float],
    ) -> None:
        self._dataplane = dataplane
        self._counters = counters
        self._guard = guard
        self._bytes_max = limits.body_bytes_max
        self._gzip_bytes_min = limits.gzip_bytes_min
        self._find = find
        self._clock = clock
        self._routes: dict[bytes, _Target] = {}

    def route(self, target: bytes) -> _Target | None:
        """Return the route of a known model, or None."""
        known = self._routes.get(target)
        if known is not None:
            return known
        if not target.endswith(b"/infer") or b"%" in target or not target.isascii():
            return None
        found = self._find(target.decode())
        if found is None:
            return None
        try:
            self._dataplane.metadata(*found)
        except ModelError:
            return None
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[target] = named = _Target(*found)
        return named

    @override
    def respond(
        self, route: _Target, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> DirectResponse | DeferredResponse | None:
        header_map = dict(headers)
        if (
            b"content-encoding" in header_map
            or len(body) > self._bytes_max
            or not self._guard.is_plain(header_map)
        ):
            return None
        response = self._infer(route, header_map, body)
        if isinstance(response, DirectResponse):
            self._counters.sent[ACTION, response.status] += 1
            return response
        return partial(self._count_deferred, response)

    def _infer(self, target: _Target, headers: _HeaderMap, body: bytes) -> DirectResponse | DeferredResponse:
        model, version = target
        plane = self._dataplane
        try:
            namespace = ""
            if not self._guard.access.open:
                sent = headers.get(b"authorization")
                key = self._guard.access.check(None if sent is None else sent.decode("latin-1"), Scope.INFER)
                self._guard.access.admit(key)
                key.require_model(model)
                namespace = key.tenant
            metadata = plane.metadata(model, version)
            wire = read_request(headers, body, metadata, self._clock, namespace)
            response = plane.infer_now(model, version, wire.request)
            if response is None:
                return partial(self._infer_deferred, target, headers, wire)
            encoded = encode_response_body(response, wire, metadata)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            return self._error_response(target, headers, error)
        if self._is_long(encoded[0]):
            return partial(self._compressed, headers, *encoded)
        return _ok_response(headers, *encoded)

    async def _count_deferred(self, deferred: DeferredResponse) -> DirectResponse:
        status = CLIENT_DISCONNECTED
        try:
            response = await deferred()
            status = response.status
        finally:
            self._counters.sent[ACTION, status] += 1
        return response

    async def _infer_deferred(
        self, target: _Target, headers: _HeaderMap, wire: oip_json.JsonWireRequest
    ) -> DirectResponse:
        model, version = target
        try:
            metadata = self._dataplane.metadata(model, version)
            response = await self._dataplane.infer(model, version, wire.request)
            encoded = encode_response_body(response, wire, metadata)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            return self._error_response(target, headers, error)
        if self._is_long(encoded[0]):
            return await self._compressed(headers, *encoded)
        return _ok_response(headers, *encoded)

    def _is_long(self, body: bytes) -> bool:
        return self._gzip_bytes_min is not None and len(body) >= self._gzip_bytes_min

    async def _compressed(
        self, headers: _HeaderMap, body: bytes, content_type: bytes, extra: Headers
    ) -> DirectResponse:
        body, encoding = await compress_body(body, headers.get(b"accept-encoding", b""))
        return _ok_response(headers, body, content_type, (*extra, *encoding))

    def _error_response(self, target: _Target, headers: _HeaderMap, error: Exception) -> DirectResponse:
        def header(name: str) -> str | None:
            value = headers.get(name.encode("latin-1"))
            return None if value is None else value.decode("latin-1")

        path = f"/v2/models/{target.model}/infer"
        observation = RequestObservation("rest", "POST", path, began_s=self._clock(), header=header)
        status = observed_error_status(error, observation)
        extra = [*error_headers(status), (X_REQUEST_ID, observation.request_id.encode())]
        return DirectResponse(
            status.http, _encode_head(JSON, extra), error_body(status, observation.request_id)
        )


def _ok_response(headers: _HeaderMap, body: bytes, content_type: bytes, extra: Headers) -> DirectResponse:
    request_id = headers.get(X_REQUEST_ID)
    if request_id is not None and (echoed := echoed_request_id(request_id)) is not None:
        extra = (*extra, (X_REQUEST_ID, echoed))
    head = _JSON_HEAD if content_type is JSON and not extra else _encode_head(content_type, extra)
    return DirectResponse(200, head, body)


def _encode_head(content_type: bytes, extra: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % line for line in ((b"content-type", content_type), *extra)])
