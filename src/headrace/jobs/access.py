"""Who may do what with jobs: API keys with scopes, a tenant, and what each may name and how much of it.

A file of keys is TOML; ``headrace keys new NAME`` makes a key and its lines::

    [keys.shop-web]
    digest = "sha256:…"                 # or a list of two while a key is being replaced: both are good
    tenant = "shop"                     # default: the key's name
    scopes = ["submit", "read"]         # see `Scope`
    queues = ["default", "night"]       # default: every queue
    models = ["churn"]                  # default: every model
    inputs = ["s3://shop/in"]           # places that its jobs may read, besides what comes with a request; default: none
    outputs = ["s3://shop/out"]         # and write; default: none but headrace's own
    pending_max = 10000                 # jobs of its tenant that may wait when it submits another
    inline_bytes_max = 1048576          # the largest payload that comes with a request

A path in ``inputs`` or ``outputs`` opens that folder of the server to this key. ``https://HOST/PREFIX`` in ``inputs`` lets it name
those web addresses, ``https://`` alone every one that may be reached from here. The keys themselves are kept nowhere.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

from headrace.core.api_key import KeyRing, digest_text, parse_digest
from headrace.core.errors import ConfigError, ForbiddenError, LimitError, QueueFullError
from headrace.jobs.outbound.urls import OutboundPolicy
from headrace.jobs.places import NOTHING, Allowed

PENDING_MAX_DEFAULT: Final = 10_000
INLINE_BYTES_MAX_DEFAULT: Final = 1 << 20
DIGESTS_MAX: Final = 2
"""Live keys under one name: the old and the new, while one replaces the other."""
QUOTA_RETRY_AFTER_S: Final = 10.0
"""When a tenant whose quota is used up may ask again; how fast its jobs are done is not known here."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class Scope(StrEnum):
    """What a key is good for. OPERATE includes READ, ADMIN includes all."""

    SUBMIT = "submit"
    """Submit jobs; cancel, try again and delete its own tenant's."""
    READ = "read"
    """States and results of its own tenant's jobs."""
    OPERATE = "operate"
    """Everybody's jobs: look, cancel, requeue; pause and drain queues."""
    ADMIN = "admin"
    """Everybody's jobs, also to delete them, and whatever else cannot be undone."""
    EVENTS = "events"
    """Tell of objects, which makes jobs as the triggers say: for the store that posts its notices. It names no job."""


_INCLUDED: Final[Mapping[Scope, frozenset[Scope]]] = {
    Scope.SUBMIT: frozenset({Scope.SUBMIT}),
    Scope.READ: frozenset({Scope.READ}),
    Scope.OPERATE: frozenset({Scope.OPERATE, Scope.READ}),
    Scope.ADMIN: frozenset(Scope),
    Scope.EVENTS: frozenset({Scope.EVENTS}),
}


