"""``headrace work``: run a job worker."""

import sys
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
from headrace.cli.logs import configure_server_logs
from headrace.cli.options import SERVER_LOG_OPTIONS, key_values
from headrace.cli.reports import print_error
from headrace.core.errors import HeadraceError

_EPILOG = """\b
Examples:
  Work on the jobs of a model, with data in ./headrace-data:
    headrace work churn.onnx
  Run sixteen jobs at once, from two queues, with shared batches:
    headrace work churn.onnx --queue urgent --queue default --concurrency 16
  Work on the jobs of a region first, and on others when idle (or --other-regions never):
    headrace work churn.onnx --region eu-west-1 --config jobs.toml
  Use a ledger in PostgreSQL, and payloads and results in S3:
    headrace work models/ --ledger postgresql://jobs@db/jobs --store s3://bucket/jobs/
"""


@click.command("work", epilog=_EPILOG, context_settings={"auto_envvar_prefix": "HEADRACE_WORK"})
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_files)
@JOB_LOCATION_OPTIONS
@WORKER_OPTIONS
@JOB_MODEL_OPTIONS
@SERVER_LOG_OPTIONS
def work_command(models: tuple[str, ...], **params: Any) -> None:
    """Run a worker for the jobs of MODEL...

    MODEL is named as for `headrace serve`. Any number of workers can run on any machine. One worker
    runs each job; if it dies, another worker retries the job. SIGTERM drains: short jobs finish, long
    jobs return to their queues, and the exit status is 0.
    """
    configure_server_logs(params["log_format"], params["verbose"])
    try:
        require_extras("headrace work", *job_extras(params))
        # Jobs are an optional dependency: the other commands work without it.
        from headrace.app.job_worker import open_worker  # noqa: PLC0415
        from headrace.config.jobs_file import read_jobs_file  # noqa: PLC0415

        at, config = job_locations(params), params["config"]
        worker = open_worker(
            models,
            at,
            settings=worker_settings(params),
            serving=serve_settings(params),
            model_options=key_values(params["model_options"], "--option") or None,
            isolation=params["isolation"],
            retention=retention(params),
            file=None
            if config is None
            else read_jobs_file(config, store_uri=at.store_uri, reserved=at.reserved_uris),
        )
        worker.run(lambda: click.echo(f"ready: {worker.worker.settings.name}", err=True))
    except HeadraceError as error:
        sys.exit(print_error(error, json_lines=False))
