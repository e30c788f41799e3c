"""The ASGI application of a server: it finds the route, guards it, and observes and answers the request.

Keys are stored as digests and compared in constant time. Clients send them in the header
``Authorization: Bearer``, or in gRPC metadata of the same name.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from secrets import token_hex
from typing import Final

from headrace.core.errors import ConfigError, ForbiddenError
from headrace.jobs.access import Access, ApiKey, Scope
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
from headrace.server.listener import BODY_S_MAX, DirectHandler
from headrace.server.observation import (
    CURRENT,
    Observer,
    Observers,
    RequestObservation,
    ResponseCounters,
    observed_error_status,
)
from headrace.server.routes import ErrorFormat, Route
from headrace.server.sessions import Sessions

_log = logging.getLogger("headrace.server")

KNOWN_PATHS_MAX: Final = 4096
KNOWN_PATH_CHARS_MAX: Final = 256
"""Limits of the remembered paths. Paths with ids of jobs and sequences differ without end."""
HOSTS_MAX: Final = 1024
"""The maximum number of remembered ``Host`` headers. A page can send any number of them."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
"""The methods that change nothing."""
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
        error_format: The format of the errors of unknown paths, and of routes without a format of
            their own; None is headrace's.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        guard: "Guard | None" = None,
        *,
        body_s_max: float = BODY_S_MAX,
        clock: Callable[[], float] = time.monotonic,
        observers: Sequence[Observer] | None = None,
        error_format: ErrorFormat | None = None,
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
        self._error_format = error_format

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
            self.response_counters.sent[exchange.action, exchange.status] += 1
            if exchange.broken is not None:
                self.response_counters.broken[exchange.action, exchange.broken] += 1

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
            matched = self.router.find(exchange.path)
            route = matched.find(exchange.method)
            if route is None:
                self._guard.check_source(exchange.method, exchange.headers, public=True)
                await self._reject_method(exchange, matched)
                return
            exchange.action, exchange.arguments = route.action, matched.arguments
            if route.has_request_id and exchange.request_id is None:
                exchange.request_id = token_hex(16).encode()
            if exchange.observation is not None:
                exchange.observation.on_route(route.action, route.shown_path, matched.arguments)
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

        Raise AccessError otherwise, and OverloadedError for a request beyond the limit of the key.
        """
        self._guard.check_source(exchange.method, exchange.headers, public=not route.scopes)
        if not route.scopes:
            return
        key = exchange.key = self._guard.authenticate(exchange.method, exchange.headers, *route.scopes)
        if exchange.observation is not None:
            exchange.observation.client = key.name
        self._guard.access.admit(key)
        if key.models is not None and (model := exchange.arguments.get("model_name")) is not None:
            key.require_model(model)

    # Errors

    async def _reject_method(self, exchange: Exchange, matched: "MatchedPath") -> None:
        if not matched.routes:
            why = f"no resource at {exchange.path[:200]}"
            status = ErrorStatus(NOT_FOUND, GrpcCode.NOT_FOUND, why, type=_HTTP_ERROR)
            await self._respond_error(exchange, status)
            return
        allowed = ", ".join(matched.methods)
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
        error_format = (route and route.error_format) or self._error_format
        if error_format is None:
            await self._respond_error(exchange, status, error_headers(status))
            return
        code, body, extra = error_format(error, status)
        await exchange.respond(code, body, JSON, extra)

    async def _respond_error(self, exchange: Exchange, status: ErrorStatus, extra: Headers = ()) -> None:
        if exchange.request_id is None:
            exchange.request_id = token_hex(16).encode()
        if self._error_format is None:
            code, body = status.http, error_body(status, exchange.request_id.decode())
        else:
            code, body, more = self._error_format(StatusError(status), status)
            extra = [*extra, *more]
        await exchange.respond(code, body, JSON, extra)


class Guard:
    """The checks of every request.

    Args:
        access: The API keys; None requires no key.
        bound_to: The address that the server listens on; empty for an application without a server.
        allow_hosts: The names that the operator permits in ``Host`` and ``Origin``; ``*`` permits
            every Host.
        sessions: The sessions of browsers; None accepts no cookies.

    A server that is bound to a loopback address accepts loopback names and IP addresses as ``Host``,
    and the allowed names. A page whose own name resolves to this machine cannot call it, because the
    browser sends that name. A server on another address accepts every ``Host`` unless there are
    allowed names, since load balancers and probes send many names.
    """

    def __init__(
        self,
        access: Access | None = None,
        *,
        bound_to: str = "",
        allow_hosts: Iterable[str] = (),
        sessions: Sessions | None = None,
    ) -> None:
        self.access = access or Access()
        self.sessions = sessions
        names = {name.lower().rstrip(".") for name in allow_hosts}
        self._allowed = frozenset(names - {"*"})
        self._checks_hosts = "*" not in names and (bool(names) or is_local(bound_to))
        self._known_hosts: set[bytes] = {b""}
        """Accepted ``Host`` headers. Requests without the header do not come from browsers."""

    def is_plain(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return True if `check_source` would accept these headers in any request, without a session."""
        return (
            b"sec-fetch-site" not in headers
            and b"origin" not in headers
            and (self.sessions is None or b"cookie" not in headers)
            and (not self._checks_hosts or headers.get(b"host", b"") in self._known_hosts)
        )

    def check_source(self, method: str, headers: Mapping[bytes, bytes], *, public: bool) -> None:
        """Check the headers by which a browser says where a request comes from.

        `public` is true for routes that need no key. Links of other sites to them are allowed. A page
        of the same host and another port, or of another subdomain, is another site here.

        Raises:
            ForbiddenError: The ``Host`` is not a name of this server, or a page of another site sent
                the request.
        """
        host = headers.get(b"host", b"")
        if self._checks_hosts and host not in self._known_hosts:
            self._check_host(host)
        reads = method in SAFE_METHODS
        site = headers.get(b"sec-fetch-site")
        if site == b"cross-site" and not (public and reads):
            raise ForbiddenError("cross-site browser requests are refused")
        origin = headers.get(b"origin")
        is_checked = site == b"same-site" or (origin is not None and not reads)
        if is_checked and not (public and reads) and not self._is_own_origin(origin or b"", host):
            page = "another port or subdomain"
            if origin is not None:
                page = f"the origin {origin[:80].decode('latin-1')!r}"
            raise ForbiddenError(
                f"a page of {page} may not send this request: call the server under the "
                "page's own host, or start the server with --allow-host and the name of that host"
            )

    def authenticate(self, method: str, headers: Mapping[bytes, bytes], *scopes: Scope) -> ApiKey:
        """Return the API key of a request that `check_source` accepted: of its header, else of its cookie.

        Raises:
            UnauthenticatedError: The request has no known key, or its session has ended.
            ForbiddenError: The key has none of the scopes; or the request changes something, has a
                cookie, and lacks the headers that prove its origin.
        """
        authorization = headers.get(b"authorization")
        if authorization is None and self.sessions is not None and not self.access.open:
            session = self.sessions.find(headers)
            if session is not None:
                if method not in SAFE_METHODS and not _names_origin(headers):
                    raise ForbiddenError(
                        "a change with a session needs the Origin header that browsers send: "
                        "other clients send Authorization: Bearer KEY"
                    )
                session.key.require(*scopes)
                return session.key
        return self.access.check(None if authorization is None else authorization.decode("latin-1"), *scopes)

    def _is_own_origin(self, origin: bytes, host: bytes) -> bool:
        address = origin.partition(b"://")[2].lower()
        return bool(address) and (address == host.lower() or _host_name(address) in self._allowed)

    def _check_host(self, host: bytes) -> None:
        name = _host_name(host)
        if name not in self._allowed and not is_local(name) and not _is_address(name):
            raise ForbiddenError(
                f"the Host {name[:80]!r} is not a name of this server: "
                "start the server with --allow-host and this name if it is"
            )
        if len(self._known_hosts) >= HOSTS_MAX:
            self._known_hosts = {b""}
        self._known_hosts.add(host)


