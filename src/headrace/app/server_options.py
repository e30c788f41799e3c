"""The options of a model server and of a job server.

Importing them needs no optional dependency, unlike `headrace.app.serving` and `headrace.app.jobs`.
"""

import logging
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, Final, Literal

from headrace.core.errors import ConfigError
from headrace.core.settings import Setting, check
from headrace.jobs.access import PENDING_MAX_DEFAULT
from headrace.jobs.intake import DEADLINE_S_DEFAULT
from headrace.jobs.maintenance import Retention
from headrace.jobs.worker import WorkerSettings
from headrace.server.listener import DrainSettings, RestLimits, StreamDialect, TlsFiles

__all__ = [
    "AutoscalerOptions",
    "DrainSettings",
    "JobLocations",
    "JobsOptions",
    "RestLimits",
    "ServerOptions",
    "TlsFiles",
]

GrpcCarrier = Literal["grpcio", "asgi"]
API_PORT: Final = 8090
METRICS_PORT: Final = 8082
DATA_FOLDER: Final = "headrace-data"
LEDGER_NAME: Final = "jobs.db"
ENCRYPTION_KEY_NAME: Final = "encryption.key"
_PRIVATE: Final = 0o700
_OTHERS: Final = 0o077
"""The permissions of a file for everyone but its owner."""
_PORT_MAX: Final = 65535
_log = logging.getLogger("headrace.jobs")


def _port(description: str, *, default: str = "") -> Setting:
    return Setting(f"{description}; 0 takes a free port.", least=0, most=_PORT_MAX, default=default)


_AllowHosts = Annotated[
    tuple[str, ...],
    Setting(
        "Name that clients may use for this server, besides local ones; * allows every name. Repeatable.",
        option="allow_host",
        metavar="NAME",
    ),
]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The listeners, access rules, limits and drain settings of a model server.

    A port of None opens no listener. The body limit applies to gRPC messages, too.
    """

    host: Annotated[str, Setting("Address to listen on.")] = "127.0.0.1"
    rest_port: Annotated[
        int | None,
        _port("Port for REST and event streams"),
    ] = 8080
    grpc_port: Annotated[int | None, _port("Port for gRPC")] = 8081
    metrics_port: Annotated[
        int | None,
        _port("Port for Prometheus metrics"),
    ] = METRICS_PORT
    api_keys: Annotated[
        Path | None,
        Setting("API key file with a table [keys.NAME] for each key, from 'headrace keys new'."),
    ] = None
    allow_hosts: _AllowHosts = ()
    """See `headrace.server.application.Guard`."""
    tls: TlsFiles | None = None
    insecure: Annotated[bool, Setting("Allow a public address without API keys and client certificates.")] = (
        False
    )
    limits: RestLimits = field(default_factory=RestLimits)
    grpc_carrier: Annotated[GrpcCarrier, Setting("gRPC transport; asgi is faster and has limits.")] = "grpcio"
    """See docs/adr/0010."""
    stream_dialect: Annotated[StreamDialect, Setting("Default response format of gRPC streams.")] = "mlserver"
    """A client may choose another one."""
    drain: DrainSettings = field(default_factory=DrainSettings)
    access_log: Annotated[bool, Setting("Log every request with its id when it ends.")] = False
    """See `headrace.server.observation`."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class JobLocations:
    """The locations of the job system: ledger URL, store prefix and an optional wakeup broker URL.

    Without a `dispatcher_url` workers are woken by the ledger alone.
    """

    ledger_url: Annotated[
        str,
        Setting(
            "URL of the job ledger, sqlite:///FILE or postgresql://…; with --store, instead of --data.",
            name="ledger",
            metavar="URL",
        ),
    ]
    store_uri: Annotated[
        str,
        Setting(
            "Prefix or folder of payloads and results, used by headrace only.", name="store", metavar="URI"
        ),
    ]
    dispatcher_url: Annotated[
        str,
        Setting(
            "Broker that wakes idle workers: redis://…, amqp://… or sqs://…; see docs/wakeup-brokers.md.",
            name="dispatcher",
            metavar="URL",
        ),
    ] = ""
    encryption_key: Annotated[
        Path | None,
        Setting(
            "File with the key that encrypts webhook secrets and signs sessions; see docs/jobs.md.",
            default="encryption.key in --data",
        ),
    ] = None
    data_folder: Path | None = None
    """The folder that only headrace uses, if there is one."""

    @classmethod
    def folder(cls, path: str | Path = DATA_FOLDER) -> "JobLocations":
        """Return the default locations: a folder with an SQLite file and an ``objects`` folder."""
        base = Path(path).absolute()
        return cls(f"sqlite:///{base / LEDGER_NAME}", f"{base / 'objects'}/", data_folder=base)

    @property
    def reserved_uris(self) -> tuple[str, ...]:
        """The URIs that no submission may name as an input or output.

        They hold the payloads, results and jobs of all tenants, and the encryption key. The limits of
        keys do not change that.
        """
        reserved = [self.store_uri]
        scheme, _, path = self.ledger_url.partition(":///")
        if scheme == "sqlite":
            file = str(Path(path).absolute())
            reserved += [file + suffix for suffix in ("", "-wal", "-shm", "-journal")]
        if self.key_file is not None:
            reserved.append(str(self.key_file.absolute()))
        return tuple(reserved)

    @property
    def key_file(self) -> Path | None:
        """The file of the encryption key, or None if there is no place for one."""
        if self.encryption_key is not None or self.data_folder is None:
            return self.encryption_key
        return self.data_folder / ENCRYPTION_KEY_NAME

    def make_folders(self) -> None:
        """Create the folders of an SQLite ledger and of a local store, for the user of the process alone.

        An existing data folder is closed to other users. Other existing folders, which may hold more
        than jobs, keep their permissions.
        """
        scheme, _, path = self.ledger_url.partition(":///")
        if self.data_folder is not None:
            _make_private(self.data_folder)
            _close_to_others(self.data_folder)
        if scheme == "sqlite":
            _make_private(Path(path).parent)
        if "://" not in self.store_uri:
            _make_private(Path(self.store_uri))


