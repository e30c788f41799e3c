"""Addresses of servers as settings name them: what they say, and what of them may be shown. Pure: nothing is looked up."""

from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.core.errors import ConfigError

REDIS_SCHEMES: Final = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
"""Whether each goes over TLS."""
_REDIS_PORT: Final = 6379


class ServerAddress:
    """``SCHEME://[USER:PASSWORD@]HOST[:PORT][/PATH][?OPTION=VALUE&...]``, in its parts.

    Raises ConfigError, here and in its methods, in messages that show neither user nor password.

    Args:
        text: The address.
        forms: What may be written, for whoever wrote something else.
    """

    def __init__(self, text: str, forms: str) -> None:
        try:
            self.parts = parts = urlsplit(text)
            self.port = parts.port
        except ValueError:
            # What it says may quote the password.
            raise ConfigError(
                f"not a server's address, since its host or port cannot be read: write {forms}"
            ) from None
        self.scheme = parts.scheme
        # A password whose slash was not encoded is in the path.
        self.shown = f"{parts.scheme}://{(parts.netloc + parts.path).rpartition('@')[2]}"
        """The address without what may be secret."""
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        self.options = dict(pairs)
        if len(self.options) < len(pairs):
            raise ConfigError(f"{self.shown}: an option stands there twice")
        if empty := [name for name, value in pairs if not value]:
            raise ConfigError(f"{self.shown}: the option {empty[0]!r} has no value")

    @property
    def username(self) -> str | None:
        """As it is, not percent-encoded; None for an empty one, too."""
        return unquote(self.parts.username or "") or None

    @property
    def password(self) -> str | None:
        """As it is, not percent-encoded; None for an empty one, too."""
        return unquote(self.parts.password or "") or None

    def allow(self, known: set[str]) -> None:
        """Raise ConfigError when it has an option that is not known."""
        if unknown := sorted(set(self.options) - known):
            raise ConfigError(
                f"{self.shown}: no option is called {unknown[0]!r} here; known are {', '.join(sorted(known))}"
            )

    def no_cafile(self) -> ConfigError:
        """What to raise where there is no file of the name that the option ``cafile`` has."""
        return ConfigError(
            f"{self.shown}: there is no file {self.options['cafile']}; cafile says whom to trust"
        )


def redis_connection(address: ServerAddress) -> dict[str, Any]:
    """What `redis.Redis` takes to connect there, of an address with one of the `REDIS_SCHEMES`.

    Its options are ``prefix``, which is for the caller, and, over TLS, ``cafile``, a file that need not be there. Raises ConfigError.
    """
    tls = REDIS_SCHEMES[address.scheme]
    address.allow({"prefix", "cafile"} if tls else {"prefix"})
    parts = address.parts
    database = parts.path.strip("/")
    if not parts.hostname or (database and not (database.isascii() and database.isdecimal())):
        raise ConfigError(
            f"{address.shown}: write {address.scheme}://[USER:PASSWORD@]HOST[:PORT][/NUMBER], "
            "with user name and password percent-encoded"
        )
    connection: dict[str, Any] = {
        "host": parts.hostname,
        "port": address.port or _REDIS_PORT,
        "db": int(database or 0),
        "username": address.username,
        "password": address.password,
        "ssl": tls,
    }
    if "cafile" in address.options:
        connection["ssl_ca_certs"] = address.options["cafile"]
    return connection
