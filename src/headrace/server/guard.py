"""The guard of all routes: API keys with scopes, Host, Origin, and the rule for public addresses.

Keys are stored as digests and compared in constant time. Clients send them in the header
``Authorization: Bearer``, or in gRPC metadata of the same name.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from headrace.core.errors import ConfigError, ForbiddenError
from headrace.jobs.access import Access

HOSTS_MAX: Final = 1024
"""The maximum number of remembered ``Host`` headers. A page can send any number of them."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
"""The methods that change nothing."""


class Guard:
    """The checks of every request.

    Args:
        access: The API keys; None requires no key.
        bound_to: The address that the server listens on; empty for an application without a server.
        allow_hosts: The names that the operator permits in ``Host`` and ``Origin``; ``*`` permits
            every Host.

    A server that is bound to a loopback address accepts loopback names and IP addresses as ``Host``,
    and the allowed names. A page whose own name resolves to this machine cannot call it, because the
    browser sends that name. A server on another address accepts every ``Host`` unless there are
    allowed names, since load balancers and probes send many names.
    """

    def __init__(
        self, access: Access | None = None, *, bound_to: str = "", allow_hosts: Iterable[str] = ()
    ) -> None:
        self.access = access or Access()
        names = {name.lower().rstrip(".") for name in allow_hosts}
        self._allowed = frozenset(names - {"*"})
        self._checks_hosts = "*" not in names and (bool(names) or is_local(bound_to))
        self._known_hosts: set[bytes] = {b""}
        """Accepted ``Host`` headers. Requests without the header do not come from browsers."""

    def is_plain(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return True if `check_source` would accept any request with these headers."""
        return (
            b"sec-fetch-site" not in headers
            and b"origin" not in headers
            and (not self._checks_hosts or headers.get(b"host", b"") in self._known_hosts)
        )

    def check_source(self, method: str, headers: Mapping[bytes, bytes], *, public: bool) -> None:
        """Check the headers by which a browser says where a request comes from.

        `public` is true for routes that need no key. Links of other sites to them are allowed.

        Raises:
            ForbiddenError: The ``Host`` is not a name of this server, or a page of another site sent
                the request.
        """
        host = headers.get(b"host", b"")
        if self._checks_hosts and host not in self._known_hosts:
            self._check_host(host)
        reads = method in SAFE_METHODS
        if headers.get(b"sec-fetch-site") == b"cross-site" and not (public and reads):
            raise ForbiddenError("cross-site browser requests are refused")
        origin = headers.get(b"origin")
        if origin is None or reads:
            return
        address = origin.partition(b"://")[2].lower()
        if address != host.lower() and _host_name(address) not in self._allowed:
            shown = origin[:80].decode("latin-1")
            raise ForbiddenError(
                f"a page of the origin {shown!r} may not send this request: call the server under the "
                "page's own host, or start the server with --allow-host and the name of that host"
            )

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


def _host_name(host: bytes) -> str:
    """Return the lower-case name of a ``Host`` header, without port and final dot."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text.partition("]")[0].removeprefix("[")
    return text.partition(":")[0].rstrip(".")


def check_bind(host: str, *, guarded: bool, insecure: bool) -> None:
    """Raise ConfigError for a public address without access control, unless `insecure` is true."""
    if guarded or insecure or is_local(host):
        return
    raise ConfigError(
        f"{host} is reachable from other machines and has no access control: pass --api-keys FILE or "
        "--tls-client-ca FILE, or --insecure if another layer controls access"
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
