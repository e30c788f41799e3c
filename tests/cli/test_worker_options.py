"""Who does the work, as the command line says it: contradictions are wrong usage, in the options' own names."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from headrace.app.workers import DataRegions, Workers
from headrace.cli.worker_options import WORKER_OPTIONS, regions_from, workers_from
from headrace.storage.regions import RegionRules
from headrace.transforms.runners.engines import BeamWorkers, RayWorkers
from headrace.transforms.spec import TransformSpec, spec_of


def given(*args: str) -> dict[str, Any]:
    """What click makes of a command line."""
    found: dict[str, Any] = {}

    @click.command()
    @WORKER_OPTIONS
    def command(**values: Any) -> None:
        found.update(values)

    done = CliRunner().invoke(command, list(args))
    assert done.exit_code == 0, done.output
    return found


def spec(instances: int | None = None) -> TransformSpec:
    own = {} if instances is None else {"instances": instances}
    return spec_of({"headrace": own}, "a spec")


@pytest.mark.parametrize(
    ("args", "workers"),
    [
        ([], Workers()),
        (["--workers", "1"], Workers()),
        (["--workers", "3"], Workers(3, "process")),
        (["--workers", "3", "--isolation", "thread"], Workers(3, "thread")),
        (["--isolation", "process"], Workers(1, "process")),
        (["--runner", "ray"], RayWorkers()),
        (["--runner", "ray", "--workers", "8", "--workers-min", "2"], RayWorkers(2, 8)),
        (
            ["--runner", "ray", "--worker-cpus", "0.5", "--worker-gpus", "0.25", "--worker-memory", "2GiB"],
            RayWorkers(cpus=0.5, gpus=0.25, memory_bytes=2 << 30),
        ),
        (["--runner", "ray", "--ray-address", "head:6379"], RayWorkers(address="head:6379")),
        (["--runner", "beam"], BeamWorkers()),
        (["--runner", "beam", "--workers", "2"], BeamWorkers(direct_workers=2)),
        (
            [
                "--runner",
                "beam",
                "--beam-options",
                "--runner=FlinkRunner --job_name 'a b'",
                "--beam-options",
                "--x=1",
            ],
            BeamWorkers(("--runner=FlinkRunner", "--job_name", "a b", "--x=1")),
        ),
    ],
)
def test_how_many_work_and_where(args, workers):
    assert workers_from(given(*args), spec()) == workers


def test_a_spec_says_how_many_where_the_command_line_does_not():
    assert workers_from(given(), spec(4)) == Workers(4, "thread")
    assert workers_from(given("--runner", "ray"), spec(4)) == RayWorkers(1, 4)
    assert workers_from(given("--runner", "beam"), spec(4)) == BeamWorkers(direct_workers=4)
    assert workers_from(given("--runner", "ray", "--workers", "2"), spec(4)) == RayWorkers(1, 2)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--worker-gpus", "1"], "--worker-gpus is for --runner ray, and the runner is local"),
        (["--runner", "beam", "--ray-address", "auto"], "--ray-address is for --runner ray"),
        (["--runner", "ray", "--beam-options", "--x"], "--beam-options is for --runner beam"),
        (["--runner", "ray", "--isolation", "process"], "--isolation is for --runner local"),
        (["--runner", "ray", "--workers", "1", "--workers-min", "2"], "workers_max as many or more"),
        (["--runner", "ray", "--ray-address", "ray://head:10001"], "ray job submit"),
        (["--runner", "beam", "--beam-options", "--runner=DaskRunner"], "drops"),
        (
            [
                "--runner",
                "beam",
                "--beam-options",
                "--runner apache_beam.runners.dask.dask_runner.DaskRunner",
            ],
            "drops",
        ),
        (["--runner", "beam", "--beam-options", "--job_name='a"], "No closing quotation"),
    ],
)
def test_what_contradicts_is_wrong_usage(args, why):
    with pytest.raises(click.UsageError, match=why):
        workers_from(given(*args), spec())


def test_regions():
    assert regions_from(given()) == DataRegions()
    args = [
        "--region",
        "eu",
        "--data-region",
        "s3://a/=eu",
        "--data-region",
        "s3://b/=us",
        "--other-regions",
        "never",
    ]
    expected = DataRegions(RegionRules.parse(["s3://a/=eu", "s3://b/=us"]), "eu", "never")
    assert regions_from(given(*args)) == expected


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--data-region", "s3://a/"], "PREFIX=REGION"),
        (["--region", "not one"], "cannot be a region"),
        (["--other-regions", "never"], "no region is declared"),
    ],
)
def test_regions_that_cannot_be_are_wrong_usage(args, why):
    with pytest.raises(click.UsageError, match=why):
        regions_from(given(*args))
