"""API keys of models and jobs: scopes, a tenant, the URIs and models that a key may name, and quotas.

A file of keys is TOML; ``headrace keys new NAME`` makes a key and prints its lines::

    [keys.shop-web]
    digest = "sha256:…"                 # or a list of two while a key is replaced: both are valid
    tenant = "shop"                     # default: the key's name
    scopes = ["submit", "read"]         # see `Scope`; "infer" for requests to models
    queues = ["default", "night"]       # default: every queue
    models = ["churn"]                  # default: every model
    inputs = ["s3://shop/in"]           # URIs that its jobs may read; default: submitted payloads
    outputs = ["s3://shop/out"]         # URIs that they may write; default: headrace's own store
    pending_max = 10000                 # pending jobs of its tenant
    inline_bytes_max = 1048576          # bytes of a payload that is sent with a submission

A path in ``inputs`` or ``outputs`` opens that folder of the server to this key.
``https://HOST/PREFIX`` in ``inputs`` permits those web addresses; ``https://`` alone permits every
reachable one. The keys themselves are not stored.
"""

import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, cast

from headrace.core.errors import ConfigError, ForbiddenError, LimitError, QueueFullError, UnauthenticatedError
from headrace.jobs.outbound import OutboundPolicy
from headrace.jobs.paths import ALLOW_NOTHING, UriAllowList

PENDING_MAX_DEFAULT: Final = 10_000
INLINE_BYTES_MAX_DEFAULT: Final = 1 << 20
DIGESTS_MAX: Final = 2
"""The number of valid keys under one name: the old and the new one while a key is replaced."""
QUOTA_RETRY_AFTER_S: Final = 10.0
"""The suggested retry delay of a tenant with an exhausted quota; the actual time is unknown."""

KEY_CHARS_MIN: Final = 16
KEY_PREFIX: Final = "hr_"
"""Prefix of every generated key, by which leaked keys can be recognised."""
_KEY_BYTES: Final = 24
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLAIN_PREFIX: Final = re.compile(r"[a-z0-9]+://[A-Za-z0-9._/=-]{1,200}/")
"""Prefixes that a shell, a message and a TOML file show unchanged."""
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def new_key() -> str:
    """Return a new random key: 192 random bits after `KEY_PREFIX`."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def hash_key(key: str) -> bytes:
    """Return the SHA-256 digest of a key.

    Salts and slow hashes protect passwords that people choose; these keys are random.
    """
    # Surrogates come from headers that are not UTF-8. Such a key is unknown, not an error.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def format_digest(digest: bytes) -> str:
    """Return a digest as text for files: ``sha256:`` and 64 hexadecimal digits."""
    return f"sha256:{digest.hex()}"


def parse_digest(text: str) -> bytes | None:
    """Return the digest of a `format_digest` text in lower case, or None for any other text."""
    match = _DIGEST.fullmatch(text)
    return bytes.fromhex(match[1]) if match else None


class Scope(StrEnum):
    """A permission of an API key. OPERATE includes READ, MODELS includes INFER, ADMIN includes all."""

    SUBMIT = "submit"
    """Submit jobs; cancel, retry and delete jobs of its own tenant."""
    READ = "read"
    """Read the states and results of its own tenant's jobs."""
    OPERATE = "operate"
    """Read, cancel and requeue the jobs of all tenants; pause and drain queues."""
    ADMIN = "admin"
    """All operations on models and on the jobs of all tenants, including deletion."""
    EVENTS = "events"
    """Report objects, from which triggers create jobs: for the store that posts notices."""
    INFER = "infer"
    """Send requests to models; read their metadata and statistics."""
    MODELS = "models"
    """Load and unload models; list and cancel sequences."""