@dataclass(frozen=True, slots=True)
class JobKey:
    """A key that is known here, by its name: whose it is and what it may."""

    name: str
    tenant: str
    scopes: frozenset[Scope]
    queues: frozenset[str] | None = None
    """None is every queue, now and later."""
    models: frozenset[str] | None = None
    """None is every model, now and later."""
    inputs: Allowed = NOTHING
    outputs: Allowed = NOTHING
    pending_max: int = PENDING_MAX_DEFAULT
    inline_bytes_max: int = INLINE_BYTES_MAX_DEFAULT

    def may(self, scope: Scope) -> bool:
        """Whether it has the scope, or one that includes it."""
        return any(scope in _INCLUDED[own] for own in self.scopes)

    @property
    def sees(self) -> str | None:
        """The one tenant whose jobs it sees; None for everybody's. What `JobLedger`'s verbs take as `tenant`."""
        return None if self.may(Scope.OPERATE) else self.tenant

    @property
    def removes(self) -> str | None:
        """The one tenant whose jobs it may delete; None for everybody's."""
        return None if self.may(Scope.ADMIN) else self.tenant

    def require(self, *scopes: Scope) -> None:
        """ForbiddenError unless it has one of these scopes."""
        if not any(map(self.may, scopes)):
            needed = " or ".join(scope.value for scope in scopes)
            raise ForbiddenError(f"{self._called()} lacks the scope {needed}, which this needs")

    def require_queue(self, queue: str) -> None:
        """ForbiddenError for a queue that it may not submit to, whether or not there is one of that name."""
        if self.queues is not None and queue not in self.queues:
            raise ForbiddenError(f"{self._called()} may not use the queue {queue!r:.80}")

    def require_model(self, model: str) -> None:
        """ForbiddenError for a model that it may not use. What stands after an ``@``, its version, makes no difference."""
        name = model.partition("@")[0]
        if self.models is not None and name not in self.models:
            raise ForbiddenError(f"{self._called()} may not use the model {name!r:.80}")

    def require_room(self, pending: int, more: int = 1) -> None:
        """QueueFullError when `more` jobs beside its tenant's `pending` ones are more than may wait."""
        if pending + more > self.pending_max:
            raise QueueFullError(
                f"{pending} jobs of {self.tenant!r} wait, and at most {self.pending_max} may: submit again later",
                retry_after_s=QUOTA_RETRY_AFTER_S,
            )

    def require_inline(self, size_bytes: int) -> None:
        """LimitError for a payload that is too large to come with a request."""
        if size_bytes > self.inline_bytes_max:
            raise LimitError(
                f"a payload of {size_bytes} bytes; at most {self.inline_bytes_max} may come with a request: "
                "put larger ones into a bucket, and name them as input"
            )

    def _called(self) -> str:
        return f"API key {self.name!r}" if self.name else "a request without an API key"


ANYONE: Final = JobKey(name="", tenant="", scopes=frozenset(Scope))
"""Whoever asks where no keys are asked for: all scopes, but no place of anybody's."""


class JobAccess:
    """Decides who asks. Without keys everybody is `anyone`. Immutable, safe from any thread."""

    def __init__(self, keys: Mapping[bytes, JobKey] | None = None, *, anyone: JobKey = ANYONE) -> None:
        self._keys = KeyRing(keys or {})
        self._anyone = anyone
        self.open = not keys
        """Whether no key is asked for."""

    def check(self, authorization: str | None, *scopes: Scope) -> JobKey:
        """Whoever asks, by the ``Authorization`` header. UnauthenticatedError, or ForbiddenError for want of all the scopes."""
        key = self._anyone if self.open else self._keys.find(authorization)
        key.require(*scopes)
        return key


