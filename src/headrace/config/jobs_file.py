"""The file that says how jobs are kept: keys, who is told, what fires, how queues are bounded, where may be gone.

::

    [keys.web]                        # see `headrace keys new`; without any key, everybody is asked for none
    digest = "sha256:…"
    scopes = ["submit", "read"]
    inputs = ["s3://bucket/in"]
    outputs = ["s3://bucket/out"]

    [anyone]                          # without keys: places that whoever asks may name
    inputs = ["s3://bucket/in", "https://data.example.com/daily"]

    [queues.default]                  # set at every start; what is not said stays as it was set by hand
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

    [regions]                         # where data lives, and where these workers are
    ask_buckets = true                # ask S3 for the regions of buckets of which nothing is said below; default: false
    worker = "eu-west-1"              # --region
    other_regions = "never"           # --other-regions; default: "idle"

    [regions.data]                    # the longest prefix wins
    "s3://bucket-eu/" = "eu-west-1"
"""

import tomllib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast, get_args

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
from headrace.jobs.worker.settings import OtherRegions
from headrace.server.jobs.vendor import VendorSettings
from headrace.storage.regions import RegionRule, RegionRules, require_region

_TABLES: Final = (
    "keys",
    "anyone",
    "queues",
    "triggers",
    "endpoints",
    "smtp",
    "outbound",
    "vendor",
    "regions",
)
_PORT_MAX: Final = 65535
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where workers are, and when they take jobs of elsewhere; see `WorkerSettings`."""

    region: str = ""
    other_regions: OtherRegions = "idle"


@dataclass(frozen=True, slots=True)
class JobsFile:
    """What the file says; what it does not say is as by default."""

    access: JobAccess = field(default_factory=JobAccess)
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    """What is said of each queue: fields of `QueueSettings`."""
    triggers: Triggers | None = None
    endpoints: tuple[Target, ...] = ()
    smtp: SmtpSettings | None = None
    outbound: OutboundPolicy = field(default_factory=OutboundPolicy)
    vendor: VendorSettings | None = None
    regions: RegionRules = field(default_factory=lambda: RegionRules(ask_buckets=False))
    """Where data lives."""


def read_jobs_file(path: Path, *, store_uri: str, reserved: Iterable[str] = ()) -> JobsFile:
    """Read it. `store_uri` is headrace's own store, and `reserved` what else nobody may name.

    Raises ConfigError with the file, the table and the key for whatever cannot be.
    """
    document = _document(path)
    with _named(path):
        return _jobs_file(document, str(path), store_uri, (store_uri, *reserved))


def read_worker_place(path: Path | None) -> WorkerPlace:
    """What the file alone says of where workers are; as by default without a file. ConfigError as `read_jobs_file`."""
    if path is None:
        return WorkerPlace()
    document = _document(path)
    with _named(path):
        return _regions(document)[1]


@contextmanager
def _named(path: Path) -> Generator[None]:
    """Errors name the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error


