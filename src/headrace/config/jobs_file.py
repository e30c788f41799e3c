"""The settings file of jobs: keys, allowed addresses, queues, triggers, notifications and regions.

::

    [keys.web]                        # see `headrace keys new`; without keys, no request needs one
    digest = "sha256:…"
    scopes = ["submit", "read"]
    inputs = ["s3://bucket/in"]
    outputs = ["s3://bucket/out"]

    [anyone]                          # without keys: allowed addresses and limit of all clients
    inputs = ["s3://bucket/in", "https://data.example.com/daily"]
    pending_max = 10000

    [queues.default]                  # applied at every start; other settings keep their values
    pending_max = 10000

    [tenants.shop]                    # tenants share the workers of a queue by their weights
    weight = 2.0                      # default: 1.0

    [models.churn]                    # running jobs of all versions, over all workers
    running_max = 4

    [[triggers]]
    name = "incoming"
    prefix = "s3://bucket/in/"
    suffix = ".csv"
    model = "churn"
    output = "s3://bucket/out/"

    [endpoints.churn]                 # of jobs: what submissions to it may use; applied at every start
    model = "churn"
    output_uri = "s3://bucket/scored/"
    notify = [{ receiver = "billing" }]

    [receivers.billing]               # of notifications: {"receiver": "billing"}
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar, cast

from headrace.core.errors import ConfigError, DataError, ForbiddenError
from headrace.core.settings import Setting
from headrace.core.settings_reader import read_settings, read_table
from headrace.jobs.access import ANONYMOUS_KEY, PENDING_MAX_DEFAULT, Access, ApiKey
from headrace.jobs.access.endpoints import EndpointSettings, read_endpoint_name, read_endpoint_settings
from headrace.jobs.access.keys_file import read_keys
from headrace.jobs.lanes import ClaimLimit, LimitKind
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.notify import Target
from headrace.jobs.notify.notifiers import SmtpSettings
from headrace.jobs.notify.subscription import read_subscriptions
from headrace.jobs.outbound import OutboundPolicy
from headrace.jobs.paths import UriAllowList
from headrace.jobs.trigger import Trigger, Triggers, read_triggers
from headrace.jobs.worker import OtherRegions
from headrace.scaling.settings import PoolSettings
from headrace.server.jobs.sagemaker import SageMakerSettings
from headrace.storage.regions import RegionRule, RegionRules, require_region

_T = TypeVar("_T")
_RENAMED_TABLES: Final = {"vendor": "sagemaker"}
"""Deprecated names of tables, with their new names. The next release removes them."""
_RECEIVER_KEYS: Final = frozenset({"webhook", "sns", "email"})
"""Keys that receivers have and endpoints do not: until this release, receivers were in [endpoints]."""


def _parse_region_rules(regions: dict[str, str]) -> tuple[RegionRule, ...]:
    return tuple(RegionRule(prefix, region) for prefix, region in regions.items())


def _parse_region(text: str) -> str:
    return require_region(text) if text else text


@dataclass(frozen=True, slots=True)
class WorkerRegion:
    """The region of workers, and when they take jobs of other regions; see `WorkerSettings`."""

    region: str = ""
    other_regions: OtherRegions = "idle"


@dataclass(frozen=True, slots=True)
class _RegionsTable:
    """The table ``[regions]``."""

    data: Annotated[
        tuple[RegionRule, ...],
        Setting(
            "Region of the objects below each prefix; the longest prefix wins.",
            expected="a table of prefixes and regions",
            written=dict[str, str],
            parse=_parse_region_rules,
        ),
    ] = ()
    ask_buckets: Annotated[bool, Setting("Ask S3 for the regions of other buckets.")] = False
    worker: Annotated[
        str, Setting("Region of these workers.", parse=_parse_region, expected="a region", default="none")
    ] = ""
    other_regions: Annotated[OtherRegions, Setting("Work on jobs of other regions: when idle, or never.")] = (
        "idle"
    )


@dataclass(frozen=True, slots=True)
class _AnyoneTable:
    """The table ``[anyone]``."""

    inputs: Annotated[
        tuple[str, ...], Setting("Prefixes, folders and web addresses that jobs may read.")
    ] = ()
    outputs: Annotated[tuple[str, ...], Setting("Prefixes and folders that jobs may write.")] = ()
    pending_max: Annotated[int, Setting("Limit of the waiting jobs of all clients.", least=1)] = (
        PENDING_MAX_DEFAULT
    )


@dataclass(frozen=True, slots=True)
class _TenantTable:
    """A table ``[tenants.NAME]``."""

    weight: Annotated[
        float, Setting("Share of the workers of a queue, beside those of other tenants.", above=0)
    ] = 1.0


@dataclass(frozen=True, slots=True)
class _ModelTable:
    """A table ``[models.NAME]``."""

    running_max: Annotated[
        int | None,
        Setting("Limit of running jobs of all versions, over all workers.", least=0, default="no limit"),
    ] = None


JOBS_TABLES: Final[Mapping[str, Any]] = {
    "keys": dict[str, dict[str, Any]],
    "anyone": _AnyoneTable,
    "queues": dict[str, QueueSettings],
    "tenants": dict[str, _TenantTable],
    "models": dict[str, _ModelTable],
    "triggers": list[Trigger],
    "endpoints": dict[str, EndpointSettings],
    "receivers": dict[str, dict[str, Any]],
    "smtp": SmtpSettings,
    "outbound": OutboundPolicy,
    "sagemaker": SageMakerSettings,
    "regions": _RegionsTable,
    "pools": dict[str, PoolSettings],
}
"""The tables of the file, with their settings."""


NO_LIMITS: Final[Mapping[LimitKind, tuple[ClaimLimit, ...]]] = MappingProxyType(
    {"key": (), "model": (), "tenant": ()}
)


@dataclass(frozen=True, slots=True)
class JobsFile:
    """The contents of the settings file, with defaults for missing settings."""

    access: Access = field(default_factory=Access)
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    """Fields of `QueueSettings` for each queue."""
    limits: Mapping[LimitKind, tuple[ClaimLimit, ...]] | None = None
    """The limits of keys and models, and the shares of tenants; None leaves those of the ledger."""
    endpoints: Mapping[str, EndpointSettings] = field(default_factory=lambda: MappingProxyType({}))
    """Endpoints of jobs. The secrets of webhooks are as in the file."""
    triggers: Triggers | None = None
    receivers: tuple[Target, ...] = ()
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


def read_pool(path: Path | None, name: str) -> Mapping[str, Any]:
    """Return fields of `PoolSettings` for a pool from a settings file; none without a file or a table.

    Raises:
        ConfigError: As for `read_jobs_file`.
    """
    if path is None:
        return {}
    document = _read_document(path)
    with _path_in_errors(path):
        return _parse_pools(document).get(name, {})


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
    document = _move_receivers(_rename_tables(document, path), path)
    unknown = sorted(document.keys() - JOBS_TABLES.keys())
    if unknown:
        raise ConfigError(f"{path}: unknown table {unknown[0]!r}; the tables are {', '.join(JOBS_TABLES)}")
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


def _move_receivers(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the document with each receiver in [receivers], and warn of those in [endpoints]."""
    endpoints, receivers = document.get("endpoints"), document.get("receivers", {})
    if not isinstance(endpoints, dict) or not isinstance(receivers, dict):
        return document
    tables = cast("dict[str, Any]", endpoints)
    moved: dict[str, Any] = {
        name: table
        for name, table in tables.items()
        if isinstance(table, dict) and not _RECEIVER_KEYS.isdisjoint(cast("dict[str, Any]", table))
    }
    for name in moved:
        if name in receivers:
            raise ConfigError(
                f"{path}: [endpoints.{name}] is the old name of [receivers.{name}]: remove one of them"
            )
        warnings.warn(
            f"{path}: the table [endpoints.{name}] is deprecated: name it [receivers.{name}]",
            FutureWarning,
            stacklevel=2,
        )
    if not moved:
        return document
    rest = {name: table for name, table in tables.items() if name not in moved}
    return {**document, "endpoints": rest, "receivers": {**receivers, **moved}}


