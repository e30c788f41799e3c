"""API keys with roles, and the rule for public addresses.

Keys are stored as digests and compared in constant time. Clients send them in the header
``Authorization: Bearer``, or in gRPC metadata of the same name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from headrace.core.api_key import KEY_CHARS_MIN, KeyRing, hash_key
from headrace.core.errors import ConfigError, ForbiddenError


class Role(StrEnum):
    """The permission of a key. ADMIN includes INFER."""

    INFER = "infer"
    """Inference, metadata, health and statistics."""
    ADMIN = "admin"
    """Also the model repository (index, load, unload) and sequences (list, cancel)."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A known key: the SHA-256 digest of its text, and a name for logs."""

    name: str
    role: Role
    digest: bytes

    @classmethod
    def from_text(cls, name: str, role: str, key: str) -> "ApiKey":
        """Return a key from its text.

        Raises:
            ConfigError: The role is unknown, or the key is too short.
        """
        try:
            known = Role(role)
        except ValueError:
            raise ConfigError(f"the role of API key {name!r} must be infer or admin, not {role!r}") from None
        if len(key) < KEY_CHARS_MIN:
            raise ConfigError(
                f"API key {name!r} is too short: at least {KEY_CHARS_MIN} characters are needed"
            )
        return cls(name, known, hash_key(key))


def parse_keys(text: str, where: str) -> tuple[ApiKey, ...]:
    """Return the keys of lines ``ROLE NAME KEY``. Skip empty lines and lines that start with #.

    Raises:
        ConfigError: A line is malformed, or the text has no key.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3:
            raise ConfigError(f"{where}, line {number}: must be ROLE NAME KEY, such as: infer web 9f2c…")
        role, name, key = words
        keys.append(ApiKey.from_text(name, role, key))
    if not keys:
        raise ConfigError(f"{where} has no keys: add lines ROLE NAME KEY")
    return tuple(keys)


class Access:
    """The access rules of a server. Without keys, every client may do everything."""

    def __init__(self, keys: Sequence[ApiKey] = ()) -> None:
        self._keys = KeyRing({k.digest: k for k in keys})
        self.open = not keys
        """True if no key is required."""

    def check(self, authorization: str | None, role: Role) -> str:
        """Return the name of the client's key.

        Raises:
            UnauthenticatedError: The key is missing or unknown.
            ForbiddenError: The key lacks the role.
        """
        if self.open:
            return ""
        known = self._keys.find(authorization)
        if role is Role.ADMIN and known.role is not Role.ADMIN:
            raise ForbiddenError(
                f"API key {known.name!r} has the role {known.role.value}; this request needs admin"
            )
        return known.name


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
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
