"""Options of ``headrace work`` and ``headrace up``: locations of jobs, worker and models."""

from dataclasses import replace
from typing import Any, Final

import click

from headrace.app.server_options import JobLocations, JobsOptions
from headrace.cli.groups import complete_files
from headrace.cli.options import (
    MODEL_OPTIONS_OPTION,
    combined_options,
    given_values,
    old_option_name,
    option,
    setting_options,
)
from headrace.core.errors import ConfigError
from headrace.engine.settings import ServeSettings
from headrace.jobs.maintenance import Retention
from headrace.jobs.worker import DAY_S, WorkerSettings

KEEP_DAYS: Final = 30.0
_NOT_OF_WORKERS: Final = frozenset({"isolation", "queue_rows_max", "streams_max", "checkpoints"})
"""Settings of a model without a meaning for jobs: they have a bound of their own, no streams, no states."""

JOB_LOCATION_OPTIONS = combined_options(
    option(
        "--data",
        default="headrace-data",
        show_default=True,
        metavar="FOLDER",
        shell_complete=complete_files,
        help="Folder of the jobs: an SQLite file and the stored objects.",
    ),
    setting_options(JobLocations),
    setting_options(JobsOptions, only={"config"}),
)

WORKER_OPTIONS = combined_options(
    setting_options(WorkerSettings),
    option(
        "--keep-days",
        type=float,
        default=KEEP_DAYS,
        show_default=True,
        help="Retention of ended jobs and their results in days.",
    ),
)

JOB_MODEL_OPTIONS = combined_options(
    option(
        "--isolation",
        type=click.Choice(["process", "thread"]),
        default="process",
        show_default=True,
        help="Isolation of model instances. Only a process can be killed, timed out or limited in memory.",
    ),
    setting_options(ServeSettings, without=_NOT_OF_WORKERS),
    old_option_name("--memory-mib-max", "--memory-bytes-max", "memory_bytes_max", "{}MiB".format),
    MODEL_OPTIONS_OPTION,
)


def job_locations(params: dict[str, Any]) -> JobLocations:
    """Return the locations that the options name. Raise ConfigError for --ledger without --store."""
    if (params["ledger"] is None) != (params["store"] is None):
        raise ConfigError("--ledger and --store must be given together, or use --data")
    return replace(JobLocations.folder(params["data"]), **given_values(JobLocations, params))


def worker_settings(params: dict[str, Any]) -> WorkerSettings:
    """Return the worker settings of the options; the ``--config`` file supplies missing regions."""
    from headrace.config.jobs_file import read_worker_region  # noqa: PLC0415 - optional dependency

    place = read_worker_region(params["config"])
    return replace(
        WorkerSettings(region=place.region, other_regions=place.other_regions),
        **given_values(WorkerSettings, params),
    )


def retention(params: dict[str, Any]) -> Retention:
    """Return the retention settings of the options."""
    return Retention(jobs_s=params["keep_days"] * DAY_S)


def serve_settings(params: dict[str, Any]) -> ServeSettings:
    """Return the model settings of the options."""
    given = given_values(ServeSettings, params)
    return ServeSettings(**{name: value for name, value in given.items() if name not in _NOT_OF_WORKERS})
