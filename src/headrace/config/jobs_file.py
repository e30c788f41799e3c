"""The file that says how jobs are kept: keys, who is told, what fires, how queues are bounded, where may be gone.

::

    [keys.web]                        # see `headrace keys new`; without any key, everybody is asked for none
    digest = "sha256:…"
    scopes = ["submit", "read"]
    inputs = ["s3://bucket/in"]
    outputs = ["s3://bucket/out"]

    [anyone]                          # without keys: places that whoever asks may name
    inputs = ["s3://bucket/in"]

    [queues.default]
    pending_max = 10000

    [[triggers]]
    name = "incoming"
    prefix = "s3://bucket/in/"
    suffix = ".csv"
    model = "churn"
    output = "s3://bucket/out/"

    [endpoints.billing]               # whom jobs tell by name: {"endpoint": "billing"}
    webhook = "https://billing.example.com/hook"
    secret = "whsec_…"

    [smtp]
    host = "mail.example.com"
    sender = "jobs@example.com"

    [outbound]                        # what webhooks and https inputs may reach beside global addresses
    plain_http = false
    ports = [443]
    networks = ["10.0.0.0/8"]

    [vendor]                          # the vendor's asynchronous door
    output_uri = "s3://bucket/async/"
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from headrace.core.errors import ConfigError
from headrace.jobs.access import ANYONE, JobAccess, JobKey, read_job_keys
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.notifier import Target
from headrace.jobs.notifiers.email import SmtpSettings
from headrace.jobs.outbound.addresses import network
from headrace.jobs.outbound.urls import PORTS, OutboundPolicy
from headrace.jobs.places import Allowed
from headrace.jobs.subscription import read_subscriptions
from headrace.jobs.trigger import Triggers, read_triggers
from headrace.server.jobs.vendor import VendorSettings

_TABLES: Final = ("keys", "anyone", "queues", "triggers", "endpoints", "smtp", "outbound", "vendor")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class JobsFile:
    """What the file says; what it does not say is as by default."""

    access: JobAccess = field(default_factory=JobAccess)
    queues: tuple[QueueSettings, ...] = ()
    triggers: Triggers | None = None
    endpoints: tuple[Target, ...] = ()
    smtp: SmtpSettings | None = None
    outbound: OutboundPolicy = field(default_factory=OutboundPolicy)
    vendor: VendorSettings | None = None


def read_jobs_file(path: Path, *, store_uri: str) -> JobsFile:
    """Read it. `store_uri` is headrace's own store, which no key may name.

    Raises ConfigError with the file, the table and the key for whatever cannot be.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings of jobs in {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: it is no TOML: {error}") from error
    unknown = sorted(document.keys() - set(_TABLES))
    if unknown:
        raise ConfigError(f"{path}: there is no {unknown[0]!r} (there are {', '.join(_TABLES)})")
    try:
        return _jobs_file(document, str(path), store_uri)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error


def _jobs_file(document: Mapping[str, Any], where: str, store_uri: str) -> JobsFile:
    outbound = _outbound(_table(document, "outbound"))
    vendor = _made(VendorSettings, _table(document, "vendor"), "vendor") if "vendor" in document else None
    outputs = [store_uri] if store_uri.startswith("s3://") else []
    return JobsFile(
        access=_access(document, where, store_uri),
        queues=tuple(
            _made(QueueSettings, {**_table(tables, name), "name": name}, f"queues.{name}")
            for tables in [_table(document, "queues")]
            for name in tables
        ),
        triggers=_triggers(document, outputs) if "triggers" in document else None,
        endpoints=_endpoints(_table(document, "endpoints"), outbound),
        smtp=_made(SmtpSettings, _table(document, "smtp"), "smtp") if "smtp" in document else None,
        outbound=outbound,
        vendor=vendor,
    )


def _access(document: Mapping[str, Any], where: str, store_uri: str) -> JobAccess:
    if "keys" in document:
        if "anyone" in document:
            raise ConfigError("anyone: where there are keys, nobody is anyone: leave one of the two out")
        return JobAccess(read_job_keys(document["keys"], where, reserved=[store_uri]))
    return JobAccess(anyone=anyone(**_places(_table(document, "anyone"))))


def anyone(*, inputs: Iterable[str] = (), outputs: Iterable[str] = ()) -> JobKey:
    """Whoever asks, where no keys are asked for: what they may name. ConfigError for what cannot be named."""
    return JobKey(
        name=ANYONE.name,
        tenant=ANYONE.tenant,
        scopes=ANYONE.scopes,
        inputs=_allowed(inputs),
        outputs=_allowed(outputs),
    )


def _allowed(places: Iterable[str]) -> Allowed:
    """Prefixes of buckets, and folders of this machine, by their absolute paths."""
    named = tuple(places)
    return Allowed.of(
        [place for place in named if not place.startswith("/")],
        local_roots=[place for place in named if place.startswith("/")],
    )


def _places(table: Mapping[str, Any]) -> dict[str, list[str]]:
    for name in table:
        if name not in {"inputs", "outputs"}:
            raise ConfigError(f"anyone: there is no {name!r} (there are inputs, outputs)")
        if not isinstance(table[name], list) or not all(isinstance(p, str) for p in table[name]):
            raise ConfigError(f"anyone.{name} must be a list of prefixes")
    return dict(table)


def _triggers(document: Mapping[str, Any], outputs: list[str]) -> Triggers:
    tables = document["triggers"]
    if not isinstance(tables, list):
        raise ConfigError("triggers: each is a table of its own, [[triggers]]")
    return read_triggers(cast("list[Any]", tables), outputs=outputs)


def _endpoints(tables: Mapping[str, Any], outbound: OutboundPolicy) -> tuple[Target, ...]:
    targets: list[Target] = []
    for name in tables:
        try:
            (found,) = read_subscriptions([_table(tables, name)], outbound)
        except ConfigError as error:
            raise ConfigError(f"endpoints.{name}: {str(error).removeprefix('notify[0]: ')}") from error
        if found.target is None:
            raise ConfigError(f"endpoints.{name}: say a webhook, sns or email")
        targets.append(replace(found.target, endpoint_id=name))
    return tuple(targets)


def _outbound(table: Mapping[str, Any]) -> OutboundPolicy:
    unknown = sorted(table.keys() - {"plain_http", "ports", "networks"})
    if unknown:
        raise ConfigError(f"outbound: there is no {unknown[0]!r} (there are networks, plain_http, ports)")
    ports = table.get("ports", list(PORTS))
    networks = table.get("networks", [])
    if not isinstance(ports, list) or not all(isinstance(p, int) for p in cast("list[Any]", ports)):
        raise ConfigError("outbound.ports must be a list of numbers")
    if not isinstance(networks, list) or not all(isinstance(n, str) for n in cast("list[Any]", networks)):
        raise ConfigError("outbound.networks must be a list of subnets, such as 10.0.0.0/8")
    plain = table.get("plain_http", False)
    if not isinstance(plain, bool):
        raise ConfigError("outbound.plain_http must be true or false")
    return OutboundPolicy(
        plain_http=plain,
        ports=frozenset(cast("list[int]", ports)),
        networks=tuple(network(n) for n in cast("list[str]", networks)),
    )


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{name} must be a table")
    return cast("Mapping[str, Any]", table)


def _made(kind: type[_T], table: Mapping[str, Any], where: str) -> _T:
    """A dataclass of a table, whose keys are its fields and whose values are plain."""
    known = {each.name: each.type for each in fields(cast("Any", kind))}
    unknown = sorted(table.keys() - known.keys())
    if unknown:
        raise ConfigError(f"{where}: there is no {unknown[0]!r} (there are {', '.join(known)})")
    for name, value in table.items():
        wanted = _WORDS.get(str(known[name]))
        if wanted is not None and (
            not isinstance(value, wanted[0]) or isinstance(value, bool) != (wanted[0] is bool)
        ):
            raise ConfigError(f"{where}.{name} must be {wanted[1]}, not {value!r}")
    try:
        return kind(**table)
    except TypeError as error:
        raise ConfigError(f"{where}: {_missing(error)}") from error


def _missing(error: TypeError) -> str:
    return str(error).rpartition("argument")[2].lstrip("s: ").strip() + " is missing"


_WORDS: Final[Mapping[str, tuple[Any, str]]] = {
    "<class 'str'>": (str, "text"),
    "<class 'bool'>": (bool, "true or false"),
    "<class 'int'>": (int, "a whole number"),
    "<class 'float'>": ((int, float), "a number"),
    "int | None": (int, "a whole number"),
}