def _names_origin(headers: Mapping[bytes, bytes]) -> bool:
    return b"origin" in headers or headers.get(b"sec-fetch-site") == b"same-origin"


def _host_name(host: bytes) -> str:
    """Return the lower-case name of a ``Host`` header, without port and final dot."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text.partition("]")[0].removeprefix("[")
    return text.partition(":")[0].rstrip(".")


def check_bind(
    host: str, *, guarded: bool, insecure: bool, by: str = "--api-keys FILE or --tls-client-ca FILE"
) -> None:
    """Raise ConfigError for a public address without access control, unless `insecure` is true.

    `by` are the options that control access.
    """
    if guarded or insecure or is_local(host):
        return
    raise ConfigError(
        f"{host} is reachable from other machines and has no access control: pass {by}, or --insecure if "
        "another layer controls access"
    )


def is_local(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class MatchedPath:
    """The routes of one path by method, with the values of the parameters in a requested path."""

    routes: Mapping[str, Route]
    arguments: Mapping[str, str]

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


NOWHERE: Final = MatchedPath({}, {})
"""The result for unknown paths."""


class Router:
    """The lookup of routes by path. A literal segment precedes a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._known: dict[str, MatchedPath] = {}
        """The results for paths that were requested before, so that a repeated path costs one lookup."""
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            methods = by_path.setdefault(route.path, {})
            assert route.method not in methods, f"two routes for {route.method} {route.path}"
            methods[route.method] = route
        patterns: list[str] = []
        self._by_group: dict[int | None, tuple[dict[str, Route], list[str]]] = {}
        """The routes of a path and the names of its parameters, by the group of the path in the pattern."""
        group = 1
        for path in sorted(by_path, key=_precedence):
            names = [segment[1:-1].partition(":")[0] for segment in path.split("/") if segment[:1] == "{"]
            patterns.append(f"({'/'.join(map(_segment_pattern, path.split('/')))})")
            self._by_group[group] = (by_path[path], names)
            group += 1 + len(names)
        self._pattern = re.compile("|".join(patterns), re.DOTALL)

    def find(self, path: str) -> MatchedPath:
        """Return the routes of a path, or `NOWHERE`."""
        known = self._known.get(path)
        if known is not None:
            return known
        found = self._search(path)
        if found is None and path.endswith("/"):
            found = self._search(path[:-1])
            if found is not None and not all(route.is_lenient for route in found.routes.values()):
                return NOWHERE
        if found is None:
            return NOWHERE
        if len(path) <= KNOWN_PATH_CHARS_MAX:
            if len(self._known) >= KNOWN_PATHS_MAX:
                self._known.clear()
            self._known[path] = found
        return found

    def _search(self, path: str) -> MatchedPath | None:
        match = self._pattern.fullmatch(path)
        if match is None or match.lastindex is None:
            return None
        # The group of the whole path ends last.
        group = match.lastindex
        routes, names = self._by_group[group]
        return MatchedPath(routes, dict(zip(names, match.groups()[group : group + len(names)], strict=True)))


def _segment_pattern(segment: str) -> str:
    if segment[:1] != "{":
        return re.escape(segment)
    return "(.+)" if segment.endswith(":path}") else "([^/]+)"


def _precedence(path: str) -> list[int]:
    """Return a sort key by which literal segments come first, and segments with the rest of a path last."""
    return [(segment[:1] == "{") + segment.endswith(":path}") for segment in path.split("/")]
