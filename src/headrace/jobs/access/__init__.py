"""API keys of models and jobs: scopes, a tenant, the URIs and models that a key may name, and limits."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from headrace.core.clock import Clock
from headrace.core.errors import ForbiddenError, LimitError, QueueFullError, UnauthenticatedError
from headrace.jobs.access.limits import RequestLimiter
from headrace.jobs.paths import ALLOW_NOTHING, UriAllowList

PENDING_MAX_DEFAULT: Final = 10_000
INLINE_BYTES_MAX_DEFAULT: Final = 1 << 20
QUOTA_RETRY_AFTER_S: Final = 10.0
"""The suggested retry delay of a tenant with an exhausted quota; the actual time is unknown."""

KEY_CHARS_MIN: Final = 16
KEY_PREFIX: Final = "hr_"
"""Prefix of every generated key, by which leaked keys can be recognised."""
_KEY_BYTES: Final = 24
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
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
    """A permission of an API key.

    OPERATE includes READ and MONITOR, MODELS includes INFER, and ADMIN includes all.
    """

    SUBMIT = "submit"
    """Submit jobs; cancel, retry and delete jobs of its own tenant."""
    READ = "read"
    """Read the states and results of its own tenant's jobs, and their numbers by queue."""
    MONITOR = "monitor"
    """Read the settings and the numbers of jobs of all queues, the workers with their pools, and the
    statistics and numbers of instances of models.
    """
    OPERATE = "operate"
    """Read, cancel and requeue the jobs of all tenants; pause and drain queues; drain workers."""
    ADMIN = "admin"
    """All operations on models and on the jobs of all tenants, including deletion."""
    EVENTS = "events"
    """Report objects, from which triggers create jobs: for the store that posts notices."""
    INFER = "infer"
    """Send requests to models; read their metadata."""
    MODELS = "models"
    """Load and unload models; change their numbers of instances; read their statistics; list and cancel
    sequences.
    """


CHANGE_SCOPES: Final = (Scope.SUBMIT, Scope.OPERATE)
"""The scopes that may cancel, retry or requeue a job, or deliver its notifications again."""
_INCLUDED: Final[Mapping[Scope, frozenset[Scope]]] = {
    Scope.SUBMIT: frozenset({Scope.SUBMIT}),
    Scope.READ: frozenset({Scope.READ}),
    Scope.MONITOR: frozenset({Scope.MONITOR}),
    Scope.OPERATE: frozenset({Scope.OPERATE, Scope.READ, Scope.MONITOR}),
    Scope.ADMIN: frozenset(Scope),
    Scope.EVENTS: frozenset({Scope.EVENTS}),
    Scope.INFER: frozenset({Scope.INFER}),
    Scope.MODELS: frozenset({Scope.MODELS, Scope.INFER}),
}