_INCLUDED: Final[Mapping[Scope, frozenset[Scope]]] = {
    Scope.SUBMIT: frozenset({Scope.SUBMIT}),
    Scope.READ: frozenset({Scope.READ}),
    Scope.OPERATE: frozenset({Scope.OPERATE, Scope.READ}),
    Scope.ADMIN: frozenset(Scope),
    Scope.EVENTS: frozenset({Scope.EVENTS}),
    Scope.INFER: frozenset({Scope.INFER}),
    Scope.MODELS: frozenset({Scope.MODELS, Scope.INFER}),
}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A known API key: its name, its tenant, and its permissions."""

    name: str
    tenant: str
    scopes: frozenset[Scope]
    queues: frozenset[str] | None = None
    """None permits every queue, also future ones."""
    models: frozenset[str] | None = None
    """None permits every model, also future ones."""
    inputs: UriAllowList = ALLOW_NOTHING
    outputs: UriAllowList = ALLOW_NOTHING
    pending_max: int = PENDING_MAX_DEFAULT
    inline_bytes_max: int = INLINE_BYTES_MAX_DEFAULT
    granted: frozenset[Scope] = field(init=False, repr=False, compare=False)
    """The scopes of the key, and those that they include."""

    def __post_init__(self) -> None:
        granted = frozenset[Scope]().union(*(_INCLUDED[own] for own in self.scopes))
        object.__setattr__(self, "granted", granted)

    @property
    def visible_tenant(self) -> str | None:
        """The only tenant whose jobs the key may see; None for all.

        `JobLedger` takes it as `tenant`.
        """
        return None if Scope.OPERATE in self.granted else self.tenant

    @property
    def deletable_tenant(self) -> str | None:
        """The only tenant whose jobs the key may delete; None for all."""
        return None if Scope.ADMIN in self.granted else self.tenant

    def require(self, *scopes: Scope) -> None:
        """Raise ForbiddenError unless the key has one of these scopes."""
        if self.granted.isdisjoint(scopes):
            needed = " or ".join(scope.value for scope in scopes)
            raise ForbiddenError(f"{self._display_name()} lacks the required scope {needed}")

    def require_queue(self, queue: str) -> None:
        """Raise ForbiddenError if the key may not submit to this queue, whether or not it exists."""
        if self.queues is not None and queue not in self.queues:
            raise ForbiddenError(f"{self._display_name()} may not use the queue {queue!r:.80}")

    def permits_model(self, model: str) -> bool:
        """Return True if the key may use this model. A version after ``@`` does not matter."""
        return self.models is None or model.partition("@")[0] in self.models

    def require_model(self, model: str) -> None:
        """Raise ForbiddenError if the key may not use this model, whether or not it exists."""
        if not self.permits_model(model):
            name = model.partition("@")[0]
            raise ForbiddenError(f"{self._display_name()} may not use the model {name!r:.80}")

    def require_input(self, uri: str) -> str:
        """Return the normalized URI of an input.

        Raise ForbiddenError if the key may not read it, with the setting that would permit it, and
        ConfigError for a URI that nobody may name.
        """
        return self.inputs.require(uri, "input", self._advice("input", uri))

    def require_output(self, uri: str) -> str:
        """Return the normalized URI of an output; see `require_input` for the errors."""
        return self.outputs.require(uri, "output", self._advice("output", uri))

    def _advice(self, role: str, uri: str) -> str:
        """Return the setting with which the server's operator permits a location."""
        prefix = f"{uri.rpartition('/')[0]}/"
        if not _PLAIN_PREFIX.fullmatch(prefix):
            prefix = "PREFIX"
        if self.name:
            return f"add {prefix} to {role}s of [{_table_name(self.name)}] in the server's --config file"
        return (
            f"start headrace up with --allow-{role} {prefix}, "
            f"or add it to {role}s of [anyone] in its --config file"
        )

    def require_quota(self, pending: int, more: int = 1) -> None:
        """Raise QueueFullError if `more` jobs besides the tenant's `pending` ones exceed its quota."""
        if pending + more > self.pending_max:
            raise QueueFullError(
                f"{pending} pending jobs of {self.tenant!r} and {more} more exceed its limit of "
                f"{self.pending_max}: submit again later",
                retry_after_s=QUOTA_RETRY_AFTER_S,
            )

    def require_inline(self, size_bytes: int) -> None:
        """Raise LimitError for a payload that is too large to be sent with a submission."""
        if size_bytes > self.inline_bytes_max:
            raise LimitError(
                f"a payload of {size_bytes} bytes exceeds the {self.inline_bytes_max} permitted in a "
                "request: write it to a bucket and name it as input_uri"
            )

    def _display_name(self) -> str:
        return f"API key {self.name!r}" if self.name else "a request without an API key"


