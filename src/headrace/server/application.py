"""The ASGI application of a server: routes, guard, request ids, observers and errors."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from secrets import token_hex
from typing import Final

from headrace.server.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    SLOW_BODY,
    ErrorStatus,
    GrpcCode,
    StatusError,
    error_body,
    error_headers,
)
from headrace.server.guard import Guard
from headrace.server.http import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    DisconnectedError,
    Exchange,
    Headers,
    HttpTimeouts,
    SlowBodyError,
)
from headrace.server.listener import DirectHandler
from headrace.server.observation import (
    CURRENT,
    Observer,
    Observers,
    RequestObservation,
    ResponseCounters,
    observed_error_status,
)
from headrace.server.routes import Route
from headrace.server.settings import BODY_S_MAX

_log = logging.getLogger("headrace.server")

KNOWN_PATHS_MAX: Final = 4096
KNOWN_PATH_CHARS_MAX: Final = 256
"""Limits of the remembered paths. Paths with ids of jobs and sequences differ without end."""
_HTTP_ERROR: Final = "HTTPException"
"""The ``type`` of errors about the path or the method."""


class WebApp:
    """The ASGI application of a table of routes.

    Args:
        routes: The routes; `headrace.server.rest` and `headrace.server.jobs` create them.
        guard: The checks of every request; None allows everything.
        body_s_max: The maximum seconds for a request body to arrive.
        clock: Monotonic seconds, as in engines.
        observers: See every request: traces and the access log. Every request then has an id, in its
            response and in log records. With None, nothing is observed.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        guard: Guard | None = None,
        *,
        body_s_max: float = BODY_S_MAX,
        clock: Callable[[], float] = time.monotonic,
        observers: Sequence[Observer] | None = None,
    ) -> None:
        self.routes = tuple(routes)
        self.router = Router(routes)
        self.response_counters = ResponseCounters("rest")
        self.direct: DirectHandler | None = None
        """The handler of requests without an ASGI exchange, for the listener, if there is any."""
        self._guard = guard or Guard()
        self._timeouts = HttpTimeouts(body_s_max)
        self._clock = clock
        self._observers = None if observers is None else Observers(observers)

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._timeouts)
        try:
            if self._observers is None:
                await self._serve(exchange)
            else:
                await self._serve_observed(exchange, self._observers)
        finally:
            self.response_counters.add(exchange.action, exchange.status)
            if exchange.broken is not None:
                self.response_counters.add_broken(exchange.action, exchange.broken)

    async def _serve_observed(self, exchange: Exchange, observers: Observers) -> None:
        exchange.observation = observation = self._observation(exchange)
        exchange.request_id = observation.request_id.encode()
        token = CURRENT.set(observation)
        observers.begin(observation)
        try:
            await self._serve(exchange)
        finally:
            observation.status, observation.ended_s = exchange.status, self._clock()
            observers.end(observation)
            CURRENT.reset(token)

    def _observation(self, exchange: Exchange) -> RequestObservation:
        return RequestObservation(
            "rest",
            exchange.method,
            exchange.path,
            began_s=self._clock(),
            header=lambda name: exchange.header(name.encode("latin-1")),
        )

    async def _serve(self, exchange: Exchange) -> None:
        route: Route | None = None
        try:
            endpoint = self.router.find(exchange.path)
            route = endpoint.find(exchange.method)
            if route is None:
                self._guard.check_source(exchange.method, exchange.headers, public=True)
                await self._reject_method(exchange, endpoint)
                return
            exchange.action, exchange.arguments = route.action, endpoint.arguments
            if route.has_request_id and exchange.request_id is None:
                exchange.request_id = token_hex(16).encode()
            if exchange.observation is not None:
                exchange.observation.on_route(route.action, endpoint.arguments)
            self._admit(exchange, route)
            await route.handler(exchange)
        except DisconnectedError:
            return
        except SlowBodyError:
            await self._respond_error(exchange, SLOW_BODY, ((b"connection", b"close"),))
        except StatusError as error:
            await self._respond_error(exchange, error.status)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            await self._handle_error(exchange, error, route)

    def _admit(self, exchange: Exchange, route: Route) -> None:
        """Check the source and the key of a request, and that the key permits the model.

        Raise AccessError otherwise.
        """
        self._guard.check_source(exchange.method, exchange.headers, public=not route.scopes)
        if not route.scopes:
            return
        key = exchange.key = self._guard.access.check(exchange.header(b"authorization"), *route.scopes)
        if exchange.observation is not None:
            exchange.observation.client = key.name
        if key.models is not None and (model := exchange.arguments.get("model_name")) is not None:
            key.require_model(model)

    # Errors

    async def _reject_method(self, exchange: Exchange, endpoint: "Endpoint") -> None:
        if not endpoint.routes:
            why = f"no resource at {exchange.path[:200]}"
            status = ErrorStatus(NOT_FOUND, GrpcCode.NOT_FOUND, why, type=_HTTP_ERROR)
            await self._respond_error(exchange, status)
            return
        allowed = ", ".join(endpoint.methods)
        why = f"{exchange.method[:20]} is not supported for {exchange.path[:200]}: use {allowed}"
        status = ErrorStatus(METHOD_NOT_ALLOWED, GrpcCode.UNIMPLEMENTED, why, type=_HTTP_ERROR)
        await self._respond_error(exchange, status, ((b"allow", allowed.encode()),))

    async def _handle_error(self, exchange: Exchange, error: Exception, route: Route | None) -> None:
        if exchange.started:
            # The status is sent already. Only a closed connection can signal the failure.
            _log.error("a response failed after its start", exc_info=error)
            exchange.broken = INTERNAL_ERROR
            raise error
        observation = exchange.observation or self._observation(exchange)
        # The id in the log record is also the id in the response, even if nothing is observed.
        if exchange.request_id is None:
            exchange.request_id = observation.request_id.encode()
        else:
            observation.request_id = exchange.request_id.decode()
        status = observed_error_status(error, observation)
        if route is None or route.error_format is None:
            await self._respond_error(exchange, status, error_headers(status))
            return
        code, body, extra = route.error_format(error, status)
        await exchange.respond(code, body, JSON, extra)

    async def _respond_error(self, exchange: Exchange, status: ErrorStatus, extra: Headers = ()) -> None:
        if exchange.request_id is None:
            exchange.request_id = token_hex(16).encode()
        body = error_body(status, exchange.request_id.decode())
        await exchange.respond(status.http, body, JSON, extra)


