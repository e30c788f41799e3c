"""The options of a model server.

Importing them needs no package of gRPC, unlike `headrace.app.serving`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.server.listen import TlsFiles
from headrace.server.listener import StreamDialect
from headrace.server.rest_inference import RestLimits
from headrace.server.serving import DrainSettings

__all__ = ["DrainSettings", "RestLimits", "ServerOptions", "TlsFiles"]

GrpcCarrier = Literal["grpcio", "asgi"]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The listeners, access rules, limits and drain settings of a model server.

    A port of None opens no listener; 0 takes a free port.
    """

    host: str = "127.0.0.1"
    rest_port: int | None = 8080
    grpc_port: int | None = 8081
    metrics_port: int | None = 8082
    api_keys: Path | None = None
    """The path of a key file, with a table ``[keys.NAME]`` for each key (`headrace.jobs.access`)."""
    allow_hosts: tuple[str, ...] = ()
    """Names that clients may use for this server, besides local ones; see `Guard`."""
    tls: TlsFiles | None = None
    insecure: bool = False
    """Allow a public address without API keys and client certificates."""
    limits: RestLimits = field(default_factory=RestLimits)
    """The body limit applies to gRPC messages, too."""
    grpc_carrier: GrpcCarrier = "grpcio"
    """The gRPC transport: grpcio, or an ASGI server, which is faster and has limits (docs/adr/0010)."""
    stream_dialect: StreamDialect = "mlserver"
    """The default response format of gRPC streams: MLServer's or Triton's. A client may choose."""
    drain: DrainSettings = field(default_factory=DrainSettings)
    access_log: bool = False
    """Log every request when it ends; see `headrace.server.request_log`."""
