"""``headrace serve``: serve models over the Open Inference Protocol."""

import sys
from pathlib import Path
from typing import Any

import click

from headrace.cli.extras import require_extras
from headrace.cli.groups import complete_files
from headrace.cli.key_values import key_values
from headrace.cli.logs import configure_server_logs
from headrace.cli.options import SERVER_LOG_OPTIONS, parse_bytes
from headrace.cli.renamed import old_option_name
from headrace.cli.reports import print_error
from headrace.core.errors import ConfigError, HeadraceError
from headrace.engine.settings import ServeSettings

_EPILOG = """\b
Examples:
  Serve an ONNX file and a class of a Python file on localhost:
    headrace serve churn.onnx words.py:Words
  Serve a model under another name, with two instances in processes:
    headrace serve spam=model.onnx --instances 2 --isolation process
  Serve a folder of models on all addresses, with API keys and TLS:
    headrace serve models/ --host 0.0.0.0 --api-keys keys.toml \\
        --tls-certificate server.pem --tls-key server.key
  Send requests to the server:
    headrace infer churn --input '[[42, 3.5, 0]]'
    curl localhost:8080/v2/models/churn
"""


@click.command("serve", epilog=_EPILOG, context_settings={"auto_envvar_prefix": "HEADRACE_SERVE"})
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_files)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--rest-port",
    type=int,
    default=8080,
    show_default=True,
    help="Port for REST and event streams; 0 takes a free port.",
)
@click.option(
    "--grpc-port", type=int, default=8081, show_default=True, help="Port for gRPC; 0 takes a free port."
)
@click.option(
    "--metrics-port",
    type=int,
    default=8082,
    show_default=True,
    help="Port for Prometheus metrics; 0 takes a free port.",
)
@click.option("--no-rest", is_flag=True, help="Do not open the REST port.")
@click.option("--no-grpc", is_flag=True, help="Do not open the gRPC port.")
@click.option("--no-metrics", is_flag=True, help="Do not open the metrics port.")
@click.option(
    "--instances", type=int, default=1, show_default=True, help="Number of instances of each model."
)
@click.option(
    "--isolation",
    type=click.Choice(["auto", "inline", "thread", "process"]),
    help="Isolation of model instances.  [default: the model's own, else auto]",
)
@click.option("--max-batch-rows", type=int, help="Batch size limit in rows.  [default: the model's own]")
@click.option(
    "--max-batch-delay-ms",
    type=float,
    help="Longest wait for rows of other requests in milliseconds.  [default: the model's own]",
)
@click.option(
    "--queue-rows-max",
    type=int,
    default=4096,
    show_default=True,
    help="Limit of waiting rows; requests above it are refused with status 429.",
)
@click.option(
    "--streams-max", type=int, default=256, show_default=True, help="Limit of concurrent streams of a model."
)
@click.option(
    "--sequence-limit",
    "sequence_limits",
    multiple=True,
    metavar="LIMIT=VALUE",
    help="Sequence limit (live_max, idle_ms, …) of models with a step method. Repeatable.  "
    "[default: the model's own]",
)
@click.option(
    "--checkpoints",
    metavar="WHERE",
    help="Store of sequence states: memory:, an SQLite file or redis://HOST.  [default: none]",
)
@click.option(
    "-O",
    "--option",
    "model_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the model's runtime or class. Repeatable.",
)
@click.option(
    "--api-keys",
    type=click.Path(path_type=Path),
    help="API key file with a table [keys.NAME] for each key, from 'headrace keys new'.",
)
@click.option(
    "--tls-certificate", type=click.Path(path_type=Path), help="PEM file of the server certificate."
)
@click.option("--tls-key", type=click.Path(path_type=Path), help="PEM file of the server key.")
@click.option(
    "--tls-client-ca",
    type=click.Path(path_type=Path),
    help="PEM file of the CA that must sign client certificates (mTLS).",
)
@click.option(
    "--grpc-carrier",
    type=click.Choice(["grpcio", "asgi"]),
    default="grpcio",
    show_default=True,
    help="gRPC transport; asgi is faster and has limits.",
)
@click.option(
    "--stream-dialect",
    type=click.Choice(["mlserver", "triton"]),
    default="mlserver",
    show_default=True,
    help="Default response format of gRPC streams.",
)
@click.option(
    "--insecure", is_flag=True, help="Allow a public address without API keys and client certificates."
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Name that clients may use for this server, besides local ones; * allows every name. Repeatable.",
)
@click.option(
    "--body-bytes-max",
    callback=parse_bytes,
    default="64MiB",
    show_default=True,
    metavar="SIZE",
    help="Size limit of a decompressed request body.",
)
@old_option_name("--body-mib-max", "--body-bytes-max", "{}MiB".format)
@click.option(
    "--drain-notice-s",
    type=float,
    default=0.0,
    show_default=True,
    help="Seconds after SIGTERM in which requests are accepted with readiness 'not ready'.",
)
@click.option(
    "--drain-grace-s",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds after that in which running requests may finish.",
)
@SERVER_LOG_OPTIONS
@click.option("--access-log", is_flag=True, help="Log every request with its id when it ends.")
def serve_command(models: tuple[str, ...], **params: Any) -> None:
    """Serve MODEL... over REST, event streams and gRPC.

    A MODEL is a file (model.onnx, file.py, file.py:Class), a class (module:Class), or a folder with
    one model.toml for each model; NAME=MODEL gives it another name. SIGTERM drains the server: it
    reports "not ready", finishes running requests and exits with status 0.
    """
    configure_server_logs(params["log_format"], params["verbose"], access=params["access_log"])
    try:
        require_extras("headrace serve", "serve", *(["http2"] if params["grpc_carrier"] == "asgi" else []))
        # Serving is an optional dependency: the other commands work without it.
        from headrace.app.serving import open_server  # noqa: PLC0415

        server = open_server(
            models,
            _options(params),
            settings=_settings(params),
            model_options=key_values(params["model_options"], "--option"),
        )
        server.run(lambda: _print_addresses(server.addresses))
    except HeadraceError as error:
        sys.exit(print_error(error, json_lines=False))


