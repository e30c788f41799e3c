"""The settings of the engines that distribute tasks: plain values, without an import of an engine."""

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, Final

from headrace.core.errors import ConfigError
from headrace.core.settings import Setting, check


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """Workers on a Ray cluster: their number, and the resources of each.

    Ray's autoscaler adds machines for workers that do not fit.

    Attributes:
        workers_max: The maximal number while there is work for them. None: the capacity of the cluster.
        resources: Custom resources of a worker, by Ray's names.
        label_selector: The labels of permitted nodes, as in Ray.
    """

    workers_min: Annotated[int, Setting("On Ray: number of workers at the start.", least=1)] = 1
    workers_max: int | None = None
    cpus: Annotated[float, Setting("On Ray: CPUs of a worker.", name="worker_cpus", least=0)] = 1.0
    gpus: Annotated[
        float,
        Setting("On Ray: GPUs of a worker, fractions allowed.", name="worker_gpus", least=0),
    ] = 0.0
    memory_bytes: Annotated[
        int | None,
        Setting(
            "On Ray: memory of a worker.", name="worker_memory_bytes", old_names=("worker_memory",), least=1
        ),
    ] = None
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    label_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    address: Annotated[
        str | None,
        Setting(
            "Address of the Ray cluster; auto is the cluster of this machine.",
            name="ray_address",
            default="RAY_ADDRESS, or a cluster for this run",
            metavar="ADDRESS",
        ),
    ] = None
    place_s: Annotated[
        float,
        Setting(
            "Longest wait for the first worker to be placed, in seconds.",
            above=0,
            most=inf,
            python_only=True,
        ),
    ] = 600.0

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid numbers, and for the address of Ray's client."""
        if self.workers_min < 1 or (self.workers_max is not None and self.workers_max < self.workers_min):
            raise ConfigError(
                f"workers_min must be 1 or more, and workers_max as many or more, not {self.workers_min} and "
                f"{self.workers_max}"
            )
        check(self)
        reject_client_address(self.address or "")

    def ray_options(self) -> dict[str, Any]:
        """Return the resources of a worker as Ray's options."""
        options: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        if self.memory_bytes is not None:
            options["memory"] = self.memory_bytes
        if self.resources:
            options["resources"] = dict(self.resources)
        if self.label_selector:
            options["label_selector"] = dict(self.label_selector)
        return options

    def describe_request(self, cluster: Mapping[str, float]) -> str:
        """Return the resources of a worker and those of the cluster, for messages."""
        requested = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_bytes or 0, **self.resources}
        described = [
            f"{value:g} {name} of {cluster.get(name, 0.0):g}" for name, value in requested.items() if value
        ]
        labels = f", on nodes labelled {dict(self.label_selector)}" if self.label_selector else ""
        return f"each requests {', '.join(described) or 'nothing'} in the cluster{labels}"


def reject_client_address(address: str) -> None:
    """Raise ConfigError for the address of Ray's client."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"{address}: Ray's client does not stream the messages of workers. Run headrace on a machine "
            "of the cluster, for example with ray job submit, without an address"
        )


_DIRECT: Final = frozenset({"", "direct", "directrunner", "fnapirunner", "switchingdirectrunner"})


@dataclass(frozen=True, slots=True)
class BeamWorkers:
    """Workers of an Apache Beam runner.

    Attributes:
        options: Beam's options, such as ``("--runner=FlinkRunner", "--parallelism=8")``. Without a
            runner, Beam's DirectRunner runs the pipeline on this machine.
        direct_workers: The number of processes of the DirectRunner.
        poll_s: The interval of progress updates in seconds.
    """

    options: tuple[str, ...] = ()
    direct_workers: int = 1
    poll_s: float = 1.0

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid numbers, and for a Beam runner that loses elements."""
        if self.direct_workers < 1 or self.poll_s <= 0:
            raise ConfigError("direct_workers must be 1 or more, and poll_s more than 0")
        if "dask" in self.runner.lower():
            raise ConfigError(
                f"{self.runner}: this runner drops elements at the end of a bundle and still reports "
                "success: of 1,000 elements, as few as 512 arrived. Choose another Beam runner, or "
                "--runner ray"
            )

    @property
    def runner(self) -> str:
        """The name of Beam's runner in the options; empty if there is none."""
        known, _ = _RUNNER_OPTION.parse_known_args(list(self.options))
        return str(known.runner)

    @property
    def direct(self) -> bool:
        """True for the DirectRunner."""
        return self.runner.lower() in _DIRECT

    @property
    def all_options(self) -> tuple[str, ...]:
        """Beam's options, with those that `direct_workers` stands for."""
        if not self.direct:
            return self.options
        defaults = {"--direct_num_workers": self.direct_workers, "--direct_running_mode": "multi_processing"}
        described = {option.partition("=")[0] for option in self.options}
        return (
            *self.options,
            *(f"{name}={value}" for name, value in defaults.items() if name not in described),
        )


_RUNNER_OPTION: Final = ArgumentParser(add_help=False, allow_abbrev=False)
_RUNNER_OPTION.add_argument("--runner", default="")
