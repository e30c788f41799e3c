"""``headrace work``: a worker of jobs."""

import sys
from typing import Any

import click

from headrace.cli.ending import say_error
from headrace.cli.key_values import key_values
from headrace.cli.logs import configure_server_logs
from headrace.core.errors import ConfigError, HeadraceError
from headrace.engine.settings import ServeSettings

_EPILOG = """\b
Examples:
  One model, the jobs in ./headrace-data:
    headrace work churn.onnx
  Sixteen jobs at once, which share the model's calls, from two queues:
    headrace work churn.onnx --queue urgent --queue default --concurrency 16
  Jobs in PostgreSQL, payloads and results in S3:
    headrace work models/ --ledger postgresql://jobs@db/jobs --store s3://bucket/jobs/
"""


def jobs_at_options(command: Any) -> Any:
    """Where jobs are: a folder, or a ledger and a store."""
    for option in reversed(
        (
            click.option(
                "--data",
                default="headrace-data",
                show_default=True,
                metavar="FOLDER",
                help="Where the jobs are: an SQLite file, and the objects beside it.",
            ),
            click.option(
                "--ledger", metavar="URL", help="Instead: sqlite:///FILE or postgresql://…; with --store."
            ),
            click.option(
                "--store",
                metavar="URI",
                help="Where payloads and results are kept: a prefix or folder of its own.",
            ),
        )
    ):
        command = option(command)
    return command


def jobs_at(given: dict[str, Any]) -> Any:
    """The places that the options name. ConfigError where half of them is said."""
    from headrace.app.working import JobsAt  # noqa: PLC0415 - an extra

    ledger, store = given["ledger"], given["store"]
    if (ledger is None) != (store is None):
        raise ConfigError("--ledger and --store belong together: say both, or --data alone")
    return JobsAt.folder(given["data"]) if ledger is None else JobsAt(ledger, store)


@click.command("work", epilog=_EPILOG, context_settings={"auto_envvar_prefix": "HEADRACE_WORK"})
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@jobs_at_options
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Whose jobs to take, the first ones first.  [default: default]",
)
@click.option(
    "--concurrency",
    type=int,
    default=8,
    show_default=True,
    help="Jobs at once; they share the model's calls.",
)
@click.option("--instances", type=int, default=1, show_default=True, help="Copies of each model.")
@click.option(
    "--isolation",
    type=click.Choice(["process", "thread"]),
    default="process",
    show_default=True,
    help="Where a model runs. Only a process can be killed, timed out, and run out of memory alone.",
)
@click.option("--max-batch-rows", type=int, help="The most rows for one call. Default: the model's own.")
@click.option(
    "--max-batch-delay-ms",
    type=float,
    help="How long a job's rows may wait for those of others. Default: the model's own.",
)
@click.option("--call-timeout-s", type=float, help="How long one call of the model may last.")
@click.option("--memory-mib-max", type=int, help="How much memory a model's process may have.")
@click.option(
    "-O",
    "--option",
    "model_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option for the model; see its runtime.",
)
@click.option(
    "--lease-s",
    type=float,
    default=60.0,
    show_default=True,
    help="A dead worker's jobs are run again after so long.",
)
@click.option(
    "--beat-s", type=float, default=15.0, show_default=True, help="How often it says that it lives."
)
@click.option(
    "--drain-grace-s",
    type=float,
    default=30.0,
    show_default=True,
    help="On SIGTERM: how long jobs may go on.",
)
@click.option(
    "--keep-days",
    type=float,
    default=30.0,
    show_default=True,
    help="How long ended jobs and their results are kept.",
)
@click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    default="json",
    show_default=True,
    help="How logs are written to standard error.",
)
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

        worker = open_worker(
            models,
            jobs_at(given),
            settings=worker_settings(given),
            serving=_serving(given),
            model_options=key_values(given["model_options"], "--option") or None,
            isolation=given["isolation"],
            retention=_retention(given),
        )
        worker.run(lambda: click.echo(f"ready: {worker.worker.settings.name}", err=True))
    except HeadraceError as error:
        sys.exit(say_error(error, json_lines=False))


def worker_settings(given: dict[str, Any]) -> Any:
    """How the worker works, by its options."""
    from headrace.jobs.worker.settings import WorkerSettings  # noqa: PLC0415

    return WorkerSettings(
        queues=given["queues"] or ("default",),
        concurrency=given["concurrency"],
        lease_s=given["lease_s"],
        beat_s=given["beat_s"],
        drain_grace_s=given["drain_grace_s"],
    )


def _retention(given: dict[str, Any]) -> Any:
    from headrace.jobs.maintenance.sweeper import Retention  # noqa: PLC0415

    return Retention(jobs_s=given["keep_days"] * 86_400)


def _serving(given: dict[str, Any]) -> ServeSettings:
    mib = given["memory_mib_max"]
    return ServeSettings(
        instances=given["instances"],
        max_batch_rows=given["max_batch_rows"],
        max_batch_delay_ms=given["max_batch_delay_ms"],
        call_timeout_s=given["call_timeout_s"],
        memory_bytes_max=None if mib is None else mib << 20,
    )
