"""The TOML file of API keys.

``headrace keys new NAME`` makes a key and prints its lines::

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
    requests_per_s_max = 50             # requests per second to one server; default: no limit
    bytes_per_day_max = 10000000000     # bytes of payloads per day (UTC); default: no limit
    running_max = 16                    # running jobs that it submitted, over all workers; default: no limit

    [keys.shop-app]
    digest = "sha256:…"
    scopes = ["submit", "read"]
    endpoints = ["churn"]               # the key submits to these alone, instead of the lists above

A path in ``inputs`` or ``outputs`` opens that folder of the server to this key.
``https://HOST/PREFIX`` in ``inputs`` permits those web addresses; ``https://`` alone permits every
reachable one. The keys themselves are not stored.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final, cast

from headrace.core.errors import ConfigError
from headrace.jobs.access import (
    INLINE_BYTES_MAX_DEFAULT,
    PENDING_MAX_DEFAULT,
    ApiKey,
    Scope,
    format_digest,
    parse_digest,
    table_name,
)
from headrace.jobs.outbound import OutboundPolicy
from headrace.jobs.paths import UriAllowList

DIGESTS_MAX: Final = 2
"""The number of valid keys under one name: the old and the new one while a key is replaced."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


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
        f"[{table_name(name)}]",
        f'digest = "{format_digest(digest)}"',
        f'tenant = "{tenant or name}"',
        f"scopes = [{listed}]",
    )
    return "".join(f"{line}\n" for line in lines)


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
        self._check_endpoints()
        return ApiKey(
            self._name,
            tenant,
            self._scopes(),
            queues=self._names("queues"),
            models=self._names("models"),
            inputs=self._allow_list("inputs"),
            outputs=self._allow_list("outputs"),
            endpoints=self._names("endpoints"),
            pending_max=self._number("pending_max", PENDING_MAX_DEFAULT, least=1),
            inline_bytes_max=self._number("inline_bytes_max", INLINE_BYTES_MAX_DEFAULT, least=0),
            requests_per_s_max=self._rate("requests_per_s_max"),
            bytes_per_day_max=self._optional_number("bytes_per_day_max", least=1),
            running_max=self._optional_number("running_max", least=0),
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

    def _check_endpoints(self) -> None:
        if "endpoints" not in self._table:
            return
        if not self._names("endpoints"):
            raise self.wrong("endpoints", "must name an endpoint; leave it out for direct submissions")
        beside = sorted({"queues", "models", "outputs"} & self._table.keys())
        if beside:
            raise self.wrong(
                beside[0], "cannot be set beside endpoints, which have their own: remove one of them"
            )
        # Without `models`, such a key could send requests to every model.
        for_models = sorted(self._scopes() & {Scope.INFER, Scope.MODELS})
        if for_models:
            raise self.wrong(
                "scopes", f"{for_models[0]} cannot be used beside endpoints: create another key for models"
            )

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

    def _optional_number(self, setting: str, *, least: int) -> int | None:
        return self._number(setting, 0, least=least) if setting in self._table else None

    def _rate(self, setting: str) -> float | None:
        if setting not in self._table:
            return None
        value = self._table[setting]
        if type(value) not in (int, float) or not 0 < value < inf:
            raise self.wrong(setting, f"must be a number above 0, not {value!r:.80}")
        return float(value)

    def _texts(self, setting: str, raw: object) -> list[str]:
        texts = cast("list[Any]", raw) if isinstance(raw, list) else None
        if texts is None or not all(isinstance(text, str) and text for text in texts):
            raise self.wrong(setting, "must be a list of strings")
        return texts


_SETTINGS: Final = frozenset(
    {
        "digest",
        "tenant",
        "scopes",
        "queues",
        "models",
        "inputs",
        "outputs",
        "pending_max",
        "inline_bytes_max",
        "endpoints",
        "requests_per_s_max",
        "bytes_per_day_max",
        "running_max",
    }
)


def _check_name(location: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{location}: must have up to 64 letters, digits, '.', '_' and '-', "
            "and begin with a letter or digit"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(map(str, names))))