def _document(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings of jobs in {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: it is no TOML: {error}") from error
    unknown = sorted(document.keys() - set(_TABLES))
    if unknown:
        raise ConfigError(f"{path}: there is no {unknown[0]!r} (there are {', '.join(_TABLES)})")
    return document


def _jobs_file(
    document: Mapping[str, Any], where: str, store_uri: str, reserved: tuple[str, ...]
) -> JobsFile:
    outbound = _outbound(_table(document, "outbound"))
    vendor = _made(VendorSettings, _table(document, "vendor"), "vendor") if "vendor" in document else None
    outputs = [store_uri] if store_uri.startswith("s3://") else []
    regions, _ = _regions(document)
    return JobsFile(
        access=_access(document, where, reserved, outbound),
        queues={name: _queue(tables, name) for tables in [_table(document, "queues")] for name in tables},
        triggers=_triggers(document, outputs) if "triggers" in document else None,
        endpoints=_endpoints(_table(document, "endpoints"), outbound),
        smtp=_made(SmtpSettings, _table(document, "smtp"), "smtp") if "smtp" in document else None,
        outbound=outbound,
        vendor=vendor,
        regions=regions,
    )


def _regions(document: Mapping[str, Any]) -> tuple[RegionRules, WorkerPlace]:
    table = _table(document, "regions")
    unknown = sorted(table.keys() - _REGION_WORDS.keys())
    if unknown:
        raise ConfigError(f"regions: there is no {unknown[0]!r} (there are {', '.join(_REGION_WORDS)})")
    for name, value in table.items():
        kind, what = _REGION_WORDS[name]
        if not isinstance(value, kind):
            raise ConfigError(f"regions.{name} must be {what}, not {value!r}")
    data = cast("dict[str, Any]", table.get("data", {}))
    rules = tuple(_region_rule(prefix, region) for prefix, region in data.items())
    if worker := table.get("worker", ""):
        require_region(worker)
    others = table.get("other_regions", "idle")
    if others not in get_args(OtherRegions):
        raise ConfigError(
            f"regions.other_regions must be one of {', '.join(get_args(OtherRegions))}, not {others!r}"
        )
    return RegionRules(rules, table.get("ask_buckets", False)), WorkerPlace(worker, others)


def _region_rule(prefix: str, region: Any) -> RegionRule:
    if not isinstance(region, str):
        raise ConfigError(f"regions.data: {prefix} must have a region, not {region!r}")
    try:
        return RegionRule(prefix, region)
    except ConfigError as error:
        raise ConfigError(f"regions.data: {error}") from error


def _queue(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table, where = _table(tables, name), f"queues.{name}"
    if "name" in table:
        raise ConfigError(f"{where}: there is no 'name': it stands in the table's own")
    settings = _made(QueueSettings, {**table, "name": name}, where)
    if settings.pending_max is not None and settings.pending_max < 0:
        raise ConfigError(f"{where}.pending_max must be 0 or more, not {settings.pending_max}")
    return table


def _access(
    document: Mapping[str, Any], where: str, reserved: tuple[str, ...], outbound: OutboundPolicy
) -> JobAccess:
    if "keys" in document:
        if "anyone" in document:
            raise ConfigError("anyone: where there are keys, nobody is anyone: leave one of the two out")
        return JobAccess(read_job_keys(document["keys"], where, reserved=reserved, policy=outbound))
    places = _places(_table(document, "anyone"))
    return JobAccess(anyone=anyone(**places, reserved=reserved, policy=outbound))


def anyone(
    *,
    inputs: Iterable[str] = (),
    outputs: Iterable[str] = (),
    reserved: Iterable[str] = (),
    policy: OutboundPolicy | None = None,
) -> JobKey:
    """Whoever asks, where no keys are asked for: what they may name, but for what is `reserved`.

    ConfigError for what cannot be named.
    """
    own = tuple(reserved)
    return JobKey(
        name=ANYONE.name,
        tenant=ANYONE.tenant,
        scopes=ANYONE.scopes,
        inputs=Allowed.read(inputs, reserved=own, policy=policy or OutboundPolicy()),
        outputs=Allowed.read(outputs, reserved=own),
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
    if not isinstance(ports, list) or not all(
        type(p) is int and 0 < p <= _PORT_MAX for p in cast("list[Any]", ports)
    ):
        raise ConfigError(f"outbound.ports must be a list of numbers from 1 to {_PORT_MAX}")
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


_REGION_WORDS: Final[Mapping[str, tuple[type, str]]] = {
    "data": (dict, "a table of prefixes and regions"),
    "ask_buckets": (bool, "true or false"),
    "worker": (str, "a region"),
    "other_regions": (str, "text"),
}
_WORDS: Final[Mapping[str, tuple[Any, str]]] = {
    "<class 'str'>": (str, "text"),
    "<class 'bool'>": (bool, "true or false"),
    "<class 'int'>": (int, "a whole number"),
    "<class 'float'>": ((int, float), "a number"),
    "int | None": (int, "a whole number"),
}
