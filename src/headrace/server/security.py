"""Who may ask what: API keys with roles.

Keys are kept as digests, compared in constant time, and come in the ``Authorization: Bearer`` header, or gRPC metadata of that
name, and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from headrace.core.api_key import KEY_CHARS_MIN, KeyRing, digest_of
from headrace.core.errors import ConfigError, ForbiddenError


class Role(StrEnum):
    """What a key is good for. ADMIN may all that INFER may."""

    INFER = "infer"
    """Inference, metadata, health and statistics."""
    ADMIN = "admin"
    """The model repository: index, load and unload."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that is known here, by the SHA-256 of its text, with a name for logs."""

    name: str
    role: Role
    digest: bytes

    @classmethod
    def of(cls, name: str, role: str, key: str) -> "ApiKey":
        """A key from its text. ConfigError for an unknown role, or a key that could be guessed."""
        try:
            known = Role(role)
        except ValueError:
            raise ConfigError(f"API key {name!r}: a role is infer or admin, not {role!r}") from None
        if len(key) < KEY_CHARS_MIN:
            raise ConfigError(
                f"API key {name!r} is too short: at least {KEY_CHARS_MIN} characters are needed"
            )
        return cls(name, known, digest_of(key))


def parse_keys(text: str, where: str) -> tuple[ApiKey, ...]:
    """Keys from lines ``ROLE NAME KEY``; empty lines and those that begin with # are passed over. ConfigError."""
    keys: list[ApiKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3:
            raise ConfigError(f"{where}, line {number}: a line is ROLE NAME KEY, such as: infer web 9f2c…")
        role, name, key = words
        keys.append(ApiKey.of(name, role, key))
    if not keys:
        raise ConfigError(f"{where} has no key in it")
    return tuple(keys)


class Access:
    """Decides who may do what. Without keys everybody may everything."""

    def __init__(self, keys: Sequence[ApiKey] = ()) -> None:
        self._keys = KeyRing({k.digest: k for k in keys})
        self.open = not keys
        """Whether no key is asked for."""

    def check(self, authorization: str | None, role: Role) -> str:
        """The name of whoever asks; UnauthenticatedError or ForbiddenError when it may not."""
        if self.open:
            return ""
        known = self._keys.find(authorization)
        if role is Role.ADMIN and known.role is not Role.ADMIN:
            raise ForbiddenError(f"API key {known.name!r} has the role {known.role.value}; this needs admin")
        return known.name


def check_bind(host: str, *, guarded: bool, insecure: bool) -> None:
    """ConfigError for an address that others reach, when nothing keeps them out and nobody said that this is meant."""
    if guarded or insecure or is_local(host):
        return
    raise ConfigError(
        f"{host} can be reached by others, and anybody could ask: give --api-keys FILE or --tls-client-ca FILE, "
        "or say --insecure if something else keeps them out"
    )


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
