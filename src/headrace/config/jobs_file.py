"""The settings file of jobs: keys, allowed addresses, queues, triggers, notifications and regions.

::

    [keys.web]                        # see `headrace keys new`; without keys, no request needs one
    digest = "sha256:…"
    scopes = ["submit", "read"]
    inputs = ["s3://bucket/in"]
    outputs = ["s3://bucket/out"]

    [anyone]                          # without keys: allowed addresses of every client
    inputs = ["s3://bucket/in", "https://data.example.com/daily"]

    [queues.default]                  # applied at every start; other settings keep their values
    pending_max = 10000

    [[triggers]]
    name = "incoming"
    prefix = "s3://bucket/in/"
    suffix = ".csv"
    model = "churn"
    output = "s3://bucket/out/"

    [endpoints.billing]               # receiver of notifications: {"endpoint": "billing"}
    webhook = "https://billing.example.com/hook"
    secret = "whsec_…"

    [smtp]
    host = "mail.example.com"
    sender = "jobs@example.com"

    [outbound]                        # targets of webhooks and https inputs beyond global addresses
    plain_http = false
    ports = [443]
    networks = ["10.0.0.0/8"]

    [sagemaker]                       # the API for unmodified SageMaker clients
    output_uri = "s3://bucket/async/"

    [regions]                         # regions of the data and of these workers
    ask_buckets = true                # ask S3 for the regions of other buckets; default: false
    worker = "eu-west-1"              # --region
    other_regions = "never"           # --other-regions; default: "idle"

    [regions.data]                    # the longest prefix wins
    "s3://bucket-eu/" = "eu-west-1"
"""

import tomllib
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast, get_args

from headrace.core.errors import ConfigError
from headrace.jobs.access import ANONYMOUS_KEY, Access, ApiKey, read_keys
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.notify import Target
from headrace.jobs.notify.email import SmtpSettings
from headrace.jobs.notify.subscription import read_subscriptions
from headrace.jobs.outbound.urls import PORTS, OutboundPolicy, parse_network
from headrace.jobs.paths import UriAllowList
from headrace.jobs.trigger import Triggers, read_triggers
from headrace.jobs.worker.settings import OtherRegions
from headrace.server.jobs.sagemaker import SageMakerSettings
from headrace.storage.regions import RegionRule, RegionRules, require_region

_TABLES: Final = (
    "keys",
    "anyone",
    "queues",
    "triggers",
    "endpoints",
    "smtp",
    "outbound",
    "sagemaker",
    "regions",
)
_RENAMED_TABLES: Final = {"vendor": "sagemaker"}
"""Deprecated names of tables, with their new names. The next release removes them."""
_PORT_MAX: Final = 65535
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkerRegion:
    """The region of workers, and when they take jobs of other regions; see `WorkerSettings`."""

    region: str = ""
    other_regions: OtherRegions = "idle"


@dataclass(frozen=True, slots=True)
class JobsFile:
    """The contents of the settings file, with defaults for missing settings."""

    access: Access = field(default_factory=Access)
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    """Fields of `QueueSettings` for each queue."""
    triggers: Triggers | None = None
    endpoints: tuple[Target, ...] = ()
    smtp: SmtpSettings | None = None
    outbound: OutboundPolicy = field(default_factory=OutboundPolicy)
    sagemaker: SageMakerSettings | None = None
    regions: RegionRules = field(default_factory=lambda: RegionRules(ask_buckets=False))
    """Regions of the data."""


def read_jobs_file(path: Path, *, store_uri: str, reserved: Iterable[str] = ()) -> JobsFile:
    """Return the contents of a settings file.

    No client may name `store_uri`, headrace's own store, or an address in `reserved`.

    Raises:
        ConfigError: A setting is invalid. The message names the file, the table and the key.
    """
    document = _read_document(path)
    with _path_in_errors(path):
        return _parse_document(document, str(path), store_uri, (store_uri, *reserved))


def read_worker_region(path: Path | None) -> WorkerRegion:
    """Return the region settings of workers from a settings file, or the defaults without a file.

    Raises:
        ConfigError: As for `read_jobs_file`.
    """
    if path is None:
        return WorkerRegion()
    document = _read_document(path)
    with _path_in_errors(path):
        return _parse_regions(document)[1]