def parse_job_keys(text: str, where: str, *, reserved: Iterable[str] = ()) -> dict[bytes, JobKey]:
    """Keys by their digests, from TOML (see the module). `where` is the file, `reserved` headrace's own places.

    Raises ConfigError, with the file, the key and the setting, for whatever cannot be, and for a file without keys.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: it is no TOML: {error}") from error
    tables = document.pop("keys", {})
    if document:
        raise ConfigError(f"{where}: there is no {_listed(document)}; all keys stand in [keys.NAME]")
    return read_job_keys(tables, where, reserved=reserved)


def read_job_keys(
    tables: Any, where: str, *, reserved: Iterable[str] = (), policy: OutboundPolicy | None = None
) -> dict[bytes, JobKey]:
    """Keys by their digests, of the tables below ``keys`` of a TOML document. Raises as `parse_job_keys`.

    `policy` says which web addresses can be inputs at all.
    """
    if not isinstance(tables, dict) or not tables:
        raise ConfigError(f"{where}: there is no key in it; make one with: headrace keys new NAME")
    own = tuple(reserved)
    found: dict[bytes, JobKey] = {}
    for name, table in cast("dict[str, Any]", tables).items():
        reader = _Table(where, name, table, own, policy or OutboundPolicy())
        key = reader.key()
        for digest in reader.digests():
            if digest in found:
                raise reader.wrong("digest", f"the key of [keys.{found[digest].name}] is this one too")
            found[digest] = key
    return found


def key_lines(name: str, digest: bytes, *, tenant: str = "", scopes: Sequence[Scope]) -> str:
    """The lines of a new key for such a file. ConfigError for a name that none can have."""
    _check_name(f"key {name!r:.80}", name)
    if tenant:
        _check_name(f"tenant {tenant!r:.80}", tenant)
    if not scopes:
        raise ConfigError(f"key {name!r}: a key without any scope is good for nothing")
    shown = name if _BARE_KEY.fullmatch(name) else f'"{name}"'
    listed = ", ".join(f'"{scope}"' for scope in dict.fromkeys(scopes))
    return f'[keys.{shown}]\ndigest = "{digest_text(digest)}"\ntenant = "{tenant or name}"\nscopes = [{listed}]\n'


class _Table:
    """One ``[keys.NAME]``, read setting by setting."""

    def __init__(
        self, where: str, name: str, table: object, reserved: tuple[str, ...], policy: OutboundPolicy
    ) -> None:
        self._place = f"{where}: [keys.{name}]"
        self._name = name
        self._reserved = reserved
        self._policy = policy
        if not isinstance(table, dict):
            raise ConfigError(f"{self._place} must be a table")
        self._table = cast("dict[str, Any]", table)
        unknown = self._table.keys() - _SETTINGS
        if unknown:
            raise ConfigError(f"{self._place} has no {_listed(unknown)} (it has {_listed(_SETTINGS)})")
        _check_name(self._place, name)

    def key(self) -> JobKey:
        tenant = self._table.get("tenant", self._name)
        if not isinstance(tenant, str) or not _NAME.fullmatch(tenant):
            raise self.wrong(
                "tenant", f"a name of letters, digits, '.', '_' and '-' is needed, not {tenant!r:.80}"
            )
        return JobKey(
            self._name,
            tenant,
            self._scopes(),
            self._names("queues"),
            self._names("models"),
            self._places("inputs"),
            self._places("outputs"),
            self._number("pending_max", PENDING_MAX_DEFAULT, least=1),
            self._number("inline_bytes_max", INLINE_BYTES_MAX_DEFAULT, least=0),
        )

    def digests(self) -> list[bytes]:
        given = self._table.get("digest")
        texts = [given] if isinstance(given, str) else self._texts("digest", given)
        if not 1 <= len(texts) <= DIGESTS_MAX:
            raise self.wrong(
                "digest", f"one digest is needed, or {DIGESTS_MAX} while a key is being replaced"
            )
        digests = [parse_digest(text) for text in texts]
        # What stands there may be the key itself, by mistake: it is not repeated.
        known = [digest for digest in digests if digest is not None]
        if len(known) < len(digests):
            raise self.wrong(
                "digest", "it must be sha256: and 64 digits from 0 to f, as headrace keys new prints it"
            )
        return known

    def wrong(self, setting: str, why: str) -> ConfigError:
        return ConfigError(f"{self._place} {setting}: {why}")

    def _scopes(self) -> frozenset[Scope]:
        texts = self._texts("scopes", self._table.get("scopes"))
        known = set(Scope)
        unknown = [text for text in texts if text not in known]
        if unknown or not texts:
            raise self.wrong("scopes", f"some of {_listed(known)} are needed, not {unknown!r:.80}")
        return frozenset(map(Scope, texts))

    def _names(self, setting: str) -> frozenset[str] | None:
        return frozenset(self._texts(setting, self._table[setting])) if setting in self._table else None

    def _places(self, setting: str) -> Allowed:
        texts = self._texts(setting, self._table.get(setting, []))
        policy = self._policy if setting == "inputs" else None
        try:
            return Allowed.read(texts, reserved=self._reserved, policy=policy)
        except ConfigError as error:
            raise self.wrong(setting, str(error)) from error

    def _number(self, setting: str, default: int, *, least: int) -> int:
        value = self._table.get(setting, default)
        if type(value) is not int or value < least:
            raise self.wrong(setting, f"a whole number from {least} is needed, not {value!r:.80}")
        return value

    def _texts(self, setting: str, given: object) -> list[str]:
        texts = cast("list[Any]", given) if isinstance(given, list) else None
        if texts is None or not all(isinstance(text, str) and text for text in texts):
            raise self.wrong(setting, "a list of texts is needed")
        return texts


_SETTINGS: Final = frozenset(
    {"digest", "tenant", "scopes", "queues", "models", "inputs", "outputs", "pending_max", "inline_bytes_max"}
)


def _check_name(place: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{place}: a name has up to 64 letters, digits, '.', '_' and '-', and begins with a letter or digit"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(map(str, names))))
