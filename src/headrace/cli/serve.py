"""``headrace serve``: models over the Open Inference Protocol."""

import sys
from pathlib import Path
from typing import Any

import click

from headrace.cli.ending import say_error
from headrace.cli.key_values import key_values
from headrace.cli.logs import configure_server_logs
from headrace.cli.options import log_format_option
from headrace.core.errors import ConfigError, HeadraceError
from headrace.engine.settings import ServeSettings

_EPILOG = """\b
Examples:
  One ONNX file, and a class in a Python file, on localhost:
    headrace serve churn.onnx words.py:Words
  Under a name of your own, two copies in processes of their own:
    headrace serve spam=model.onnx --instances 2 --isolation process
  A folder of models, for others, with API keys and TLS:
    headrace serve models/ --host 0.0.0.0 --api-keys keys.txt \\
        --tls-certificate server.pem --tls-key server.key
  Ask it:
    headrace infer churn --input '[[42, 3.5, 0]]'
    curl localhost:8080/v2/models/churn
"""


@click.command("serve", epilog=_EPILOG, context_settings={"auto_envvar_prefix": "HEADRACE_SERVE"})
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--rest-port", type=int, default=8080, show_default=True, help="REST and event streams; 0: a free port."
)
@click.option("--grpc-port", type=int, default=8081, show_default=True, help="gRPC; 0: a free port.")
@click.option(
    "--metrics-port", type=int, default=8082, show_default=True, help="Prometheus metrics; 0: a free port."
)
@click.option("--no-rest", is_flag=True, help="Do not open the REST port.")
@click.option("--no-grpc", is_flag=True, help="Do not open the gRPC port.")
@click.option("--no-metrics", is_flag=True, help="Do not open the metrics port.")
@click.option("--instances", type=int, default=1, show_default=True, help="Copies of each model.")
@click.option(
    "--isolation",
    type=click.Choice(["auto", "inline", "thread", "process"]),
    help="Where a copy runs. Default: what the model says, which is auto.",
)
@click.option("--max-batch-rows", type=int, help="The most rows for one call. Default: the model's own.")
@click.option(
    "--max-batch-delay-ms",
    type=float,
    help="How long a request may wait for expected company. Default: the model's own.",
)
@click.option(
    "--queue-rows-max",
    type=int,
    default=4096,
    show_default=True,
    help="Rows that may wait; more are refused (429).",
)
@click.option(
    "--streams-max", type=int, default=256, show_default=True, help="Streams of a model open at once."
)
@click.option(
    "--sequence-limit",
    "sequence_limits",
    multiple=True,
    metavar="LIMIT=VALUE",
    help="A limit of sequences (live_max, idle_ms, ...) of models with a step. Default: the model's own.",
)
@click.option(
    "--checkpoints",
    metavar="WHERE",
    help="Keep states of sequences at memory:, in a file (SQLite) or at redis://HOST. Default: nowhere.",
)
@click.option(
    "-O",
    "--option",
    "model_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option for the model; see its runtime.",
)
@click.option(
    "--api-keys",
    type=click.Path(path_type=Path),
    help="A file with a line 'ROLE NAME KEY' for each key; roles: infer, admin.",
)
@click.option("--tls-certificate", type=click.Path(path_type=Path), help="The server's certificate, PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key, PEM.")
@click.option(
    "--tls-client-ca",
    type=click.Path(path_type=Path),
    help="Callers need a certificate that this CA has signed (mTLS).",
)
@click.option(
    "--grpc-carrier",
    type=click.Choice(["grpcio", "asgi"]),
    default="grpcio",
    show_default=True,
    help="What carries gRPC; asgi is faster, and has limits.",
)
@click.option(
    "--stream-dialect",
    type=click.Choice(["mlserver", "triton"]),
    default="mlserver",
    show_default=True,
    help="How gRPC streams are answered, unless the caller says.",
)
@click.option(
    "--insecure", is_flag=True, help="Let others reach this server although nothing keeps them out."
)
@click.option(
    "--body-mib-max",
    type=int,
    default=64,
    show_default=True,
    help="The largest request body, in MiB, after decompression.",
)
@click.option(
    "--drain-notice-s", type=float, default=0.0, show_default=True,
    help="On SIGTERM: how long to answer on while saying 'not ready'.",
)  # fmt: skip
@click.option(
    "--drain-grace-s",
    type=float,
    default=30.0,
    show_default=True,
    help="Then: how long to finish what is under way.",
)
@log_format_option("json")
@click.option("--access-log", is_flag=True, help="Log every request when it is over, with its id.")
@click.option("-v", "--verbose", count=True, help="Log more.")
def serve_command(models: tuple[str, ...], **given: Any) -> None:
    """Serve MODEL... over REST, event streams and gRPC.

    A MODEL is a file (model.onnx, file.py, file.py:Class), a class (module:Class), or a folder with one model.toml for
    each model; NAME=MODEL gives it another name. SIGTERM drains: not ready, finish, leave.
    """
    configure_server_logs(given["log_format"], given["verbose"], access=given["access_log"])
    try:
        # Whoever only streams need not have what serving needs.
        from headrace.app.serving import open_server  # noqa: PLC0415

        server = open_server(
            models,
            _options(given),
            settings=_settings(given),
            model_options=key_values(given["model_options"], "--option"),
        )
        server.run(lambda: _say_ready(server.addresses))
    except HeadraceError as error:
        sys.exit(say_error(error, json_lines=False))


def _options(given: dict[str, Any]) -> Any:
    from headrace.app.serving import DrainSettings, RestLimits, ServerOptions  # noqa: PLC0415 - see above

    return ServerOptions(
        host=given["host"],
        rest_port=None if given["no_rest"] else given["rest_port"],
        grpc_port=None if given["no_grpc"] else given["grpc_port"],
        metrics_port=None if given["no_metrics"] else given["metrics_port"],
        api_keys=given["api_keys"],
        tls=_tls(given),
        insecure=given["insecure"],
        limits=RestLimits(body_bytes_max=given["body_mib_max"] << 20),
        grpc_carrier=given["grpc_carrier"],
        stream_dialect=given["stream_dialect"],
        drain=DrainSettings(given["drain_notice_s"], given["drain_grace_s"]),
        access_log=given["access_log"],
    )


def _tls(given: dict[str, Any]) -> Any:
    from headrace.app.serving import TlsFiles  # noqa: PLC0415 - see above

    certificate, key, client_ca = given["tls_certificate"], given["tls_key"], given["tls_client_ca"]
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS needs both --tls-certificate and --tls-key")
    return TlsFiles(certificate, key, client_ca)


def _settings(given: dict[str, Any]) -> ServeSettings:
    names = (
        "instances",
        "isolation",
        "max_batch_rows",
        "max_batch_delay_ms",
        "queue_rows_max",
        "streams_max",
        "checkpoints",
    )
    sequences = key_values(given["sequence_limits"], "--sequence-limit")
    return ServeSettings(**{name: given[name] for name in names}, sequences=sequences)


def _say_ready(addresses: Any) -> None:
    for door, address in addresses.items():
        click.echo(f"{door:<9} {address}", err=True)
    click.echo("ready", err=True)