ANONYMOUS_KEY: Final = ApiKey(name="", tenant="", scopes=frozenset(Scope))
"""The key of all clients of a server without keys: all scopes, but no URIs."""


class Access:
    """The authentication of clients, by the keys' digests.

    Without keys every client is `anonymous`. Immutable, thread-safe.
    """

    def __init__(
        self, keys: Mapping[bytes, ApiKey] | None = None, *, anonymous: ApiKey = ANONYMOUS_KEY
    ) -> None:
        self._keys = {digest: (digest, key) for digest, key in (keys or {}).items()}
        self._anonymous = anonymous
        self.open = not keys
        """True if no key is required."""

    def check(self, authorization: str | None, *scopes: Scope) -> ApiKey:
        """Return the key of an ``Authorization`` header, ``Bearer KEY``.

        Raises:
            UnauthenticatedError: The header has no known key. The message never quotes the key.
            ForbiddenError: The key has none of the scopes.
        """
        key = self._anonymous if self.open else self.identify(authorization)[1]
        key.require(*scopes)
        return key

    def find(self, digest: bytes) -> ApiKey | None:
        """Return the key with this digest, or None."""
        found = self._keys.get(digest)
        return None if found is None else found[1]

    def identify(self, authorization: str | None) -> tuple[bytes, ApiKey]:
        """Return the digest and the key of an ``Authorization`` header, ``Bearer KEY``.

        Raise UnauthenticatedError as `check` does, also without keys.
        """
        if not authorization:
            raise UnauthenticatedError("the API key is missing: send it as Authorization: Bearer KEY")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise UnauthenticatedError("the Authorization header has no key: send Bearer KEY")
        digest = hash_key(key.strip())
        # Lookup by digest keeps the timing independent of the key. The second comparison is a precaution.
        found = self._keys.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            raise UnauthenticatedError("unknown API key")
        return found


