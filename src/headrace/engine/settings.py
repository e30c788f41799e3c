"""Settings of one served model: limits and choices, each with its unit in its name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, Final

from headrace.core.errors import ConfigError
from headrace.core.model import Isolation
from headrace.core.sequence import SequenceLimits
from headrace.core.settings import Setting, check

INSTANCES_MAX: Final = 1000
"""Limit of the instances of one model in one process."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of one served model. None takes the model's own setting.

    Raises ConfigError for values out of range.
    """

    instances: Annotated[int, Setting("Number of instances of each model.", least=1)] = 1
    """Copies of the model, each in its own thread or process."""
    instances_max: Annotated[
        int | None,
        Setting(
            "Largest number of instances, which are added and removed by load; --instances is the smallest.",
            least=1,
            most=INSTANCES_MAX,
            default="a fixed number of instances",
        ),
    ] = field(default=None, kw_only=True)
    """In a server: see `headrace.scaling.instances`."""
    scaling: Mapping[str, Any] = field(default_factory=dict[str, Any], kw_only=True)
    """Settings of the number of instances that replace the defaults, by their names in
    `headrace.scaling.settings.InstanceScalingSettings`; a server checks them.
    """
    isolation: Annotated[
        Isolation | None,
        Setting("Isolation of model instances.", default="the model's own, else auto"),
    ] = None
    """Where instances run; see `headrace.Model.isolation`."""
    max_batch_rows: Annotated[
        int | None, Setting("Batch size limit in rows.", least=1, default="the model's own")
    ] = None
    max_batch_delay_ms: Annotated[
        float | None,
        Setting(
            "Longest wait for rows of other requests in milliseconds.",
            least=0,
            default="the model's own",
        ),
    ] = None
    queue_rows_max: Annotated[
        int,
        Setting("Limit of waiting rows; requests above it are refused with status 429.", least=1),
    ] = 4096
    """Refused requests learn the time after which to retry."""
    latency_limit_ms: Annotated[
        float | None,
        Setting(
            "Latency in milliseconds that 99 % of requests keep; jobs and runs on this machine yield.",
            above=0,
            default="no limit",
        ),
    ] = field(default=None, kw_only=True)
    """See docs/serving.md. Streams do not count."""
    streams_max: Annotated[int, Setting("Limit of concurrent streams of a model.", least=1)] = 256
    call_timeout_s: Annotated[
        float | None,
        Setting("Timeout of a model call in seconds.", above=0, most=inf, default="no limit"),
    ] = None
    """For models in a process of their own: beyond the limit, the process is killed and restarted,
    and the requests of the call are retried once, each in a call of its own. Threads cannot be
    killed.
    """
    cancel_grace_s: Annotated[
        float | None,
        Setting("Seconds that a cancelled call of a model process may take.", least=0, most=inf),
    ] = 5.0
    """When no client wants a call any more, it is cancelled. Beyond this time, the process is killed
    and restarted; its open streams end with it. None, or infinity, lets the call go on.
    """
    memory_bytes_max: Annotated[
        int | None, Setting("Memory limit of a model process.", least=1, default="no limit")
    ] = None
    """Limit of the memory of each process, with all that it starts. Enforced by a control group of
    its own, if one can be made: beyond the limit, the process is killed. Else by RLIMIT_DATA, which
    counts private memory, touched or not: beyond the limit, the model gets a MemoryError.
    """
    processes_max: Annotated[
        int | None,
        Setting(
            "Limit of processes and threads of a model process, itself included.",
            least=1,
            default="no limit",
        ),
    ] = None
    """Enforced by a control group of its own, if one can be made. Else by RLIMIT_NPROC, on top of all
    that the user runs already; it does not bind root, so it is refused there.
    """
    environ_pass: Annotated[
        tuple[str, ...] | None,
        Setting(
            "Environment variables that model processes get, besides those that Python needs to start.",
            default="all",
        ),
    ] = None
    """This hides secrets from a model's mistakes, not from a hostile model of the same user."""
    sequences: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Limits of a model with a `step` that replace its own, by their names in
    `headrace.SequenceLimits`.
    """
    checkpoints: Annotated[
        str | None,
        Setting(
            "Store of sequence states: memory:, an SQLite file or redis://HOST.",
            metavar="WHERE",
            default="none",
        ),
    ] = None
    """States of a model with a `step` are saved after each step, so that sequences outlive their
    process; see `headrace.checkpoints`.
    """
    warm_up: Annotated[bool, Setting("Make the first, slow call before the model is ready.")] = True

    @property
    def most_instances(self) -> int:
        """The largest number of instances that the model may get."""
        return self.instances_max or self.instances

    def __post_init__(self) -> None:
        check(self)
        if self.instances_max is not None and self.instances_max < self.instances:
            raise ConfigError(
                f"instances_max must be at least instances, {self.instances}, not {self.instances_max}"
            )
        if any("=" in name or not name for name in self.environ_pass or ()):
            raise ConfigError("environ_pass must hold names of variables, without values")
        SequenceLimits().with_values(self.sequences)