@contextmanager
def _path_in_errors(path: Path) -> Generator[None]:
    """Put the path of the file before every ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the jobs file cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: invalid TOML: {error}") from error
    document = _rename_tables(document, path)
    unknown = sorted(document.keys() - set(_TABLES))
    if unknown:
        raise ConfigError(f"{path}: unknown table {unknown[0]!r}; the tables are {', '.join(_TABLES)}")
    return document


def _rename_tables(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the document with the new names of renamed tables, and warn of the old names."""
    for old, new in _RENAMED_TABLES.items():
        if old not in document:
            continue
        if new in document:
            raise ConfigError(f"{path}: [{old}] is the old name of [{new}]: remove one of them")
        # A FutureWarning, because the reader of this warning wrote a file, not Python.
        warnings.warn(
            f"{path}: the table [{old}] is deprecated: name it [{new}]", FutureWarning, stacklevel=2
        )
        document = {new if name == old else name: value for name, value in document.items()}
    return document


def _parse_document(
    document: Mapping[str, Any], where: str, store_uri: str, reserved: tuple[str, ...]
) -> JobsFile:
    outbound = _parse_outbound(_table(document, "outbound"))
    sagemaker = (
        _to_dataclass(SageMakerSettings, _table(document, "sagemaker"), "sagemaker")
        if "sagemaker" in document
        else None
    )
    outputs = [store_uri] if store_uri.startswith("s3://") else []
    regions, _ = _parse_regions(document)
    queues = _table(document, "queues")
    return JobsFile(
        access=_parse_access(document, where, reserved, outbound),
        queues={name: _parse_queue(queues, name) for name in queues},
        triggers=_parse_triggers(document, outputs) if "triggers" in document else None,
        endpoints=_parse_endpoints(_table(document, "endpoints"), outbound),
        smtp=_to_dataclass(SmtpSettings, _table(document, "smtp"), "smtp") if "smtp" in document else None,
        outbound=outbound,
        sagemaker=sagemaker,
        regions=regions,
    )


def _parse_regions(document: Mapping[str, Any]) -> tuple[RegionRules, WorkerRegion]:
    table = _table(document, "regions")
    unknown = sorted(table.keys() - _REGION_TYPES.keys())
    if unknown:
        raise ConfigError(f"regions: unknown key {unknown[0]!r}; the keys are {', '.join(_REGION_TYPES)}")
    for name, value in table.items():
        kind, what = _REGION_TYPES[name]
        if not isinstance(value, kind):
            raise ConfigError(f"regions.{name} must be {what}, not {value!r}")
    data = cast("dict[str, Any]", table.get("data", {}))
    rules = tuple(_parse_region_rule(prefix, region) for prefix, region in data.items())
    if worker := table.get("worker", ""):
        require_region(worker)
    others = table.get("other_regions", "idle")
    if others not in get_args(OtherRegions):
        raise ConfigError(
            f"regions.other_regions must be one of {', '.join(get_args(OtherRegions))}, not {others!r}"
        )
    return RegionRules(rules, table.get("ask_buckets", False)), WorkerRegion(worker, others)


def _parse_region_rule(prefix: str, region: Any) -> RegionRule:
    if not isinstance(region, str):
        raise ConfigError(f"regions.data: {prefix} must have a region, not {region!r}")
    try:
        return RegionRule(prefix, region)
    except ConfigError as error:
        raise ConfigError(f"regions.data: {error}") from error


