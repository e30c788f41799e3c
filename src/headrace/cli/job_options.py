"""Options that ``headrace work`` and ``headrace up`` share: where jobs are, how they are worked on, how models run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headrace.cli.options import options
from headrace.core.errors import ConfigError
from headrace.engine.settings import ServeSettings

JOBS_AT_OPTIONS = options(
    click.option(
        "--data", default="headrace-data", show_default=True, metavar="FOLDER",
        help="Where the jobs are: an SQLite file, and the objects beside it.",
    ),
    click.option("--ledger", metavar="URL", help="Instead: sqlite:///FILE or postgresql://…; with --store."),
    click.option("--store", metavar="URI", help="Where payloads and results are kept: a prefix or folder of its own."),
    click.option(
        "--dispatcher", default="", metavar="URL",
        help="What wakes workers beside the ledger: redis://…, amqp://… or sqs://…; see docs/dispatchers.md.",
    ),
    click.option(
        "--config", type=click.Path(path_type=Path),
        help="A TOML file with keys, triggers, whom to tell, bounds of queues; see docs/jobs.md.",
    ),
)  # fmt: skip

WORKER_OPTIONS = options(
    click.option(
        "--queue", "queues", multiple=True, metavar="NAME",
        help="Whose jobs to take, the first ones first.  [default: default]",
    ),
    click.option(
        "--region", metavar="LABEL",
        help="Where it is: jobs whose data lives there come first, with those of no region.  [default: all alike]",
    ),
    click.option(
        "--other-regions", type=click.Choice(["idle", "never"]),
        help="With --region: when to take other regions' jobs: having nothing else to do, or never.  [default: idle]",
    ),
    click.option("--concurrency", type=int, default=8, show_default=True, help="Jobs at once; they share the model's calls."),
    click.option("--lease-s", type=float, default=60.0, show_default=True, help="A dead worker's jobs are run again after so long."),
    click.option("--beat-s", type=float, default=15.0, show_default=True, help="How often it says that it lives."),
    click.option("--drain-grace-s", type=float, default=30.0, show_default=True, help="On SIGTERM: how long jobs may go on."),
    click.option("--keep-days", type=float, default=30.0, show_default=True, help="How long ended jobs and their results are kept."),
)  # fmt: skip

JOB_MODEL_OPTIONS = options(
    click.option("--instances", type=int, default=1, show_default=True, help="Copies of each model."),
    click.option(
        "--isolation", type=click.Choice(["process", "thread"]), default="process", show_default=True,
        help="Where a model runs. Only a process can be killed, timed out, and run out of memory alone.",
    ),
    click.option("--max-batch-rows", type=int, help="The most rows for one call. Default: the model's own."),
    click.option(
        "--max-batch-delay-ms", type=float,
        help="How long a job's rows may wait for those of others. Default: the model's own.",
    ),
    click.option("--call-timeout-s", type=float, help="How long one call of the model may last."),
    click.option("--memory-mib-max", type=int, help="How much memory a model's process may have."),
    click.option(
        "-O", "--option", "model_options", multiple=True, metavar="KEY=VALUE",
        help="An option for the model; see its runtime.",
    ),
)  # fmt: skip


def jobs_at(given: dict[str, Any]) -> Any:
    """The places that the options name. ConfigError where half of them is said."""
    from headrace.app.job_parts import JobsAt  # noqa: PLC0415 - an extra

    ledger, store = given["ledger"], given["store"]
    if (ledger is None) != (store is None):
        raise ConfigError("--ledger and --store belong together: say both, or --data alone")
    at = JobsAt.folder(given["data"]) if ledger is None else JobsAt(ledger, store)
    return replace(at, dispatcher_url=given["dispatcher"])


def worker_settings(given: dict[str, Any]) -> Any:
    """How the worker works, by its options, and by the file of `--config` where they do not say."""
    from headrace.config.jobs_file import read_worker_place  # noqa: PLC0415 - imported by jobs alone
    from headrace.jobs.worker.settings import WorkerSettings  # noqa: PLC0415 - imported by jobs alone

    place = read_worker_place(given["config"])
    return WorkerSettings(
        queues=given["queues"] or ("default",),
        region=given["region"] or place.region,
        other_regions=given["other_regions"] or place.other_regions,
        concurrency=given["concurrency"],
        lease_s=given["lease_s"],
        beat_s=given["beat_s"],
        drain_grace_s=given["drain_grace_s"],
    )


def retention(given: dict[str, Any]) -> Any:
    """How long things are kept, by the options."""
    from headrace.jobs.maintenance.sweeper import Retention  # noqa: PLC0415 - imported by jobs alone

    return Retention(jobs_s=given["keep_days"] * 86_400)


def serve_settings(given: dict[str, Any]) -> ServeSettings:
    """How models run, by the options."""
    mib = given["memory_mib_max"]
    return ServeSettings(
        instances=given["instances"],
        max_batch_rows=given["max_batch_rows"],
        max_batch_delay_ms=given["max_batch_delay_ms"],
        call_timeout_s=given["call_timeout_s"],
        memory_bytes_max=None if mib is None else mib << 20,
    )
