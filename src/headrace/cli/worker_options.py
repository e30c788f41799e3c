"""Who does the work of ``headrace transform``: here, on Ray or on Beam; and in which regions workers and data are."""

import shlex
from collections.abc import Mapping
from typing import Any, Final, get_args

import click

from headrace.app.workers import AnyWorkers, DataRegions, Workers
from headrace.cli.options import options, parse_bytes
from headrace.core.errors import ConfigError
from headrace.storage.regions import RegionRules, require_region
from headrace.transforms.locality import OtherRegions
from headrace.transforms.runners.engines import BeamWorkers, RayWorkers
from headrace.transforms.spec import TransformSpec

_COUNT = click.IntRange(min=1)

WORKER_OPTIONS = options(
    click.option("--runner", type=click.Choice(["local", "ray", "beam"]), default="local", show_default=True, help="What spreads the work: this machine, a Ray cluster, or a runner of Apache Beam; see docs/clusters.md."),
    click.option("--workers", type=_COUNT, help="How many work at once; on Ray, at most.  [default: 1; on Ray, what the cluster has room for]"),
    click.option("--isolation", type=click.Choice(["thread", "process"]), help="Workers are instances in threads, or processes that read and write too.  [default: thread; process where --workers is more]"),
    click.option("--workers-min", type=_COUNT, help="On Ray: how many there are from the beginning.  [default: 1]"),
    click.option("--worker-cpus", type=click.FloatRange(min=0), help="On Ray: processors of a worker.  [default: 1]"),
    click.option("--worker-gpus", type=click.FloatRange(min=0), help="On Ray: accelerators of a worker, or a share of one.  [default: 0]"),
    click.option("--worker-memory", callback=parse_bytes, metavar="SIZE", help="On Ray: memory that a worker needs."),
    click.option("--ray-address", metavar="ADDRESS", help="Of the Ray cluster; auto is the one of this machine.  [default: RAY_ADDRESS, or one of its own for the run]"),
    click.option("--beam-options", multiple=True, metavar="'…'", help="Options of Beam, its --runner among them, as in '--runner=FlinkRunner --parallelism=8'; may be repeated.  [default: the DirectRunner, with --workers processes]"),
    click.option("--region", metavar="REGION", help="Where the workers are: objects that lie there come first."),
    click.option("--data-region", multiple=True, metavar="PREFIX=REGION", help="Where objects lie, as in s3://logs-eu/=eu-west-1; may be repeated.  [default: what S3 says of a bucket]"),
    click.option("--other-regions", type=click.Choice(get_args(OtherRegions)), help="Take objects of other regions when idle, or never: then they are left for --resume there.  [default: idle]"),
)  # fmt: skip

_ONLY: Final[Mapping[str, tuple[str, ...]]] = {
    "local": ("isolation",),
    "ray": ("workers_min", "worker_cpus", "worker_gpus", "worker_memory", "ray_address"),
    "beam": ("beam_options",),
}


def workers_from(given: Mapping[str, Any], spec: TransformSpec) -> AnyWorkers:
    """How many work, and where. UsageError for options of another runner."""
    runner = given["runner"]
    for other, names in _ONLY.items():
        said = [name for name in names if given[name] not in (None, ())]
        if other != runner and said:
            option = "--" + said[0].replace("_", "-")
            raise click.UsageError(f"{option} is for --runner {other}, and the runner is {runner}")
    count = given["workers"] or spec.instances
    try:
        if runner == "ray":
            return _on_ray(given, count)
        if runner == "beam":
            flags = tuple(flag for text in given["beam_options"] for flag in shlex.split(text))
            return BeamWorkers(flags, direct_workers=count or 1)
    except (ConfigError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    isolation = given["isolation"] or ("process" if (given["workers"] or 1) > 1 else "thread")
    return Workers(count or 1, isolation)


def _on_ray(given: Mapping[str, Any], count: int | None) -> RayWorkers:
    fields = {
        "cpus": "worker_cpus",
        "gpus": "worker_gpus",
        "memory_bytes": "worker_memory",
        "address": "ray_address",
    }
    said = {field: given[name] for field, name in fields.items() if given[name] is not None}
    return RayWorkers(given["workers_min"] or 1, count, **said)


def regions_from(given: Mapping[str, Any]) -> DataRegions:
    """Where data and workers are. UsageError for what cannot be a region."""
    try:
        rules = RegionRules.parse(given["data_region"])
        region = None if given["region"] is None else require_region(given["region"])
        regions = DataRegions(rules, region, given["other_regions"] or "idle")
        if given["runner"] != "ray":  # whose nodes may say where they are
            regions.locality.require_region()
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return regions