def _parse_queue(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table, where = _table(tables, name), f"queues.{name}"
    if "name" in table:
        raise ConfigError(f"{where}: 'name' is not a key: the name of the table is the queue's")
    settings = _to_dataclass(QueueSettings, {**table, "name": name}, where)
    if settings.pending_max is not None and settings.pending_max < 0:
        raise ConfigError(f"{where}.pending_max must be 0 or more, not {settings.pending_max}")
    return table


def _parse_access(
    document: Mapping[str, Any], where: str, reserved: tuple[str, ...], outbound: OutboundPolicy
) -> Access:
    if "keys" in document:
        if "anyone" in document:
            raise ConfigError("[anyone] and [keys] exclude each other: remove one of them")
        return Access(read_keys(document["keys"], where, reserved=reserved, policy=outbound))
    allow_lists = _parse_allow_lists(_table(document, "anyone"))
    return Access(anonymous=anonymous_key(**allow_lists, reserved=reserved, policy=outbound))


def anonymous_key(
    *,
    inputs: Iterable[str] = (),
    outputs: Iterable[str] = (),
    reserved: Iterable[str] = (),
    policy: OutboundPolicy | None = None,
) -> ApiKey:
    """Return the key of every client of a server without keys: the allowed inputs and outputs.

    Addresses in `reserved` are never allowed.

    Raises:
        ConfigError: A prefix is invalid.
    """
    own = tuple(reserved)
    return ApiKey(
        name=ANONYMOUS_KEY.name,
        tenant=ANONYMOUS_KEY.tenant,
        scopes=ANONYMOUS_KEY.scopes,
        inputs=UriAllowList.read(inputs, reserved=own, policy=policy or OutboundPolicy()),
        outputs=UriAllowList.read(outputs, reserved=own),
    )


def _parse_allow_lists(table: Mapping[str, Any]) -> dict[str, list[str]]:
    for name in table:
        if name not in {"inputs", "outputs"}:
            raise ConfigError(f"anyone: unknown key {name!r}; the keys are inputs, outputs")
        if not isinstance(table[name], list) or not all(isinstance(p, str) for p in table[name]):
            raise ConfigError(f"anyone.{name} must be a list of prefixes")
    return dict(table)


def _parse_triggers(document: Mapping[str, Any], outputs: list[str]) -> Triggers:
    tables = document["triggers"]
    if not isinstance(tables, list):
        raise ConfigError("triggers must be an array of tables: write [[triggers]]")
    return read_triggers(cast("list[Any]", tables), outputs=outputs)


def _parse_endpoints(tables: Mapping[str, Any], outbound: OutboundPolicy) -> tuple[Target, ...]:
    targets: list[Target] = []
    for name in tables:
        try:
            (found,) = read_subscriptions([_table(tables, name)], outbound)
        except ConfigError as error:
            raise ConfigError(f"endpoints.{name}: {str(error).removeprefix('notify[0]: ')}") from error
        if found.target is None:
            raise ConfigError(f"endpoints.{name}: set webhook, sns or email")
        targets.append(replace(found.target, endpoint_id=name))
    return tuple(targets)


def _parse_outbound(table: Mapping[str, Any]) -> OutboundPolicy:
    unknown = sorted(table.keys() - {"plain_http", "ports", "networks"})
    if unknown:
        raise ConfigError(f"outbound: unknown key {unknown[0]!r}; the keys are networks, plain_http, ports")
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
        networks=tuple(parse_network(n) for n in cast("list[str]", networks)),
    )


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{name} must be a table")
    return cast("Mapping[str, Any]", table)


def _to_dataclass(kind: type[_T], table: Mapping[str, Any], where: str) -> _T:
    """Return a dataclass from a table whose keys are its fields and whose values are plain."""
    known = {each.name: each.type for each in fields(cast("Any", kind))}
    unknown = sorted(table.keys() - known.keys())
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; the keys are {', '.join(known)}")
    for name, value in table.items():
        wanted = _FIELD_TYPES.get(str(known[name]))
        if wanted is not None and (
            not isinstance(value, wanted[0]) or isinstance(value, bool) != (wanted[0] is bool)
        ):
            raise ConfigError(f"{where}.{name} must be {wanted[1]}, not {value!r}")
    try:
        return kind(**table)
    except TypeError as error:
        raise ConfigError(f"{where}: {_missing_key(error)}") from error


def _missing_key(error: TypeError) -> str:
    return str(error).rpartition("argument")[2].lstrip("s: ").strip() + " is missing"


_REGION_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    "data": (dict, "a table of prefixes and regions"),
    "ask_buckets": (bool, "true or false"),
    "worker": (str, "a region"),
    "other_regions": (str, "text"),
}
_FIELD_TYPES: Final[Mapping[str, tuple[Any, str]]] = {
    "<class 'str'>": (str, "text"),
    "<class 'bool'>": (bool, "true or false"),
    "<class 'int'>": (int, "a whole number"),
    "<class 'float'>": ((int, float), "a number"),
    "int | None": (int, "a whole number"),
}
