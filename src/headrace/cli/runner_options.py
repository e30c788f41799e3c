"""Options of runs for runners, workers and regions."""

import shlex
from collections.abc import Mapping
from typing import Any, Final

import click

from headrace.app.runners import AnyWorkers, DataRegions, Workers
from headrace.cli.options import (
    combined_options,
    given_values,
    keep_explicit,
    option,
    option_name,
    setting_options,
    settings_from,
)
from headrace.core.errors import ConfigError
from headrace.core.settings import declared_settings
from headrace.runners.engines import BeamWorkers, RayWorkers
from headrace.storage.regions import RegionRules, require_region

_COUNT = click.IntRange(min=1)

RUNNER_OPTIONS = combined_options(
    option(
        "--runner",
        type=click.Choice(["local", "ray", "beam"]),
        default="local",
        show_default=True,
        help="Runner of the tasks: this machine, Ray, or an Apache Beam runner; see docs/clusters.md.",
    ),
    option(
        "--workers",
        type=_COUNT,
        help="Number of workers; on Ray, their limit.  [default: 1; on Ray, the capacity of the cluster]",
    ),
    option(
        "--isolation",
        type=click.Choice(["thread", "process"]),
        help="Isolation of workers: threads that share reading and writing, or separate processes.  "
        "[default: thread; process for more than one worker]",
    ),
    setting_options(RayWorkers),
    option(
        "--beam-options",
        multiple=True,
        metavar="'…'",
        help="Beam pipeline options, as in '--runner=FlinkRunner --parallelism=8'. Repeatable.  "
        "[default: DirectRunner with --workers processes]",
    ),
    option(
        "--data-region",
        multiple=True,
        metavar="PREFIX=REGION",
        help="Region of the objects below a prefix, as in s3://logs-eu/=eu-west-1. Repeatable.  "
        "[default: the region of the S3 bucket]",
    ),
    setting_options(DataRegions),
)

_OPTIONS_BY_RUNNER: Final[Mapping[str, tuple[str, ...]]] = {
    "local": ("isolation",),
    "ray": tuple(each.name for each in declared_settings(RayWorkers) if not each.setting.python_only),
    "beam": ("beam_options",),
}


def workers_from(params: dict[str, Any], instances: int | None = None) -> AnyWorkers:
    """Return the workers that the options select. Raise UsageError for options of another runner.

    `instances` is their number if the options do not set it.
    """
    runner = params["runner"]
    for other, names in _OPTIONS_BY_RUNNER.items():
        if other == runner:
            continue
        if set_options := keep_explicit(params, names):
            raise click.UsageError(
                f"{option_name(set_options[0])} requires --runner {other}; the runner is {runner}"
            )
    count = params["workers"] or instances
    try:
        if runner == "ray":
            return RayWorkers(workers_max=count, **given_values(RayWorkers, params))
        if runner == "beam":
            flags = tuple(flag for text in params["beam_options"] for flag in shlex.split(text))
            return BeamWorkers(flags, direct_workers=count or 1)
    except (ConfigError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    isolation = params["isolation"] or ("process" if (params["workers"] or 1) > 1 else "thread")
    return Workers(count or 1, isolation)


_WORKER_OPTIONS: Final = ("isolation", "region", "data_region", "other_regions", "task_bytes")
"""Options that have no effect on a stream without workers."""


def stream_workers_from(params: dict[str, Any]) -> AnyWorkers | None:
    """Return the workers of a stream, or None for one that reads its source in order.

    Raise UsageError for options that need workers, or exclude them.
    """
    if params["runner"] == "local" and params["workers"] is None:
        if set_options := keep_explicit(params, _WORKER_OPTIONS):
            raise click.UsageError(
                f"{option_name(set_options[0])} requires --workers: a stream without workers has no tasks"
            )
        workers_from(params)  # refuse options of other runners
        return None
    for name in keep_explicit(params, _SEQUENTIAL_OPTIONS):
        why = _SEQUENTIAL_OPTIONS[name]
        raise click.UsageError(f"{option_name(name)} and --workers cannot be combined: {why}")
    return workers_from(params)


_SEQUENTIAL_OPTIONS: Final[Mapping[str, str]] = {
    "sequence": "workers run tasks in any order, and a sequence needs its records in order",
    "batch_delay_ms": "batches of tasks close by size, so that a repeated task writes the same bytes",
    "instances": "each worker has one instance",
    "part_bytes_max": "each task writes one part; set its size with --task-bytes",
}


def regions_from(params: Mapping[str, Any]) -> DataRegions:
    """Return the regions of data and workers. Raise UsageError for an invalid region."""
    try:
        rules = RegionRules.parse(params["data_region"])
        if params["region"] is not None:
            require_region(params["region"])
        regions = settings_from(DataRegions, params, rules=rules)
        if params["runner"] != "ray":
            regions.locality.require_region()
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return regions