_OPERATOR_TARGETS: Final = ("receiver", "endpoint", "sns", "email")
"""The members of a ``notify`` entry that name a target of the server's operator; ``endpoint`` is the
earlier name of ``receiver``.
"""
_LISTED_MAX: Final = 20


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
    endpoints: frozenset[str] | None = None
    """The only endpoints that the key may submit to. None permits direct submissions, within the
    limits above.
    """
    requests_per_s_max: float | None = None
    """None does not limit requests, of jobs and of models; see `Access.admit`."""
    bytes_per_day_max: int | None = None
    """None does not limit the bytes of payloads that the job server receives; see `jobs.usage`."""
    running_max: int | None = None
    """None does not limit the running jobs that the key submitted; see `headrace.jobs.lanes`."""
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
    def counted_tenant(self) -> str | None:
        """The only tenant whose jobs the key may count, and whose queues it may list; None for all.

        `JobLedger.counts` takes it as `tenant`.
        """
        return None if Scope.MONITOR in self.granted else self.tenant

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

    def choose_endpoint(self, name: str) -> str:
        """Return the endpoint of a submission that names `name`; "" for a direct submission.

        A key with one endpoint need not name it. Raise ForbiddenError for an endpoint that the key may
        not use, whether or not it exists, and if a key with several endpoints names none.
        """
        if self.endpoints is None:
            if name and Scope.OPERATE not in self.granted:
                raise ForbiddenError(
                    f"{self._display_name()} may not use the endpoint {name!r:.80}: leave it out, or ask for "
                    f"a key with endpoints = [{name!r:.80}]"
                )
            return name
        if not name and len(self.endpoints) == 1:
            return next(iter(self.endpoints))
        if name not in self.endpoints:
            wrong = f"may not use the endpoint {name!r:.80}" if name else "must name an endpoint"
            raise ForbiddenError(f"{self._display_name()} {wrong}; its endpoints: {_listed(self.endpoints)}")
        return name

    def sees_endpoint(self, name: str) -> bool:
        """Return True if the key may see this endpoint: a granted one, or all with `operate`."""
        return Scope.OPERATE in self.granted or (self.endpoints is not None and name in self.endpoints)

    def require_targets(self, notify: Sequence[Mapping[str, Any]]) -> None:
        """Raise ForbiddenError for a notification target that a direct submission may not name.

        Without `operate`, these are webhooks only: the server signs, mails and publishes to other
        targets in the name of its operator.
        """
        if Scope.OPERATE in self.granted:
            return
        for entry in notify:
            kind = next((kind for kind in _OPERATOR_TARGETS if kind in entry), "")
            if kind:
                raise ForbiddenError(
                    f"notify: {self._display_name()} may not name the target {kind!r}, only webhooks: "
                    "ask for an endpoint that notifies this target, and for a key with this endpoint"
                )

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
            return f"add {prefix} to {role}s of [{table_name(self.name)}] in the server's --config file"
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

    Without keys every client is `anonymous`. Thread-safe. `clock` measures requests per second.
    """

    def __init__(
        self,
        keys: Mapping[bytes, ApiKey] | None = None,
        *,
        anonymous: ApiKey = ANONYMOUS_KEY,
        clock: Clock | None = None,
    ) -> None:
        self._keys = {digest: (digest, key) for digest, key in (keys or {}).items()}
        rates = ((key.name, key.requests_per_s_max) for key in (keys or {}).values())
        self._requests = RequestLimiter({name: rate for name, rate in rates if rate is not None}, clock)
        self._anonymous = anonymous
        self._by_name = {key.name: key for key in (keys or {}).values()} or {anonymous.name: anonymous}
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

    def admit(self, key: ApiKey) -> None:
        """Count a request of a key. Raise OverloadedError if it exceeds `requests_per_s_max`.

        Each process counts for itself. `check` counts nothing.
        """
        if key.requests_per_s_max is not None:
            self._requests.admit(key.name)

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """All keys, by name."""
        return tuple(sorted({key for _, key in self._keys.values()}, key=lambda key: key.name))

    def other_submitters(self, tenant: str) -> tuple[ApiKey, ...]:
        """Return the keys that submit jobs of other tenants, without those of operators."""
        return tuple(
            key
            for key in self.keys
            if key.tenant != tenant and Scope.SUBMIT in key.granted and Scope.OPERATE not in key.granted
        )

    def named(self, name: str) -> ApiKey | None:
        """Return the key of this name, or None. Without keys, only `anonymous` has a name."""
        return self._by_name.get(name)

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


def table_name(name: str) -> str:
    """Return the name of a key's table in a file, with quotes where TOML needs them."""
    return f"keys.{name}" if _BARE_KEY.fullmatch(name) else f'keys."{name}"'


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return (", ".join(ordered[:_LISTED_MAX]) or "none") + (", …" if len(ordered) > _LISTED_MAX else "")


JobKey = ApiKey  # the earlier name, for one release
JobAccess = Access  # the earlier name, for one release