def _parse_document(
    document: Mapping[str, Any], where: str, store_uri: str, reserved: tuple[str, ...]
) -> JobsFile:
    outbound = read_settings(OutboundPolicy, _table(document, "outbound"), "outbound")
    outputs = [store_uri] if store_uri.startswith("s3://") else []
    regions, _ = _parse_regions(document)
    queues = _table(document, "queues")
    access = _parse_access(document, where, reserved, outbound)
    _parse_pools(document)  # their controllers read them
    return JobsFile(
        access=access,
        queues={name: read_table(QueueSettings, _table(queues, name), f"queues.{name}") for name in queues},
        limits=_parse_limits(document, access),
        endpoints=_parse_endpoints(_table(document, "endpoints"), reserved),
        triggers=_parse_triggers(document, outputs) if "triggers" in document else None,
        receivers=_parse_receivers(_table(document, "receivers"), outbound),
        smtp=_optional(SmtpSettings, document, "smtp"),
        outbound=outbound,
        sagemaker=_optional(SageMakerSettings, document, "sagemaker"),
        regions=regions,
    )


def _parse_pools(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return fields of `PoolSettings` for each pool of workers."""
    pools = _table(document, "pools")
    tables = {name: _table(pools, name) for name in pools}
    for name, table in tables.items():
        replace(read_settings(PoolSettings, table, f"pools.{name}"), pool=name)
    return {name: read_table(PoolSettings, table, f"pools.{name}") for name, table in tables.items()}


def _parse_regions(document: Mapping[str, Any]) -> tuple[RegionRules, WorkerRegion]:
    table = read_settings(_RegionsTable, _table(document, "regions"), "regions")
    return RegionRules(table.data, table.ask_buckets), WorkerRegion(table.worker, table.other_regions)


def _parse_access(
    document: Mapping[str, Any], where: str, reserved: tuple[str, ...], outbound: OutboundPolicy
) -> Access:
    if "keys" in document:
        if "anyone" in document:
            raise ConfigError("[anyone] and [keys] exclude each other: remove one of them")
        return Access(read_keys(document["keys"], where, reserved=reserved, policy=outbound))
    anyone = read_settings(_AnyoneTable, _table(document, "anyone"), "anyone")
    key = anonymous_key(
        inputs=anyone.inputs,
        outputs=anyone.outputs,
        pending_max=anyone.pending_max,
        reserved=reserved,
        policy=outbound,
    )
    return Access(anonymous=key)


def anonymous_key(
    *,
    inputs: Iterable[str] = (),
    outputs: Iterable[str] = (),
    pending_max: int = PENDING_MAX_DEFAULT,
    reserved: Iterable[str] = (),
    policy: OutboundPolicy | None = None,
) -> ApiKey:
    """Return the key of every client of a server without keys, with its inputs, outputs and limit.

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
        pending_max=pending_max,
    )


