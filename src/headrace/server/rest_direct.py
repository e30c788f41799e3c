"""``infer`` without an ASGI exchange: what `RestApp` does for requests that came whole, in as few steps as can be.

Whatever is answered here is answered there with the same bytes; what is not, goes there.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from headrace.core.errors import ModelError
from headrace.protocols import oip_json
from headrace.server.answers import Answers
from headrace.server.dataplane import Dataplane
from headrace.server.direct import Later, Reply
from headrace.server.errors import CLIENT_GONE
from headrace.server.http import JSON, X_REQUEST_ID, Headers, echoed_id, packed
from headrace.server.observation import Observation
from headrace.server.rest_inference import (
    content_headers,
    error_headers,
    read_request,
    told_status,
    written_response,
)
from headrace.server.security import Access, Role

ACTION: Final = "infer"
ROUTES_MAX: Final = 4096
"""Targets that are remembered. There are two for each version, and callers cannot make up others; this is a safeguard."""

_JSON_HEAD: Final = b"content-type: %b\r\n" % JSON
_HeaderMap = Mapping[bytes, bytes]


class Route(NamedTuple):
    """What a target names: a model and a version, which may be empty."""

    model: str
    version: str


class DirectInference:
    """Implements `Direct` for ``infer``.

    Args:
        dataplane: What is asked.
        answers: What is answered is counted there.
        access: Who may ask.
        body_bytes_max: What is larger is refused by the long way.
        gzip_bytes_min: As in `RestLimits`.
        find: The model and version whose ``infer`` a path names; None for other paths.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        answers: Answers,
        access: Access,
        *,
        body_bytes_max: int,
        gzip_bytes_min: int | None,
        find: Callable[[str], tuple[str, str] | None],
        clock: Callable[[], float],
    ) -> None:
        self._dataplane = dataplane
        self._answers = answers
        self._access = access
        self._bytes_max = body_bytes_max
        self._gzip_bytes_min = gzip_bytes_min
        self._find = find
        self._clock = clock
        self._routes: dict[bytes, Route] = {}

    def route(self, target: bytes) -> Route | None:
        """See `Direct`; only models that are there are answered here."""
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
        self._routes[target] = route = Route(*found)
        return route

    def answer(
        self, route: Route, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Reply | Later | None:
        """See `Direct`."""
        given = dict(headers)
        if b"content-encoding" in given or len(body) > self._bytes_max:
            return None
        answer = self._answered(route, given, body)
        if isinstance(answer, Reply):
            self._answers.add(ACTION, answer.status)
        return answer

    def _answered(self, route: Route, given: _HeaderMap, body: bytes) -> Reply | Later:
        model, version = route
        plane = self._dataplane
        try:
            if not self._access.open:
                key = given.get(b"authorization")
                self._access.check(None if key is None else key.decode("latin-1"), Role.INFER)
            metadata = plane.metadata(model, version)
            wire = read_request(given, body, metadata, self._clock)
            response = plane.infer_now(model, version, wire.request)
            if response is None:
                return partial(self._counted, partial(self._asked, route, given, wire))
            written = written_response(response, wire, metadata)
        except Exception as error:  # noqa: BLE001 - every error becomes an answer
            return self._failed(route, given, error)
        if self._is_long(written):
            return partial(self._counted, partial(self._whole, given, written))
        return _reply(given, written.body, *content_headers(written))

    async def _counted(self, answering: Later) -> Reply:
        status = CLIENT_GONE
        try:
            reply = await answering()
            status = reply.status
        finally:
            self._answers.add(ACTION, status)
        return reply

    async def _asked(self, route: Route, given: _HeaderMap, wire: oip_json.WireRequest) -> Reply:
        model, version = route
        try:
            metadata = self._dataplane.metadata(model, version)
            response = await self._dataplane.infer(model, version, wire.request)
            written = written_response(response, wire, metadata)
        except Exception as error:  # noqa: BLE001 - every error becomes an answer
            return self._failed(route, given, error)
        return await self._whole(given, written)

    async def _whole(self, given: _HeaderMap, written: oip_json.WireBody) -> Reply:
        content_type, extra = content_headers(written)
        body = written.body
        if self._is_long(written):
            body, encoding = await packed(body, given.get(b"accept-encoding", b""))
            extra = (*extra, *encoding)
        return _reply(given, body, content_type, extra)

    def _is_long(self, written: oip_json.WireBody) -> bool:
        return self._gzip_bytes_min is not None and len(written.body) >= self._gzip_bytes_min

    def _failed(self, route: Route, given: _HeaderMap, error: Exception) -> Reply:
        def header(name: str) -> str | None:
            value = given.get(name.encode("latin-1"))
            return None if value is None else value.decode("latin-1")

        path = f"/v2/models/{route.model}/infer"
        seen = Observation("rest", "POST", path, began_s=self._clock(), header=header)
        status = told_status(error, seen)
        extra = [*error_headers(status), (X_REQUEST_ID, seen.request_id.encode())]
        return Reply(status.http, _head(JSON, extra), oip_json.encode_error(status.why, status.kind))


def _reply(given: _HeaderMap, body: bytes, content_type: bytes, extra: Headers) -> Reply:
    sent = given.get(X_REQUEST_ID)
    if sent is not None and (echoed := echoed_id(sent)) is not None:
        extra = (*extra, (X_REQUEST_ID, echoed))
    head = _JSON_HEAD if content_type is JSON and not extra else _head(content_type, extra)
    return Reply(200, head, body)


def _head(content_type: bytes, extra: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % line for line in ((b"content-type", content_type), *extra)])
