"""``headrace serve``: serve models over the Open Inference Protocol."""

import sys
from dataclasses import replace
from typing import Any, cast

import click

from headrace.app.server_options import DrainSettings, RestLimits, ServerOptions, TlsFiles
from headrace.cli.extras import require_extras
from headrace.cli.groups import complete_files
from headrace.cli.logs import configure_server_logs
from headrace.cli.options import (
    MODEL_OPTIONS_OPTION,
    SERVER_LOG_OPTIONS,
    key_values,
    old_option_name,
    setting_options,
    settings_from,
    tls_files,
)
from headrace.cli.reports import print_error
from headrace.core.errors import HeadraceError
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
@setting_options(ServerOptions, ServeSettings, RestLimits, TlsFiles, DrainSettings)
@click.option("--no-rest", is_flag=True, help="Do not open the REST port.")
@click.option("--no-grpc", is_flag=True, help="Do not open the gRPC port.")
@click.option("--no-metrics", is_flag=True, help="Do not open the metrics port.")
@click.option(
    "--sequence-limit",
    "sequence_limits",
    multiple=True,
    metavar="LIMIT=VALUE",
    help="Sequence limit (live_max, idle_ms, …) of models with a step method. Repeatable.  "
    "[default: the model's own]",
)
@MODEL_OPTIONS_OPTION
@old_option_name("--body-mib-max", "--body-bytes-max", "body_bytes_max", "{}MiB".format)
@SERVER_LOG_OPTIONS
def serve_command(models: tuple[str, ...], **params: Any) -> None:
    """Serve MODEL... over REST, event streams and gRPC.

    A MODEL is a file (model.onnx, file.py, file.py:Class), a class (module:Class), or a folder with
    one model.toml for each model; NAME=MODEL gives it another name. SIGTERM drains the server: it
    reports "not ready", finishes running requests and exits with status 0.
    """
    configure_server_logs(params["log_format"], params["verbose"], access=params["access_log"])
    try:
        asgi = params["grpc_carrier"] == "asgi"
        require_extras("headrace serve", "serve", *(["http2"] if asgi else []))
        # Serving is an optional dependency: the other commands work without it.
        from headrace.app.serving import open_server  # noqa: PLC0415

        server = open_server(
            models,
            _options(params),
            settings=settings_from(
                ServeSettings,
                params,
                sequences=key_values(params["sequence_limits"], "--sequence-limit"),
            ),
            model_options=key_values(params["model_options"], "--option"),
        )
        server.run(lambda: _print_addresses(server.addresses))
    except HeadraceError as error:
        sys.exit(print_error(error, json_lines=False))


def _options(params: dict[str, Any]) -> ServerOptions:
    ports = {f"{name}_port": None for name in ("rest", "grpc", "metrics") if params[f"no_{name}"]}
    options = settings_from(
        ServerOptions,
        params,
        limits=settings_from(RestLimits, params),
        tls=tls_files(params),
        drain=settings_from(DrainSettings, params),
    )
    return replace(options, **cast("Any", ports))


def _print_addresses(addresses: Any) -> None:
    for listener, address in addresses.items():
        click.echo(f"{listener:<9} {address}", err=True)
    click.echo("ready", err=True)