class Endpoint:
    """The routes of one path by method, with the values of the parameters in a requested path."""

    __slots__ = ("arguments", "routes")

    def __init__(self, routes: Mapping[str, Route], arguments: Mapping[str, str]) -> None:
        self.routes = routes
        self.arguments = arguments

    def find(self, method: str) -> Route | None:
        """Return the route of a method, or None."""
        if method == "HEAD":
            route = self.routes.get("GET")
            return route if route is not None and route.is_lenient else None
        return self.routes.get(method)

    @property
    def methods(self) -> list[str]:
        """The methods of this path, sorted."""
        is_readable = self.find("HEAD") is not None
        return sorted({*self.routes, *(("HEAD",) if is_readable else ())})


NOWHERE: Final = Endpoint({}, {})
"""The result for unknown paths."""


class _Node:
    """The routes that share the first segments of their paths."""

    __slots__ = ("literals", "name", "parameter", "routes", "takes_rest")

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.name = ""
        """The name of the parameter that leads to this node."""
        self.takes_rest = False

    def child(self, segment: str) -> "_Node":
        if not segment.startswith("{"):
            return self.literals.setdefault(segment, _Node())
        if self.parameter is None:
            self.parameter = _Node()
        name, _, kind = segment[1:-1].partition(":")
        self.parameter.name, self.parameter.takes_rest = name, kind == "path"
        return self.parameter


class Router:
    """The lookup of routes by path. A literal segment precedes a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._known: dict[str, Endpoint] = {}
        """The results for paths that were requested before, so that a repeated path costs one lookup."""
        self._root = _Node()
        for route in routes:
            node = self._root
            for segment in route.path.split("/")[1:]:
                node = node.child(segment)
            assert route.method not in node.routes, f"two routes for {route.method} {route.path}"
            node.routes[route.method] = route

    def find(self, path: str) -> Endpoint:
        """Return the routes of a path, or `NOWHERE`."""
        known = self._known.get(path)
        if known is not None:
            return known
        found = self._search(path.split("/"))
        if len(path) <= KNOWN_PATH_CHARS_MAX and found is not NOWHERE:
            if len(self._known) >= KNOWN_PATHS_MAX:
                self._known.clear()
            self._known[path] = found
        return found

    def _search(self, segments: list[str]) -> Endpoint:
        found = _find(self._root, segments, 1)
        if found is None and not segments[-1] and len(segments) > 2:
            found = _find(self._root, segments[:-1], 1)
            if found is not None and not all(route.is_lenient for route in found[0].routes.values()):
                return NOWHERE
        return NOWHERE if found is None else Endpoint(found[0].routes, found[1])


def _find(node: _Node, segments: list[str], at: int) -> tuple[_Node, dict[str, str]] | None:
    if at == len(segments):
        return (node, {}) if node.routes else None
    segment = segments[at]
    literal = node.literals.get(segment)
    if literal is not None:
        found = _find(literal, segments, at + 1)
        if found is not None:
            return found
    parameter = node.parameter
    if parameter is None:
        return None
    if parameter.takes_rest:
        rest = "/".join(segments[at:])
        return (parameter, {parameter.name: rest}) if rest else None
    if not segment:
        return None
    found = _find(parameter, segments, at + 1)
    if found is not None:
        found[1][parameter.name] = segment
    return found