def _parse_limits(document: Mapping[str, Any], access: Access) -> Mapping[LimitKind, tuple[ClaimLimit, ...]]:
    tenants, models = _table(document, "tenants"), _table(document, "models")
    shares = {name: read_settings(_TenantTable, _table(tenants, name), f"tenants.{name}") for name in tenants}
    bounds = {name: read_settings(_ModelTable, _table(models, name), f"models.{name}") for name in models}
    if versions := sorted(name for name in bounds if "@" in name):
        raise ConfigError(f"models.{versions[0]!r}: a limit is of all versions: leave out the @")
    return {
        "tenant": tuple(ClaimLimit("tenant", name, weight=share.weight) for name, share in shares.items()),
        "model": tuple(ClaimLimit("model", name, bound.running_max) for name, bound in bounds.items()),
        "key": tuple(
            ClaimLimit("key", key.name, key.running_max) for key in access.keys if key.running_max is not None
        ),
    }


def _parse_triggers(document: Mapping[str, Any], outputs: list[str]) -> Triggers:
    tables = document["triggers"]
    if not isinstance(tables, list):
        raise ConfigError("triggers must be an array of tables: write [[triggers]]")
    return read_triggers(cast("list[Any]", tables), outputs=outputs)


def _parse_endpoints(tables: Mapping[str, Any], reserved: tuple[str, ...]) -> Mapping[str, EndpointSettings]:
    found: dict[str, EndpointSettings] = {}
    for name in tables:
        try:
            read_endpoint_name(name)
        except DataError as error:
            raise ConfigError(f"endpoints: {error}") from None
        found[name] = read_endpoint_settings(_table(tables, name), f"endpoints.{name}")
        output_uri = found[name].output_uri
        try:
            if output_uri:
                UriAllowList.read([output_uri], reserved=reserved).require(output_uri, "output")
        except ForbiddenError as error:
            raise ConfigError(f"endpoints.{name}: {error}") from error
    return found


def _parse_receivers(tables: Mapping[str, Any], outbound: OutboundPolicy) -> tuple[Target, ...]:
    targets: list[Target] = []
    for name in tables:
        try:
            (found,) = read_subscriptions([_table(tables, name)], outbound)
        except ConfigError as error:
            raise ConfigError(f"receivers.{name}: {str(error).removeprefix('notify[0]: ')}") from error
        if found.target is None:
            raise ConfigError(f"receivers.{name}: set webhook, sns or email")
        targets.append(replace(found.target, receiver_id=name))
    return tuple(targets)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{name} must be a table")
    return cast("Mapping[str, Any]", table)


def _optional(kind: type[_T], document: Mapping[str, Any], name: str) -> _T | None:
    return read_settings(kind, _table(document, name), name) if name in document else None
