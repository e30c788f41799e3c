"""``headrace up``: run the job API, a worker and a model server in one process."""

import sys
from pathlib import Path
from typing import Any

import click

from headrace.cli.extras import job_extras, require_extras
from headrace.cli.groups import complete_files
from headrace.cli.job_options import (
    JOB_LOCATION_OPTIONS,
    JOB_MODEL_OPTIONS,
    WORKER_OPTIONS,
    job_locations,
    retention,
    serve_settings,
    worker_settings,
)
from headrace.cli.key_values import key_values
from headrace.cli.logs import configure_server_logs
from headrace.cli.options import SERVER_LOG_OPTIONS
from headrace.cli.reports import print_error
from headrace.core.errors import ConfigError, HeadraceError

_EPILOG = """\b
Examples:
  Run jobs of a model: data in ./headrace-data, the job API on port 8090:
    headrace up churn.onnx
  Submit a job from another terminal:
    headrace submit rows.csv --model churn --wait
  Run the job API alone, for workers on other machines:
    headrace up --ledger postgresql://jobs@db/jobs --store s3://bucket/jobs/ \\
        --config jobs.toml --host 0.0.0.0
"""


@click.command(
    "up",
    epilog=_EPILOG,
    short_help="Run the job API and a worker.",
    context_settings={"auto_envvar_prefix": "HEADRACE_UP"},
)
@click.argument("models", nargs=-1, metavar="[MODEL...]", shell_complete=complete_files)
@JOB_LOCATION_OPTIONS
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=int, default=8090, show_default=True, help="Port of the job API; 0 takes a free port."
)
@click.option(
    "--rest-port",
    type=int,
    default=8080,
    show_default=True,
    help="REST port of the models; 0 takes a free port.",
)
@click.option("--no-serve", is_flag=True, help="Do not serve the models over REST.")
@click.option(
    "--allow-input",
    "allow_inputs",
    multiple=True,
    metavar="PREFIX",
    help="Prefix, folder or https://HOST/PREFIX that jobs may read, without --config. Repeatable.",
)
@click.option(
    "--allow-output",
    "allow_outputs",
    multiple=True,
    metavar="PREFIX",
    help="Prefix or folder that jobs may write, without --config. Repeatable.",
)
@click.option(
    "--events-queue",
    default="",
    metavar="URL",
    help="SQS queue of object events that start triggers.",
)
@click.option(
    "--tls-certificate", type=click.Path(path_type=Path), help="PEM file of the server certificate."
)
@click.option("--tls-key", type=click.Path(path_type=Path), help="PEM file of the server key.")
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Name that clients may use for this server, besides local ones; * allows every name. Repeatable.",
)
@click.option("--insecure", is_flag=True, help="Allow a public address without API keys.")
@WORKER_OPTIONS
@JOB_MODEL_OPTIONS
@SERVER_LOG_OPTIONS
def up_command(models: tuple[str, ...], **params: Any) -> None:
    """Run the job API and a worker, with the ledger and the results in a folder.

    With MODEL... a worker runs the jobs, and the models are served over REST. Without, jobs wait for
    `headrace work` in other processes. SIGTERM drains: short jobs finish, long jobs return to their
    queues, and the exit status is 0.
    """
    configure_server_logs(params["log_format"], params["verbose"])
    try:
        _require_extras(models, params)
        # Jobs are an optional dependency: the other commands work without it.
        from headrace.app.jobs import open_jobs  # noqa: PLC0415

        opened = open_jobs(
            models,
            job_locations(params),
            _options(params),
            serving=serve_settings(params),
            model_options=key_values(params["model_options"], "--option") or None,
            isolation=params["isolation"],
        )
        opened.run(lambda: _print_addresses(opened.addresses))
    except HeadraceError as error:
        sys.exit(print_error(error, json_lines=False))


def _require_extras(models: tuple[str, ...], params: dict[str, Any]) -> None:
    if models and not params["no_serve"]:
        hint = "with --no-serve, 'headrace[jobs]' is enough"
        require_extras("headrace up MODEL", *job_extras(params, "up"), hint=hint)
    else:
        require_extras("headrace up", *job_extras(params))


def _options(params: dict[str, Any]) -> Any:
    from headrace.app.jobs import JobsOptions  # noqa: PLC0415
    from headrace.app.server_options import ServerOptions, TlsFiles  # noqa: PLC0415

    certificate, key = params["tls_certificate"], params["tls_key"]
    if (certificate is None) != (key is None):
        raise ConfigError("TLS needs both --tls-certificate and --tls-key")
    tls = None if certificate is None else TlsFiles(certificate, key)
    model_server = ServerOptions(
        host=params["host"],
        rest_port=params["rest_port"],
        grpc_port=None,
        metrics_port=None,
        tls=tls,
        insecure=params["insecure"],
    )
    return JobsOptions(
        host=params["host"],
        port=params["port"],
        config=params["config"],
        allow_inputs=tuple(map(_absolute_prefix, params["allow_inputs"])),
        allow_outputs=tuple(map(_absolute_prefix, params["allow_outputs"])),
        tls=tls,
        insecure=params["insecure"],
        allow_hosts=params["allow_hosts"],
        events_queue_url=params["events_queue"],
        model_server=None if params["no_serve"] else model_server,
        worker=worker_settings(params),
        retention=retention(params),
    )


def _absolute_prefix(prefix: str) -> str:
    """Return a local folder as an absolute path, and a URI unchanged."""
    return prefix if "://" in prefix else str(Path(prefix).absolute())


def _print_addresses(addresses: Any) -> None:
    for listener, address in addresses.items():
        click.echo(f"{listener:<5} {address}", err=True)
    click.echo("ready", err=True)
