"""Options of runs for runners, workers and regions."""

import shlex
from collections.abc import Mapping
from typing import Any, Final, get_args

import click

from headrace.app.runners import AnyWorkers, DataRegions, Workers
from headrace.cli.options import combined_options, parse_bytes
from headrace.cli.renamed import old_option_name
from headrace.core.errors import ConfigError
from headrace.runners.engines import BeamWorkers, RayWorkers
from headrace.runs.runner import OtherRegions
from headrace.storage.regions import RegionRules, require_region

_COUNT = click.IntRange(min=1)

RUNNER_OPTIONS = combined_options(
    click.option(
        "--runner",
        type=click.Choice(["local", "ray", "beam"]),
        default="local",
        show_default=True,
        help="Runner of the tasks: this machine, Ray, or an Apache Beam runner; see docs/clusters.md.",
    ),
    click.option(
        "--workers",
        type=_COUNT,
        help="Number of workers; on Ray, their limit.  [default: 1; on Ray, the capacity of the cluster]",
    ),
    click.option(
        "--isolation",
        type=click.Choice(["thread", "process"]),
        help="Isolation of workers: threads that share reading and writing, or separate processes.  "
        "[default: thread; process for more than one worker]",
    ),
    click.option("--workers-min", type=_COUNT, help="On Ray: number of workers at the start.  [default: 1]"),
    click.option(
        "--worker-cpus", type=click.FloatRange(min=0), help="On Ray: CPUs of a worker.  [default: 1]"
    ),
    click.option(
        "--worker-gpus",
        type=click.FloatRange(min=0),
        help="On Ray: GPUs of a worker, fractions allowed.  [default: 0]",
    ),
    old_option_name("--worker-memory", "--worker-memory-bytes"),
    click.option(
        "--worker-memory-bytes", callback=parse_bytes, metavar="SIZE", help="On Ray: memory of a worker."
    ),
    click.option(
        "--ray-address",
        metavar="ADDRESS",
        help="Address of the Ray cluster; auto is the cluster of this machine.  "
        "[default: RAY_ADDRESS, or a cluster for this run]",
    ),
    click.option(
        "--beam-options",
        multiple=True,
        metavar="'…'",
        help="Beam pipeline options, as in '--runner=FlinkRunner --parallelism=8'. Repeatable.  "
        "[default: DirectRunner with --workers processes]",
    ),
    click.option(
        "--region", metavar="REGION", help="Region of the workers; objects in it are processed first."
    ),
    click.option(
        "--data-region",
        multiple=True,
        metavar="PREFIX=REGION",
        help="Region of the objects below a prefix, as in s3://logs-eu/=eu-west-1. Repeatable.  "
        "[default: the region of the S3 bucket]",
    ),
    click.option(
        "--other-regions",
        type=click.Choice(get_args(OtherRegions)),
        help="Use of workers for objects of other regions: when idle, or never. "
        "Objects left over wait for a run with --resume in their region.  [default: idle]",
    ),
)

_OPTIONS_BY_RUNNER: Final[Mapping[str, tuple[str, ...]]] = {
    "local": ("isolation",),
    "ray": ("workers_min", "worker_cpus", "worker_gpus", "worker_memory_bytes", "ray_address"),
    "beam": ("beam_options",),
}


def workers_from(params: Mapping[str, Any], instances: int | None = None) -> AnyWorkers:
    """Return the workers that the options select. Raise UsageError for options of another runner.

    `instances` is their number if the options do not set it.
    """
    runner = params["runner"]
    for other, names in _OPTIONS_BY_RUNNER.items():
        set_options = [name for name in names if params[name] not in (None, ())]
        if other != runner and set_options:
            option = "--" + set_options[0].replace("_", "-")
            raise click.UsageError(f"{option} requires --runner {other}; the runner is {runner}")
    count = params["workers"] or instances
    try:
        if runner == "ray":
            return _ray_workers(params, count)
        if runner == "beam":
            flags = tuple(flag for text in params["beam_options"] for flag in shlex.split(text))
            return BeamWorkers(flags, direct_workers=count or 1)
    except (ConfigError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    isolation = params["isolation"] or ("process" if (params["workers"] or 1) > 1 else "thread")
    return Workers(count or 1, isolation)


_WORKER_OPTIONS: Final = ("isolation", "region", "data_region", "other_regions", "task_bytes")
"""Options that have no effect on a stream without workers."""


def stream_workers_from(params: Mapping[str, Any]) -> AnyWorkers | None:
    """Return the workers of a stream, or None for one that reads its source in order.

    Raise UsageError for options that need workers, or exclude them.
    """
    if params["runner"] == "local" and params["workers"] is None:
        set_options = [name for name in _WORKER_OPTIONS if params[name] not in (None, ())]
        if set_options:
            option = "--" + set_options[0].replace("_", "-")
            raise click.UsageError(f"{option} requires --workers: a stream without workers has no tasks")
        workers_from(params)  # refuse options of other runners
        return None
    for name, why in _SEQUENTIAL_OPTIONS.items():
        if params[name] is not None:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} and --workers cannot be combined: {why}")
    return workers_from(params)


_SEQUENTIAL_OPTIONS: Final[Mapping[str, str]] = {
    "sequence": "workers run tasks in any order, and a sequence needs its records in order",
    "batch_delay_ms": "batches of tasks close by size, so that a repeated task writes the same bytes",
    "instances": "each worker has one instance",
    "part_bytes_max": "each task writes one part; set its size with --task-bytes",
}


def _ray_workers(params: Mapping[str, Any], count: int | None) -> RayWorkers:
    fields = {
        "cpus": "worker_cpus",
        "gpus": "worker_gpus",
        "memory_bytes": "worker_memory_bytes",
        "address": "ray_address",
    }
    set_options = {field: params[name] for field, name in fields.items() if params[name] is not None}
    return RayWorkers(params["workers_min"] or 1, count, **set_options)


def regions_from(params: Mapping[str, Any]) -> DataRegions:
    """Return the regions of data and workers. Raise UsageError for an invalid region."""
    try:
        rules = RegionRules.parse(params["data_region"])
        region = None if params["region"] is None else require_region(params["region"])
        regions = DataRegions(rules, region, params["other_regions"] or "idle")
        if params["runner"] != "ray":
            regions.locality.require_region()
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return regions
