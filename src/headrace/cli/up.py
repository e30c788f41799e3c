"""``headrace up``: everything that jobs need, in one process group."""

import sys
from pathlib import Path
from typing import Any

import click

from headrace.cli.ending import say_error
from headrace.cli.job_options import (
    JOB_MODEL_OPTIONS,
    JOBS_AT_OPTIONS,
    WORKER_OPTIONS,
    jobs_at,
    retention,
    serve_settings,
    worker_settings,
)
from headrace.cli.key_values import key_values
from headrace.cli.logs import configure_server_logs
from headrace.cli.options import log_format_option
from headrace.core.errors import ConfigError, HeadraceError

_EPILOG = """\b
Examples:
  A model, its jobs in ./headrace-data, the API on port 8090:
    headrace up churn.onnx
  Give it something to do, from another terminal:
    headrace submit rows.csv --model churn --wait
  The API alone, for workers elsewhere:
    headrace up --ledger postgresql://jobs@db/jobs --store s3://bucket/jobs/ --config jobs.toml --host 0.0.0.0
"""


@click.command(
    "up",
    epilog=_EPILOG,
    short_help="Take jobs over HTTP, and do them.",
    context_settings={"auto_envvar_prefix": "HEADRACE_UP"},
)
@click.argument("models", nargs=-1, metavar="[MODEL...]")
@JOBS_AT_OPTIONS
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=int, default=8090, show_default=True, help="The API of jobs; 0: a free port.")
@click.option(
    "--rest-port",
    type=int,
    default=8080,
    show_default=True,
    help="The models themselves, over REST; 0: a free port.",
)
@click.option("--no-serve", is_flag=True, help="Do not serve the models themselves; only their jobs.")
@click.option(
    "--allow-input",
    "allow_inputs",
    multiple=True,
    metavar="PREFIX",
    help="Without keys: a bucket's prefix, a folder, or https://HOST/PREFIX that jobs may read.",
)
@click.option(
    "--allow-output",
    "allow_outputs",
    multiple=True,
    metavar="PREFIX",
    help="Without keys: one that jobs may write.",
)
@click.option(
    "--events-queue",
    default="",
    metavar="URL",
    help="An SQS queue of object events, to be polled for triggers.",
)
@click.option("--tls-certificate", type=click.Path(path_type=Path), help="The server's certificate, PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key, PEM.")
@click.option(
    "--insecure", is_flag=True, help="Let others reach this server although nothing keeps them out."
)
@WORKER_OPTIONS
@JOB_MODEL_OPTIONS
@log_format_option("text")
@click.option("-v", "--verbose", count=True, help="Log more.")
def up_command(models: tuple[str, ...], **given: Any) -> None:
    """Take jobs over HTTP and do them, with the ledger and the results in a folder.

    With MODEL... there is a worker beside the API, and the models are served too; without, jobs wait for `headrace work`
    elsewhere. SIGTERM drains: short jobs end, long ones go back, exit status 0.
    """  # fmt: skip
    configure_server_logs(given["log_format"], given["verbose"])
    try:
        # Whoever only streams need not have what jobs need.
        from headrace.app.jobs import open_jobs  # noqa: PLC0415

        opened = open_jobs(
            models,
            jobs_at(given),
            _options(given),
            serving=serve_settings(given),
            model_options=key_values(given["model_options"], "--option") or None,
            isolation=given["isolation"],
        )
        opened.run(lambda: _say_ready(opened.addresses))
    except HeadraceError as error:
        sys.exit(say_error(error, json_lines=False))


def _options(given: dict[str, Any]) -> Any:
    from headrace.app.jobs import JobsOptions  # noqa: PLC0415 - see above
    from headrace.app.serving import ServerOptions, TlsFiles  # noqa: PLC0415 - see above

    certificate, key = given["tls_certificate"], given["tls_key"]
    if (certificate is None) != (key is None):
        raise ConfigError("TLS needs both --tls-certificate and --tls-key")
    tls = None if certificate is None else TlsFiles(certificate, key)
    doors = ServerOptions(
        host=given["host"],
        rest_port=given["rest_port"],
        grpc_port=None,
        metrics_port=None,
        tls=tls,
        insecure=given["insecure"],
    )
    return JobsOptions(
        host=given["host"],
        port=given["port"],
        config=given["config"],
        allow_inputs=tuple(map(_place, given["allow_inputs"])),
        allow_outputs=tuple(map(_place, given["allow_outputs"])),
        tls=tls,
        insecure=given["insecure"],
        events_queue_url=given["events_queue"],
        doors=None if given["no_serve"] else doors,
        worker=worker_settings(given),
        retention=retention(given),
    )


def _place(said: str) -> str:
    """A folder as people type it, by its absolute path; anything else as it stands."""
    return said if "://" in said else str(Path(said).absolute())


def _say_ready(addresses: Any) -> None:
    for door, address in addresses.items():
        click.echo(f"{door:<5} {address}", err=True)
    click.echo("ready", err=True)
