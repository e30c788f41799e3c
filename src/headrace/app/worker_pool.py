"""Build the controller of a pool of workers, for `headrace up`, `headrace work` and `headrace scale`."""

import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.app.autoscaler_listeners import open_autoscaler_listeners
from headrace.app.process_signals import run_until_signal
from headrace.app.server_options import AutoscalerOptions
from headrace.config.jobs_file import read_pool
from headrace.core.errors import ConfigError
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.ledgers.sql import SqlJobLedger
from headrace.jobs.worker import WorkerSettings
from headrace.scaling.actuator import Actuator
from headrace.scaling.actuators.processes import ProcessActuator
from headrace.scaling.controller import ScalingController
from headrace.scaling.settings import PoolSettings, WorkerRange
from headrace.server.listen import ListenerThread

LOCAL_POOL: Final = "local"
"""The table of the settings of worker processes, and the beginning of the names of their pools."""
_HOST_CHARS_MAX: Final = 100
_UNLOAD_S: Final = 15.0
"""Seconds for which a worker may unload its models, after it has drained."""
_CONTROLLER_S: Final = 30.0
"""Seconds for the end of a controller without workers of its own."""


@dataclass(frozen=True, slots=True)
class WorkerProcesses:
    """Worker processes of this machine, as many as the jobs need.

    `arguments` are those of the interpreter for one worker, which drains at the end of its standard input.
    `environ` is its environment.
    """

    arguments: Sequence[str]
    pool: PoolSettings
    environ: Mapping[str, str]

    def controller(self, ledger: SqlJobLedger, settings: WorkerSettings) -> ScalingController:
        """Return the controller of the processes, not started. `settings` are those of each worker."""
        actuator = ProcessActuator(
            [sys.executable, *self.arguments], environ=self.environ, stop_s=processes_stop_s(settings)
        )
        return ScalingController(ledger, actuator, self.pool)


def processes_stop_s(settings: WorkerSettings) -> float:
    """Return the seconds after which a worker process that was ordered to end is killed."""
    return settings.drain_grace_s + settings.stop_s + _UNLOAD_S


def pool_settings(config: Path | None, pool: str, given: Mapping[str, Any]) -> PoolSettings:
    """Return the settings of ``[pools.NAME]`` in a settings file; those that are `given` take precedence.

    Raises:
        ConfigError: A setting is invalid.
    """
    return PoolSettings(**{**read_pool(config, pool), **given}, pool=pool)


def local_pool(config: Path | None, workers: WorkerRange, settings: WorkerSettings) -> PoolSettings:
    """Return the pool of the worker processes of this machine, with the settings of ``[pools.local]``.

    Raises:
        ConfigError: The file sets what the options of the workers set.
    """
    values = dict(read_pool(config, LOCAL_POOL))
    given = sorted({"workers", "queues", "slots"} & values.keys())
    if given:
        raise ConfigError(
            f"{config}: pools.{LOCAL_POOL}.{given[0]}: use --workers, --queue and --concurrency instead"
        )
    values |= {"workers": workers, "queues": settings.queues, "slots": settings.concurrency}
    # Each machine has a pool of its own: a controller can start processes on its own machine only.
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:_HOST_CHARS_MAX]
    return PoolSettings(**values, pool=f"{LOCAL_POOL}-{host}")


@dataclass(frozen=True, slots=True)
class OpenedPool:
    """The controller of a pool with a ledger of its own, built but not started."""

    ledger: SqlJobLedger
    controller: ScalingController
    stop_s_max: float
    listeners: Mapping[str, ListenerThread] = field(default_factory=dict[str, ListenerThread])
    """The listeners of other autoscalers by name."""

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the listeners by name; with a chosen port instead of 0 after the start."""
        return {name: listener.address for name, listener in self.listeners.items()}

    def start(self) -> None:
        """Connect, open the listeners and start to scale. On an error, stop everything and raise it."""
        with ExitStack() as started:
            for service in (self.ledger, *self.listeners.values(), self.controller):
                started.callback(service.stop, drain=False)
                service.start()
            started.pop_all()

    def stop(self, *, drain: bool = True) -> None:
        """Stop the controller and its own workers, close the listeners, and disconnect."""
        with ExitStack() as stack:
            for service in (self.ledger, *self.listeners.values()):
                stack.callback(service.stop)
            self.controller.stop(drain=drain)

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Scale until SIGTERM or SIGINT, then stop; block meanwhile. Call it in the main thread."""
        run_until_signal(
            self.start,
            self.stop,
            partial(self.controller.stop, drain=False),
            stop_s_max=self.stop_s_max,
            on_ready=on_ready,
        )


def open_worker_processes(
    ledger_url: str, processes: WorkerProcesses, settings: WorkerSettings
) -> OpenedPool:
    """Build worker processes over the ledger at `ledger_url`. It connects and starts nothing yet."""
    ledger = open_ledger(ledger_url, connections_max=1)
    stop_s_max = processes_stop_s(settings) + _CONTROLLER_S
    return OpenedPool(ledger, processes.controller(ledger, settings), stop_s_max)


def open_pool(
    ledger_url: str, actuator: Actuator, pool: PoolSettings, options: AutoscalerOptions | None = None
) -> OpenedPool:
    """Build the controller of a pool over the ledger at `ledger_url`, and bind its ports.

    It connects to nothing yet.

    Raises:
        ConfigError: A port is in use, or a public address has no access control.
    """
    # A reading for other autoscalers does not wait for the rounds of the controller.
    ledger = open_ledger(ledger_url, connections_max=2)
    controller = ScalingController(ledger, actuator, pool)
    listeners = open_autoscaler_listeners(ledger, options or AutoscalerOptions())
    return OpenedPool(ledger, controller, _CONTROLLER_S, listeners)
