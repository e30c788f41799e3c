import pytest

from headrace.core.errors import ConfigError
from headrace.transforms.runners.engines import BeamWorkers, RayWorkers


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (RayWorkers, {"workers_min": 0}, "not 0 and None"),
        (RayWorkers, {"workers_min": 3, "workers_max": 2}, "not 3 and 2"),
        (RayWorkers, {"cpus": -1}, "0 or more"),
        (RayWorkers, {"gpus": -0.5}, "0 or more"),
        (RayWorkers, {"place_s": 0}, "place_s more than 0"),
        (RayWorkers, {"address": "ray://head:10001"}, "ray://head:10001: Ray's client .* ray job submit"),
        (BeamWorkers, {"direct_workers": 0}, "1 or more"),
        (BeamWorkers, {"poll_s": 0}, "more than 0"),
    ],
)
def test_what_cannot_be_is_refused(kind, settings, said):
    with pytest.raises(ConfigError, match=said):
        kind(**settings)


def test_a_worker_asks_for_what_is_said_and_no_more():
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


def test_what_it_asks_for_is_told_beside_what_there_is():
    asks = RayWorkers(gpus=2, resources={"tpu": 1}, label_selector={"zone": "a"})
    assert asks.said_of({"CPU": 8.0, "GPU": 1.0}) == (
        "each asks for 1 CPU of 8, 2 GPU of 1, 1 tpu of 0 that the cluster has, on nodes labelled {'zone': 'a'}"
    )
    assert RayWorkers(cpus=0).said_of({}) == "each asks for nothing that the cluster has"
