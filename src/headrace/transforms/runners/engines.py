"""What a transform may be told of the engines that spread its tasks: values, so that naming one imports nothing of it."""

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """Workers on a Ray cluster: how many, and what each of them takes of it.

    There are `workers_min` from the beginning, and up to `workers_max` while there is work for them; None for as many as
    the cluster has room for. A worker that Ray cannot place yet makes its autoscaler add a machine. `place_s` is how long
    the first of them is waited for. `label_selector` says which nodes will do, as Ray has it.
    """

    workers_min: int = 1
    workers_max: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    label_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    address: str | None = None
    """Of the cluster; None: the one that RAY_ADDRESS names, else one on this machine, for as long as the run."""
    place_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.workers_min < 1 or (self.workers_max is not None and self.workers_max < self.workers_min):
            raise ConfigError(
                f"workers_min must be 1 or more, and workers_max as many or more, not {self.workers_min} and "
                f"{self.workers_max}"
            )
        if self.cpus < 0 or self.gpus < 0 or self.place_s <= 0:
            raise ConfigError("cpus and gpus of a worker must be 0 or more, and place_s more than 0")
        refuse_client(self.address or "")

    def ray_options(self) -> dict[str, Any]:
        """What a worker asks the cluster for, as Ray's own options."""
        asked: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        if self.memory_bytes is not None:
            asked["memory"] = self.memory_bytes
        if self.resources:
            asked["resources"] = dict(self.resources)
        if self.label_selector:
            asked["label_selector"] = dict(self.label_selector)
        return asked

    def said_of(self, cluster: Mapping[str, float]) -> str:
        """What a worker asks for, beside what the cluster has altogether; for messages."""
        wants = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_bytes or 0, **self.resources}
        said = [f"{value:g} {name} of {cluster.get(name, 0.0):g}" for name, value in wants.items() if value]
        labels = f", on nodes labelled {dict(self.label_selector)}" if self.label_selector else ""
        return f"each asks for {', '.join(said) or 'nothing'} that the cluster has{labels}"


def refuse_client(address: str) -> None:
    """Raise ConfigError for the address of Ray's client."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"{address}: Ray's client does not pass on what workers tell while they work. Run headrace on a "
            "machine of the cluster, such as with ray job submit, and leave the address out"
        )


_DIRECT: Final = frozenset({"", "direct", "directrunner", "fnapirunner", "switchingdirectrunner"})


@dataclass(frozen=True, slots=True)
class BeamWorkers:
    """Workers of an Apache Beam runner; `options` are Beam's own, such as ``("--runner=FlinkRunner", "--parallelism=8")``.

    Without a runner among them it is Beam's DirectRunner, with `direct_workers` processes on this machine. `poll_s` is how
    often it is looked what is done.
    """

    options: tuple[str, ...] = ()
    direct_workers: int = 1
    poll_s: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be, and a runner that loses elements."""
        if self.direct_workers < 1 or self.poll_s <= 0:
            raise ConfigError("direct_workers must be 1 or more, and poll_s more than 0")
        if "dask" in self.runner.lower():
            raise ConfigError(
                f"{self.runner}: it drops what a step gives at the end of a bundle, and says that all went well: of 1,000 "
                "elements as few as 512 were seen to come through. Choose another runner of Beam, or --runner ray"
            )

    @property
    def runner(self) -> str:
        """Which runner of Beam's was asked for; empty where none was."""
        known, _ = _RUNNER_OPTION.parse_known_args(list(self.options))
        return str(known.runner)

    @property
    def direct(self) -> bool:
        """Whether it is the DirectRunner."""
        return self.runner.lower() in _DIRECT

    @property
    def all_options(self) -> tuple[str, ...]:
        """Beam's options, with what `direct_workers` stands for."""
        if not self.direct:
            return self.options
        ours = {"--direct_num_workers": self.direct_workers, "--direct_running_mode": "multi_processing"}
        said = {option.partition("=")[0] for option in self.options}
        return (*self.options, *(f"{name}={value}" for name, value in ours.items() if name not in said))


_RUNNER_OPTION: Final = ArgumentParser(add_help=False, allow_abbrev=False)
_RUNNER_OPTION.add_argument("--runner", default="")
