"""Options for runners, workers and regions; contradictions are usage errors with option names."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from cases import for_each
from headrace.app.runners import DataRegions, Workers
from headrace.cli.run_options import (
    RUNNER_OPTIONS,
    STREAM_OPTIONS,
    regions_from,
    stream_settings,
    stream_workers_from,
    workers_from,
)
from headrace.runners.engines import BeamWorkers, RayWorkers
from headrace.storage.regions import RegionRules


def parsed(*args: str) -> dict[str, Any]:
    """Return the parameters of a command with the runner options."""
    found: dict[str, Any] = {}

    @click.command()
    @RUNNER_OPTIONS
    def command(**values: Any) -> None:
        found.update(values)

    done = CliRunner().invoke(command, list(args))
    assert done.exit_code == 0, done.output
    return found


@for_each(
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
            [
                "--runner",
                "ray",
                "--worker-cpus",
                "0.5",
                "--worker-gpus",
                "0.25",
                "--worker-memory-bytes",
                "2GiB",
            ],
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
def test_options_select_the_workers(args, workers):
    assert workers_from(parsed(*args)) == workers


def test_number_of_instances_sets_the_workers_without_an_option():
    assert workers_from(parsed(), 4) == Workers(4, "thread")
    assert workers_from(parsed("--runner", "ray"), 4) == RayWorkers(1, 4)
    assert workers_from(parsed("--runner", "beam"), 4) == BeamWorkers(direct_workers=4)
    assert workers_from(parsed("--runner", "ray", "--workers", "2"), 4) == RayWorkers(1, 2)


@for_each(
    ("args", "reason"),
    [
        (["--worker-gpus", "1"], "--worker-gpus requires --runner ray; the runner is local"),
        (["--runner", "beam", "--ray-address", "auto"], "--ray-address requires --runner ray"),
        (["--runner", "ray", "--beam-options", "--x"], "--beam-options requires --runner beam"),
        (["--runner", "ray", "--isolation", "process"], "--isolation requires --runner local"),
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
def test_contradictions_are_usage_errors(args, reason):
    with pytest.raises(click.UsageError, match=reason):
        workers_from(parsed(*args))


def test_options_select_the_regions():
    assert regions_from(parsed()) == DataRegions()
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
    assert regions_from(parsed(*args)) == expected


@for_each(
    ("args", "reason"),
    [
        (["--data-region", "s3://a/"], "PREFIX=REGION"),
        (["--region", "not one"], "is not a valid region"),
        (["--other-regions", "never"], "the worker has no region"),
    ],
)
def test_invalid_regions_are_usage_errors(args, reason):
    with pytest.raises(click.UsageError, match=reason):
        regions_from(parsed(*args))


STREAM = {
    "sequence": None,
    "batch_delay_ms": None,
    "instances": None,
    "part_bytes_max": None,
    "task_bytes": None,
}
"""Parameters of other options of a stream."""


def test_stream_has_no_workers_by_default():
    assert stream_workers_from({**parsed(), **STREAM}) is None
    assert stream_workers_from({**parsed("--workers", "2"), **STREAM}) == Workers(2, "process")
    assert stream_workers_from({**parsed("--runner", "beam"), **STREAM}) == BeamWorkers()


@for_each(
    ("args", "more", "why"),
    [
        (["--isolation", "process"], {}, "--isolation requires --workers"),
        (["--region", "eu"], {}, "--region requires --workers"),
        ([], {"task_bytes": 9}, "--task-bytes requires --workers: a stream without workers has no tasks"),
        (["--ray-address", "auto"], {}, "--ray-address requires --runner ray"),
        (["--workers", "2"], {"sequence": "user"}, "--sequence and --workers cannot be combined: .*in order"),
        (["--workers", "2"], {"batch_delay_ms": 5.0}, "--batch-delay-ms and --workers cannot be combined"),
        (["--runner", "ray"], {"instances": 2}, "--instances and --workers cannot be combined"),
        (["--workers", "1"], {"part_bytes_max": 9}, "each task writes one part; set its size with --task-b"),
    ],
)
def test_options_that_cannot_apply_to_a_stream_are_refused(args, more, why):
    with pytest.raises(click.UsageError, match=why):
        stream_workers_from({**parsed(*args), **STREAM, **more})


def test_variables_that_cannot_apply_to_a_stream_are_ignored():
    found = []

    @click.command()
    @STREAM_OPTIONS
    @RUNNER_OPTIONS
    def command(**params):
        found.append((stream_workers_from(params), stream_settings(params)))

    environ = {"HEADRACE_SEQUENCE": "user", "HEADRACE_REGION": "eu", "HEADRACE_WORKER_GPUS": "1"}
    for args in ([], ["--workers", "2"]):
        done = CliRunner().invoke(command, args, env=environ, catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
    (no_workers, alone), (workers, shared) = found
    assert (no_workers, alone.mapping.sequence) == (None, "user")
    assert (workers, shared.mapping.sequence) == (Workers(2, "process"), None)
