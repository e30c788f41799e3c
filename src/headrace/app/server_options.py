"""The options of a model server and of a job server.

Importing them needs no optional dependency, unlike `headrace.app.serving` and `headrace.app.jobs`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from headrace.core.settings import Setting, check
from headrace.jobs.maintenance import Retention
from headrace.jobs.worker import WorkerSettings
from headrace.server.listener import DrainSettings, RestLimits, StreamDialect, TlsFiles

__all__ = ["DrainSettings", "JobLocations", "JobsOptions", "RestLimits", "ServerOptions", "TlsFiles"]

GrpcCarrier = Literal["grpcio", "asgi"]
API_PORT: Final = 8090
DATA_FOLDER: Final = "headrace-data"
LEDGER_NAME: Final = "jobs.db"
_PORT_MAX: Final = 65535
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
        Setting("Port for REST and event streams; 0 takes a free port.", least=0, most=_PORT_MAX),
    ] = 8080
    grpc_port: Annotated[
        int | None, Setting("Port for gRPC; 0 takes a free port.", least=0, most=_PORT_MAX)
    ] = 8081
    metrics_port: Annotated[
        int | None,
        Setting("Port for Prometheus metrics; 0 takes a free port.", least=0, most=_PORT_MAX),
    ] = 8082
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

    @classmethod
    def folder(cls, path: str | Path = DATA_FOLDER) -> "JobLocations":
        """Return the default locations: a folder with an SQLite file and an ``objects`` folder."""
        base = Path(path).absolute()
        return cls(f"sqlite:///{base / LEDGER_NAME}", f"{base / 'objects'}/")

    @property
    def reserved_uris(self) -> tuple[str, ...]:
        """The URIs that no submission may name as an input or output.

        They hold the payloads, results and jobs of all tenants. The limits of keys do not change
        that.
        """
        scheme, _, path = self.ledger_url.partition(":///")
        if scheme != "sqlite":
            return (self.store_uri,)
        file = str(Path(path).absolute())
        return (self.store_uri, *(file + suffix for suffix in ("", "-wal", "-shm", "-journal")))

    def make_folders(self) -> None:
        """Create the folders of an SQLite ledger and of a local store."""
        scheme, _, path = self.ledger_url.partition(":///")
        if scheme == "sqlite":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        if "://" not in self.store_uri:
            Path(self.store_uri).mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True)
class JobsOptions:
    """The listeners, access rules and worker of a job server.

    Without models only the API runs, and jobs wait for workers in other processes. Without a
    `config` file with keys, every client may submit jobs, limited to the URIs below `allow_inputs`
    and `allow_outputs`.
    """

    host: Annotated[str, Setting("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Setting("Port of the job API; 0 takes a free port.", least=0, most=_PORT_MAX)] = (
        API_PORT
    )
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
    tls: TlsFiles | None = None
    insecure: Annotated[bool, Setting("Allow a public address without API keys.")] = False
    allow_hosts: _AllowHosts = ()
    """See `headrace.server.application.Guard`."""
    events_queue_url: Annotated[
        str,
        Setting("SQS queue of object events that start triggers.", name="events_queue", metavar="URL"),
    ] = ""
    model_server: ServerOptions | None = None
    """The listeners that serve the models over the Open Inference Protocol; None opens none."""
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        check(self)
