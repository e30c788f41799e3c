import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.runners.engines import BeamWorkers, RayWorkers


@for_each(
    ("kind", "settings", "message"),
    [
        (RayWorkers, {"workers_min": 0}, "not 0 and None"),
        (RayWorkers, {"workers_min": 3, "workers_max": 2}, "not 3 and 2"),
        (RayWorkers, {"cpus": -1}, "0 or more"),
        (RayWorkers, {"gpus": -0.5}, "0 or more"),
        (RayWorkers, {"place_s": 0}, "place_s must be a number above 0, not 0"),
        (RayWorkers, {"address": "ray://head:10001"}, "ray://head:10001: Ray's client .* ray job submit"),
        (BeamWorkers, {"direct_workers": 0}, "1 or more"),
        (BeamWorkers, {"poll_s": 0}, "more than 0"),
    ],
)
def test_invalid_numbers_are_refused(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        kind(**settings)


def test_ray_options_have_the_set_resources():
    assert RayWorkers().ray_options() == {"num_cpus": 1.0, "num_gpus": 0.0}
    full = RayWorkers(
        cpus=2, gpus=0.5, memory_bytes=1 << 30, resources={"tpu": 1}, label_selector={"zone": "a"}
    )
    assert full.ray_options() == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "memory": 1 << 30,
        "resources": {"tpu": 1},
        "label_selector": {"zone": "a"},
    }


def test_request_is_described_with_the_cluster():
    request = RayWorkers(gpus=2, resources={"tpu": 1}, label_selector={"zone": "a"})
    assert request.describe_request({"CPU": 8.0, "GPU": 1.0}) == (
        "each requests 1 CPU of 8, 2 GPU of 1, 1 tpu of 0 in the cluster, on nodes labelled {'zone': 'a'}"
    )
    assert RayWorkers(cpus=0).describe_request({}) == "each requests nothing in the cluster"


@for_each(
    "options", [("--runner=DaskRunner",), ("--runner", "apache_beam.runners.dask.dask_runner.DaskRunner")]
)
def test_dask_runner_is_refused(options):
    with pytest.raises(ConfigError, match="drops elements at the end of a bundle"):
        BeamWorkers(options)


def test_direct_runner_gets_its_options():
    assert BeamWorkers(direct_workers=3).all_options == (
        "--direct_num_workers=3",
        "--direct_running_mode=multi_processing",
    )
    explicit = BeamWorkers(("--runner=DirectRunner", "--direct_num_workers=5"))
    assert explicit.direct
    assert explicit.all_options[2:] == ("--direct_running_mode=multi_processing",)
    flink = BeamWorkers(("--runner=FlinkRunner", "--parallelism=8"))
    assert not flink.direct
    assert flink.all_options == flink.options
