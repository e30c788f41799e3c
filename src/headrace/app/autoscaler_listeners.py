"""Build the listeners of `headrace scale`, from which other autoscalers read the decisions about pools."""

from headrace.app.server_options import AutoscalerOptions
from headrace.jobs.ledger import JobLedger
from headrace.server.application import Guard, check_bind
from headrace.server.jobs.shared_reading import SharedReading
from headrace.server.listen import HttpListener, ListenerThread
from headrace.server.scaling.external_metrics import external_metrics_app

_SHARED_S = 1.0
"""The time for which autoscalers share a reading of the ledger."""


def open_autoscaler_listeners(ledger: JobLedger, options: AutoscalerOptions) -> dict[str, ListenerThread]:
    """Return the listeners by name, not started. The owner of the ledger runs it while they run.

    Raises:
        ConfigError: A port is in use, or a public address has no access control.
    """
    if options.keda_port is None and options.external_metrics_port is None:
        return {}
    tls = options.tls
    guarded = tls is not None and tls.client_ca is not None
    check_bind(options.host, guarded=guarded, insecure=options.insecure, by="--tls-client-ca FILE")
    read_pools = SharedReading(ledger.pools, shared_s=_SHARED_S).wait
    listeners: dict[str, ListenerThread] = {}
    if options.external_metrics_port is not None:
        app = external_metrics_app(read_pools, Guard(bound_to=options.host))
        listener = HttpListener(app, options.host, options.external_metrics_port, tls)
        listeners["external_metrics"] = ListenerThread(listener)
    if options.keda_port is not None:
        # gRPC is an extra of its own.
        from headrace.server.grpc_aio import GrpcAioServer, GrpcAioSettings  # noqa: PLC0415
        from headrace.server.scaling.keda import ExternalScaler  # noqa: PLC0415

        settings = GrpcAioSettings(host=options.host, port=options.keda_port, tls=tls)
        listeners["keda"] = ListenerThread(GrpcAioServer(ExternalScaler(read_pools), settings))
    return listeners
