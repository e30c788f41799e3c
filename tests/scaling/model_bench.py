"""Models with figures that a test sets, and a scaler that the test drives second by second."""

import threading
from dataclasses import replace

from headrace.core.errors import ModelNotReadyError
from headrace.core.statistics import InstanceStatus
from headrace.scaling.instances import (
    InstanceLoad,
    InstanceScaler,
    ScaledModel,
    ScaledModels,
    instance_scaling,
)
from headrace.scaling.settings import WorkerRange
from headrace.testing import ManualClock

WAIT_S = 30.0
SAMPLE_S = 0.25
"""Seconds between two ticks: exact as a binary fraction, so that decisions are due on time."""


class FiguredModels(ScaledModels):
    """Models without engines. A model that is not in `statuses` is not loaded."""

    def __init__(self) -> None:
        self.statuses: dict[str, InstanceStatus] = {}
        self.loads: dict[str, InstanceLoad] = {}
        self.values: dict[str, dict] = {}
        self.errors: dict[str, Exception] = {}
        self.gates: dict[str, threading.Event] = {}
        """Events that changes of a model wait for."""
        self.samples = 0
        self.attempts: list[tuple[str, int]] = []
        """The changes that were begun: models with their numbers of instances."""

    def scaled(self):
        return [
            ScaledModel(
                status, instance_scaling(name, WorkerRange(1, status.instances_max), self.values[name])
            )
            for name, status in self.statuses.items()
            if status.instances_max is not None
        ]

    def load(self, name, version):
        self.samples += 1
        if name not in self.statuses:
            raise ModelNotReadyError(name, "it is unavailable")
        return self.loads[name]

    def resize(self, name, version, instances):
        self.attempts.append((name, instances))
        if name in self.gates:
            assert self.gates[name].wait(WAIT_S)
        if name in self.errors:
            raise self.errors[name]
        self.statuses[name] = replace(self.statuses[name], instances=instances, ready=instances)


class ScalerBench:
    """A scaler over `FiguredModels`, on a manual clock."""

    def __init__(self) -> None:
        self.models = FiguredModels()
        self.clock = ManualClock(1000.0)
        self.scaler = InstanceScaler(self.models, clock=self.clock)
        # From here on, decisions are due after each second.
        self.scaler.tick()

    def add(self, name="m", most: int | None = 4, slots=1, **values) -> None:
        """Load a model with one instance and no load."""
        self.models.statuses[name] = InstanceStatus(name, "1", 1, 1, 0, 1, most)
        self.models.values[name] = values
        self.models.loads[name] = InstanceLoad(0, 0, slots)

    def set_load(self, rows, name="m") -> None:
        """Set the rows of a model: the instances run as many as they can, the others wait."""
        running = min(rows, self.models.statuses[name].ready * self.models.loads[name].slots)
        self.models.loads[name] = replace(self.models.loads[name], waiting=rows - running, running=running)

    def tick(self) -> None:
        """Let one sample pass. Changes without a gate have ended afterwards."""
        self.clock.advance(SAMPLE_S)
        self.scaler.tick()
        for (name, _), past in self.scaler._pasts.items():
            if past.change is not None and name not in self.models.gates:
                past.change.done.exception(WAIT_S)

    def run(self, seconds, rows=None, name="m") -> int:
        """Let time pass, with a load if given. Return the number of instances afterwards."""
        for _ in range(round(seconds / SAMPLE_S)):
            if rows is not None:
                self.set_load(rows, name)
            self.tick()
        return self.models.statuses[name].instances
