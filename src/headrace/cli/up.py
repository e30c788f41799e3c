"""``headrace up``: run the job API, a worker and a model server in one process."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from headrace.app.server_options import JobsOptions, ServerOptions, TlsFiles
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
from headrace.cli.logs import configure_server_logs
from headrace.cli.options import SERVER_LOG_OPTIONS, key_values, setting_options, settings_from, tls_files
from headrace.cli.reports import print_error
from headrace.core.errors import HeadraceError

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


_NOT_OF_JOBS: Final = frozenset(
    {
        "host",
        "insecure",
        "allow_hosts",
        "grpc_port",
        "metrics_port",
        "api_keys",
        "grpc_carrier",
        "stream_dialect",
        "access_log",
    }
)
"""Options of `headrace serve` that the model server beside a job API does not have."""


@click.command(
    "up",
    epilog=_EPILOG,
    short_help="Run the job API and a worker.",
    context_settings={"auto_envvar_prefix": "HEADRACE_UP"},
)
@click.argument("models", nargs=-1, metavar="[MODEL...]", shell_complete=complete_files)
@JOB_LOCATION_OPTIONS
@setting_options(JobsOptions, without={"config"})
@setting_options(ServerOptions, without=_NOT_OF_JOBS)
@click.option("--no-serve", is_flag=True, help="Do not serve the models over REST.")
@setting_options(TlsFiles, without={"tls_client_ca"})
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


def _options(params: dict[str, Any]) -> JobsOptions:
    tls = tls_files(params)
    model_server = settings_from(ServerOptions, params, grpc_port=None, metrics_port=None, tls=tls)
    options = settings_from(
        JobsOptions,
        params,
        tls=tls,
        model_server=None if params["no_serve"] else model_server,
        worker=worker_settings(params),
        retention=retention(params),
    )
    return replace(
        options,
        allow_inputs=tuple(map(_absolute_prefix, options.allow_inputs)),
        allow_outputs=tuple(map(_absolute_prefix, options.allow_outputs)),
    )


def _absolute_prefix(prefix: str) -> str:
    """Return a local folder as an absolute path, and a URI unchanged."""
    return prefix if "://" in prefix else str(Path(prefix).absolute())


def _print_addresses(addresses: Any) -> None:
    for listener, address in addresses.items():
        click.echo(f"{listener:<5} {address}", err=True)
    click.echo("ready", err=True)
