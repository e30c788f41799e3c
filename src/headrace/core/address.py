"""Server addresses in settings: parsing, validation, and a form without secrets for messages.

No name is looked up.
"""

from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.core.errors import ConfigError

REDIS_SCHEMES: Final = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
"""URL schemes of Redis and Valkey, and whether each uses TLS."""
_REDIS_PORT: Final = 6379


class ServerAddress:
    """A parsed address ``SCHEME://[USER:PASSWORD@]HOST[:PORT][/PATH][?OPTION=VALUE&...]``.

    No error message shows the user or the password.

    Args:
        text: The address.
        accepted_forms: The address forms to suggest in the error message.

    Raises:
        ConfigError: The host, the port or an option cannot be read.
    """

    def __init__(self, text: str, accepted_forms: str) -> None:
        try:
            self.parts = parts = urlsplit(text)
            self.port = parts.port
        except ValueError:
            # The original message may quote the password.
            raise ConfigError(
                f"invalid server address: its host or port cannot be read; write {accepted_forms}"
            ) from None
        self.scheme = parts.scheme
        # A password with an unencoded slash continues in the path.
        self.redacted = f"{parts.scheme}://{(parts.netloc + parts.path).rpartition('@')[2]}"
        """The address without user, password and options, safe for messages."""
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        self.options = dict(pairs)
        if len(self.options) < len(pairs):
            raise ConfigError(f"{self.redacted}: an option is repeated")
        if empty := [name for name, value in pairs if not value]:
            raise ConfigError(f"{self.redacted}: the option {empty[0]!r} has no value")

    @property
    def username(self) -> str | None:
        """Decoded user name, or None if absent or empty."""
        return unquote(self.parts.username or "") or None

    @property
    def password(self) -> str | None:
        """Decoded password, or None if absent or empty."""
        return unquote(self.parts.password or "") or None

    def require_known_options(self, known: set[str]) -> None:
        """Raise ConfigError if the address has an option that is not in `known`."""
        if unknown := sorted(set(self.options) - known):
            raise ConfigError(
                f"{self.redacted}: unknown option {unknown[0]!r}; "
                f"known options are {', '.join(sorted(known))}"
            )

    def missing_cafile_error(self) -> ConfigError:
        """Return the error for an option ``cafile`` that names no file."""
        return ConfigError(
            f"{self.redacted}: cafile {self.options['cafile']} does not exist; "
            "name a file of trusted certificates"
        )


def redis_options(address: ServerAddress) -> dict[str, Any]:
    """Return the arguments of `redis.Redis` for an address with one of the `REDIS_SCHEMES`.

    The allowed options are ``prefix``, which the caller reads, and, over TLS, ``cafile``. This
    function does not check the file.

    Raises:
        ConfigError: The address has no host, a bad database number, or an unknown option.
    """
    tls = REDIS_SCHEMES[address.scheme]
    address.require_known_options({"prefix", "cafile"} if tls else {"prefix"})
    parts = address.parts
    database = parts.path.strip("/")
    if not parts.hostname or (database and not (database.isascii() and database.isdecimal())):
        raise ConfigError(
            f"{address.redacted}: invalid address; "
            f"write {address.scheme}://[USER:PASSWORD@]HOST[:PORT][/NUMBER], "
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