def _options(params: dict[str, Any]) -> Any:
    from headrace.app.serving import DrainSettings, RestLimits, ServerOptions  # noqa: PLC0415

    return ServerOptions(
        host=params["host"],
        rest_port=None if params["no_rest"] else params["rest_port"],
        grpc_port=None if params["no_grpc"] else params["grpc_port"],
        metrics_port=None if params["no_metrics"] else params["metrics_port"],
        api_keys=params["api_keys"],
        tls=_tls(params),
        allow_hosts=params["allow_hosts"],
        insecure=params["insecure"],
        limits=RestLimits(body_bytes_max=params["body_bytes_max"]),
        grpc_carrier=params["grpc_carrier"],
        stream_dialect=params["stream_dialect"],
        drain=DrainSettings(params["drain_notice_s"], params["drain_grace_s"]),
        access_log=params["access_log"],
    )


def _tls(params: dict[str, Any]) -> Any:
    from headrace.app.serving import TlsFiles  # noqa: PLC0415

    certificate, key, client_ca = params["tls_certificate"], params["tls_key"], params["tls_client_ca"]
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS needs both --tls-certificate and --tls-key")
    return TlsFiles(certificate, key, client_ca)


def _settings(params: dict[str, Any]) -> ServeSettings:
    names = (
        "instances",
        "isolation",
        "max_batch_rows",
        "max_batch_delay_ms",
        "queue_rows_max",
        "streams_max",
        "checkpoints",
    )
    sequences = key_values(params["sequence_limits"], "--sequence-limit")
    return ServeSettings(**{name: params[name] for name in names}, sequences=sequences)


def _print_addresses(addresses: Any) -> None:
    for listener, address in addresses.items():
        click.echo(f"{listener:<9} {address}", err=True)
    click.echo("ready", err=True)