def _make_private(folder: Path) -> None:
    """Create a folder for its owner alone; missing parents get the usual permissions."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=_PRIVATE, exist_ok=True)


def _close_to_others(folder: Path) -> None:
    if not folder.stat().st_mode & _OTHERS:
        return
    try:
        folder.chmod(_PRIVATE)
    except PermissionError:
        _log.warning("%s is open to other users, and only its owner can change that: chmod 700", folder)
    else:
        _log.warning("%s was open to other users: its permissions are 700 from now on", folder)


@dataclass(frozen=True, slots=True)
class WorkerListenerOptions:
    """The listener of a worker, for metrics and probes. A port of None opens none."""

    host: Annotated[str, Setting("Address of the metrics port.")] = "127.0.0.1"
    metrics_port: Annotated[
        int | None, _port("Port for Prometheus metrics and health probes", default="none")
    ] = None

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class AutoscalerOptions:
    """The listeners of a controller, from which other autoscalers read decisions. A port of None opens none.

    Raises ConfigError for the external metrics API without `tls`: Kubernetes reads it over HTTPS alone.
    """

    host: Annotated[str, Setting("Address of the ports for other autoscalers.")] = "127.0.0.1"
    keda_port: Annotated[
        int | None, _port("Port for KEDA, as an external scaler over gRPC", default="none")
    ] = None
    external_metrics_port: Annotated[
        int | None, _port("HTTPS port for the external metrics API of Kubernetes", default="none")
    ] = None
    insecure: Annotated[bool, Setting("Allow a public address without client certificates.")] = False
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.external_metrics_port is not None and self.tls is None:
            raise ConfigError(
                "the external metrics API needs TLS: pass --tls-certificate FILE and --tls-key FILE"
            )


@dataclass(frozen=True, slots=True)
class JobsOptions:
    """The listeners, access rules and worker of a job server.

    Without models only the API runs, and jobs wait for workers in other processes. Without a
    `config` file with keys, every client may submit jobs, limited to the URIs below `allow_inputs`
    and `allow_outputs`, and all clients together to `pending_max` waiting jobs.
    """

    host: Annotated[str, Setting("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _port("Port of the job API")] = API_PORT
    metrics_port: Annotated[
        int | None,
        _port("Port for Prometheus metrics"),
    ] = METRICS_PORT
    """None opens no listener."""
    config: Annotated[
        Path | None,
        Setting("TOML file with keys, triggers, notifications and queue limits; see docs/jobs.md."),
    ] = None
    allow_inputs: Annotated[
        tuple[str, ...],
        Setting(
            "Prefix, folder or https://HOST/PREFIX that jobs may read, without --config. Repeatable.",
            option="allow_input",
            metavar="PREFIX",
        ),
    ] = ()
    allow_outputs: Annotated[
        tuple[str, ...],
        Setting(
            "Prefix or folder that jobs may write, without --config. Repeatable.",
            option="allow_output",
            metavar="PREFIX",
        ),
    ] = ()
    pending_max: Annotated[
        int, Setting("Limit of waiting jobs of all queues together, without --config.", least=1)
    ] = PENDING_MAX_DEFAULT
    tls: TlsFiles | None = None
    insecure: Annotated[bool, Setting("Allow a public address without API keys.")] = False
    allow_hosts: _AllowHosts = ()
    """See `headrace.server.application.Guard`."""
    events_queue_url: Annotated[
        str,
        Setting("SQS queue of object events that start triggers.", name="events_queue", metavar="URL"),
    ] = ""
    signed_urls: Annotated[
        bool,
        Setting("Let clients send and fetch large payloads by signed URLs, if the store can sign them."),
    ] = True
    """False if clients cannot reach the store: transfers then go through the job API."""
    default_deadline_s: Annotated[
        float,
        Setting(
            "Deadline in seconds of jobs that name none, from the end of their delay; inf gives none.",
            above=0,
            most=inf,
        ),
    ] = DEADLINE_S_DEFAULT
    model_server: ServerOptions | None = None
    """The listeners that serve the models over the Open Inference Protocol; None opens none."""
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        check(self)