def parse_keys(text: str, where: str, *, reserved: Iterable[str] = ()) -> dict[bytes, ApiKey]:
    """Parse keys from TOML; return them by their digests.

    The module docstring shows the format. `where` is the file's name; `reserved` are headrace's own
    locations. Raise ConfigError, with the file, key and setting, for invalid values and for a file
    without keys.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: invalid TOML: {error}") from error
    tables = document.pop("keys", {})
    if document:
        raise ConfigError(f"{where}: unknown {_listed(document)}; write all keys as [keys.NAME]")
    return read_keys(tables, where, reserved=reserved)


def read_keys(
    tables: Any, where: str, *, reserved: Iterable[str] = (), policy: OutboundPolicy | None = None
) -> dict[bytes, ApiKey]:
    """Read keys from the tables below ``keys`` of a TOML document; return them by their digests.

    `policy` limits the web addresses that can be inputs. Raises ConfigError as `parse_keys`
    does.
    """
    if not isinstance(tables, dict) or not tables:
        raise ConfigError(f"{where}: the file has no key; create one with: headrace keys new NAME")
    own = tuple(reserved)
    found: dict[bytes, ApiKey] = {}
    for name, table in cast("dict[str, Any]", tables).items():
        reader = _Table(where, name, table, own, policy or OutboundPolicy())
        key = reader.key()
        for digest in reader.digests():
            if digest in found:
                raise reader.wrong("digest", f"the same key as [keys.{found[digest].name}]")
            found[digest] = key
    return found


def key_lines(name: str, digest: bytes, *, tenant: str = "", scopes: Sequence[Scope]) -> str:
    """Return the TOML lines of a new key. Raise ConfigError for an invalid name."""
    _check_name(f"key {name!r:.80}", name)
    if tenant:
        _check_name(f"tenant {tenant!r:.80}", tenant)
    if not scopes:
        raise ConfigError(f"key {name!r}: a key needs at least one scope")
    listed = ", ".join(f'"{scope}"' for scope in dict.fromkeys(scopes))
    lines = (
        f"[{_table_name(name)}]",
        f'digest = "{format_digest(digest)}"',
        f'tenant = "{tenant or name}"',
        f"scopes = [{listed}]",
    )
    return "".join(f"{line}\n" for line in lines)


def _table_name(name: str) -> str:
    return f"keys.{name}" if _BARE_KEY.fullmatch(name) else f'keys."{name}"'


JobKey = ApiKey  # the earlier name, for one release
JobAccess = Access  # the earlier name, for one release


class _Table:
    """One ``[keys.NAME]``, read setting by setting."""

    def __init__(
        self, where: str, name: str, table: object, reserved: tuple[str, ...], policy: OutboundPolicy
    ) -> None:
        self._location = f"{where}: [keys.{name}]"
        self._name = name
        self._reserved = reserved
        self._policy = policy
        if not isinstance(table, dict):
            raise ConfigError(f"{self._location} must be a table")
        self._table = cast("dict[str, Any]", table)
        unknown = self._table.keys() - _SETTINGS
        if unknown:
            raise ConfigError(
                f"{self._location} unknown setting {_listed(unknown)} (known: {_listed(_SETTINGS)})"
            )
        _check_name(self._location, name)

    def key(self) -> ApiKey:
        tenant = self._table.get("tenant", self._name)
        if not isinstance(tenant, str) or not _NAME.fullmatch(tenant):
            raise self.wrong(
                "tenant", f"must be a name of letters, digits, '.', '_' and '-', not {tenant!r:.80}"
            )
        return ApiKey(
            self._name,
            tenant,
            self._scopes(),
            self._names("queues"),
            self._names("models"),
            self._allow_list("inputs"),
            self._allow_list("outputs"),
            self._number("pending_max", PENDING_MAX_DEFAULT, least=1),
            self._number("inline_bytes_max", INLINE_BYTES_MAX_DEFAULT, least=0),
        )

    def digests(self) -> list[bytes]:
        raw = self._table.get("digest")
        texts = [raw] if isinstance(raw, str) else self._texts("digest", raw)
        if not 1 <= len(texts) <= DIGESTS_MAX:
            raise self.wrong("digest", f"must be one digest, or {DIGESTS_MAX} while a key is replaced")
        digests = [parse_digest(text) for text in texts]
        # The value may be the key itself by mistake, so it is not repeated.
        known = [digest for digest in digests if digest is not None]
        if len(known) < len(digests):
            raise self.wrong(
                "digest", "must be sha256: and 64 hexadecimal digits, as printed by headrace keys new"
            )
        return known

    def wrong(self, setting: str, why: str) -> ConfigError:
        return ConfigError(f"{self._location} {setting}: {why}")

    def _scopes(self) -> frozenset[Scope]:
        texts = self._texts("scopes", self._table.get("scopes"))
        known = set(Scope)
        unknown = [text for text in texts if text not in known]
        if unknown or not texts:
            raise self.wrong("scopes", f"must be some of {_listed(known)}, not {unknown!r:.80}")
        return frozenset(map(Scope, texts))

    def _names(self, setting: str) -> frozenset[str] | None:
        return frozenset(self._texts(setting, self._table[setting])) if setting in self._table else None

    def _allow_list(self, setting: str) -> UriAllowList:
        texts = self._texts(setting, self._table.get(setting, []))
        policy = self._policy if setting == "inputs" else None
        try:
            return UriAllowList.read(texts, reserved=self._reserved, policy=policy)
        except ConfigError as error:
            raise self.wrong(setting, str(error)) from error

    def _number(self, setting: str, default: int, *, least: int) -> int:
        value = self._table.get(setting, default)
        if type(value) is not int or value < least:
            raise self.wrong(setting, f"must be a whole number from {least}, not {value!r:.80}")
        return value

    def _texts(self, setting: str, raw: object) -> list[str]:
        texts = cast("list[Any]", raw) if isinstance(raw, list) else None
        if texts is None or not all(isinstance(text, str) and text for text in texts):
            raise self.wrong(setting, "must be a list of strings")
        return texts


_SETTINGS: Final = frozenset(
    {"digest", "tenant", "scopes", "queues", "models", "inputs", "outputs", "pending_max", "inline_bytes_max"}
)


def _check_name(location: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{location}: must have up to 64 letters, digits, '.', '_' and '-', "
            "and begin with a letter or digit"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(map(str, names))))
