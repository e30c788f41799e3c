"""``headrace work``: a worker of jobs."""

import sys
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
from headrace.core.errors import HeadraceError

_EPILOG = """\b
Examples:
  One model, the jobs in ./headrace-data:
    headrace work churn.onnx
  Sixteen jobs at once, which share the model's calls, from two queues:
    headrace work churn.onnx --queue urgent --queue default --concurrency 16
  Beside the data: its own region's jobs first, others' while it has none of those (or --other-regions never):
    headrace work churn.onnx --region eu-west-1 --config jobs.toml
  Jobs in PostgreSQL, payloads and results in S3:
    headrace work models/ --ledger postgresql://jobs@db/jobs --store s3://bucket/jobs/
"""


@click.command("work", epilog=_EPILOG, context_settings={"auto_envvar_prefix": "HEADRACE_WORK"})
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@JOBS_AT_OPTIONS
@WORKER_OPTIONS
@JOB_MODEL_OPTIONS
@log_format_option("json")
@click.option("-v", "--verbose", count=True, help="Log more.")
def work_command(models: tuple[str, ...], **given: Any) -> None:
    """Do the jobs that are submitted for MODEL...

    A MODEL is named as for `headrace serve`. Run as many workers as you like, anywhere: each job is done by one of them, and
    again soon by another when that one dies. SIGTERM drains: short jobs end, long ones go back, exit status 0.
    """  # fmt: skip
    configure_server_logs(given["log_format"], given["verbose"])
    try:
        # Whoever only streams need not have what jobs need.
        from headrace.app.working import open_worker  # noqa: PLC0415
        from headrace.config.jobs_file import read_jobs_file  # noqa: PLC0415

        at, config = jobs_at(given), given["config"]
        worker = open_worker(
            models,
            at,
            settings=worker_settings(given),
            serving=serve_settings(given),
            model_options=key_values(given["model_options"], "--option") or None,
            isolation=given["isolation"],
            retention=retention(given),
            file=None
            if config is None
            else read_jobs_file(config, store_uri=at.store_uri, reserved=at.own_places),
        )
        worker.run(lambda: click.echo(f"ready: {worker.worker.settings.name}", err=True))
    except HeadraceError as error:
        sys.exit(say_error(error, json_lines=False))
