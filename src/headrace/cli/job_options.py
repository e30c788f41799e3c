"""Options of ``headrace work`` and ``headrace up``: locations of jobs, worker and models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headrace.cli.groups import complete_files
from headrace.cli.options import combined_options, parse_bytes
from headrace.cli.renamed import old_option_name
from headrace.core.errors import ConfigError
from headrace.engine.settings import ServeSettings

JOB_LOCATION_OPTIONS = combined_options(
    click.option(
        "--data",
        default="headrace-data",
        show_default=True,
        metavar="FOLDER",
        shell_complete=complete_files,
        help="Folder of the jobs: an SQLite file and the stored objects.",
    ),
    click.option(
        "--ledger",
        metavar="URL",
        help="URL of the job ledger, sqlite:///FILE or postgresql://…; with --store, instead of --data.",
    ),
    click.option(
        "--store", metavar="URI", help="Prefix or folder of payloads and results, used by headrace only."
    ),
    click.option(
        "--dispatcher",
        default="",
        metavar="URL",
        help="Broker that wakes idle workers: redis://…, amqp://… or sqs://…; see docs/wakeup-brokers.md.",
    ),
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="TOML file with keys, triggers, notifications and queue limits; see docs/jobs.md.",
    ),
)

WORKER_OPTIONS = combined_options(
    click.option(
        "--queue",
        "queues",
        multiple=True,
        metavar="NAME",
        help="Queue to take jobs from, in order of preference. Repeatable.  [default: default]",
    ),
    click.option(
        "--region",
        metavar="LABEL",
        help="Region of the worker; its jobs, and those without a region, come first.  [default: none]",
    ),
    click.option(
        "--other-regions",
        type=click.Choice(["idle", "never"]),
        help="With --region, work on jobs of other regions: when idle, or never.  [default: idle]",
    ),
    click.option(
        "--concurrency",
        type=int,
        default=8,
        show_default=True,
        help="Number of concurrent jobs; they share the model's batches.",
    ),
    click.option(
        "--lease-s",
        type=float,
        default=60.0,
        show_default=True,
        help="Seconds without a heartbeat after which a worker's jobs are retried.",
    ),
    click.option(
        "--heartbeat-s", type=float, default=15.0, show_default=True, help="Heartbeat interval in seconds."
    ),
    old_option_name("--beat-s", "--heartbeat-s"),
    click.option(
        "--drain-grace-s",
        type=float,
        default=30.0,
        show_default=True,
        help="Seconds after SIGTERM in which running jobs may finish.",
    ),
    click.option(
        "--keep-days",
        type=float,
        default=30.0,
        show_default=True,
        help="Retention of ended jobs and their results in days.",
    ),
)

JOB_MODEL_OPTIONS = combined_options(
    click.option(
        "--instances", type=int, default=1, show_default=True, help="Number of instances of each model."
    ),
    click.option(
        "--isolation",
        type=click.Choice(["process", "thread"]),
        default="process",
        show_default=True,
        help="Isolation of model instances. Only a process can be killed, timed out or limited in memory.",
    ),
    click.option("--max-batch-rows", type=int, help="Batch size limit in rows.  [default: the model's own]"),
    click.option(
        "--max-batch-delay-ms",
        type=float,
        help="Longest wait of a job's rows for other jobs' rows in milliseconds.  [default: the model's own]",
    ),
    click.option("--call-timeout-s", type=float, help="Timeout of a model call in seconds."),
    click.option(
        "--memory-bytes-max", callback=parse_bytes, metavar="SIZE", help="Memory limit of a model process."
    ),
    old_option_name("--memory-mib-max", "--memory-bytes-max", "{}MiB".format),
    click.option(
        "-O",
        "--option",
        "model_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Option of the model's runtime or class. Repeatable.",
    ),
)


def job_locations(params: dict[str, Any]) -> Any:
    """Return the locations that the options name. Raise ConfigError for --ledger without --store."""
    from headrace.app.job_components import JobLocations  # noqa: PLC0415 - optional dependency

    ledger, store = params["ledger"], params["store"]
    if (ledger is None) != (store is None):
        raise ConfigError("--ledger and --store must be given together, or use --data")
    locations = JobLocations.folder(params["data"]) if ledger is None else JobLocations(ledger, store)
    return replace(locations, dispatcher_url=params["dispatcher"])


def worker_settings(params: dict[str, Any]) -> Any:
    """Return the worker settings of the options; the ``--config`` file supplies missing regions."""
    from headrace.config.jobs_file import read_worker_region  # noqa: PLC0415
    from headrace.jobs.worker.settings import WorkerSettings  # noqa: PLC0415

    place = read_worker_region(params["config"])
    return WorkerSettings(
        queues=params["queues"] or ("default",),
        region=params["region"] or place.region,
        other_regions=params["other_regions"] or place.other_regions,
        concurrency=params["concurrency"],
        lease_s=params["lease_s"],
        heartbeat_s=params["heartbeat_s"],
        drain_grace_s=params["drain_grace_s"],
    )


def retention(params: dict[str, Any]) -> Any:
    """Return the retention settings of the options."""
    from headrace.jobs.maintenance import Retention  # noqa: PLC0415

    return Retention(jobs_s=params["keep_days"] * 86_400)


def serve_settings(params: dict[str, Any]) -> ServeSettings:
    """Return the model settings of the options."""
    return ServeSettings(
        instances=params["instances"],
        max_batch_rows=params["max_batch_rows"],
        max_batch_delay_ms=params["max_batch_delay_ms"],
        call_timeout_s=params["call_timeout_s"],
        memory_bytes_max=params["memory_bytes_max"],
    )
