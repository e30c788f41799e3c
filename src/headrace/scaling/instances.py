"""The scaler of served models: it observes their load, decides, and has instances added and removed.

The decision is that of pools of workers (`headrace.scaling.policy`): an instance is a worker, and a row
is a job. The load of a model changes within milliseconds, so the means of many samples are observed.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, inf
from statistics import fmean
from typing import Any, Final, Protocol

from typing_extensions import override

from headrace.core.clock import Clock, RetryPolicy, SystemClock
from headrace.core.errors import ConfigError, ModelNotFoundError, ModelNotReadyError
from headrace.core.predictor import Service
from headrace.core.settings import declared_settings
from headrace.core.statistics import InstanceStatus, ModelStatistics
from headrace.engine.repository import LOADING_MAX, ModelRepository
from headrace.scaling.policy import Decision, Observation, ScalingMemory, decide
from headrace.scaling.settings import InstanceScalingSettings, WorkerRange

SAMPLE_S: Final = 0.2
"""Seconds between two samples of the load."""
DECISION_S: Final = 1.0
"""Seconds between two decisions about a model."""
SLOTS_MAX: Final = 32
"""Limit of the rows that count as a full call. The calls of many models take longer with more rows, and
models that set no `max_batch_rows` have a large one.
"""
BACKOFF: Final = RetryPolicy(retry_s=inf, first_delay_s=1.0, delay_max_s=60.0)
"""The delays after changes that failed. Each may have loaded gigabytes in vain."""
_log = logging.getLogger("headrace.scaling")


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """The load of a model version in rows: at one time, or the mean over some time.

    Rows count, not requests, because they fill the calls of an instance.
    """

    waiting: float
    running: float
    slots: int
    """Rows that an instance calls at once."""
    oldest_s: float = 0.0
    """Waiting time of the oldest request."""
    run_s: float | None = None
    """Mean seconds of a call; None before the first."""


def load_of(statistics: ModelStatistics, slots: int) -> InstanceLoad:
    """Return the load of a model, whose full calls have `slots` rows.

    One instance calls all rows of a request, if need be in several calls. So a request counts as one
    full call at most. Running requests count the mean rows of all requests, up to full calls of all
    instances. Open streams count one row.
    """
    ended = statistics.success.count + statistics.fail.count
    rows = statistics.rows + statistics.failed_rows + statistics.error_rows
    rows_per_request = min(max(rows / ended, 1.0), slots) if ended else 1.0
    calls, requests = statistics.compute_infer, statistics.waiting_requests
    running = (statistics.in_flight - requests) * rows_per_request
    return InstanceLoad(
        waiting=min(max(statistics.waiting_rows, requests), requests * slots),
        running=min(running, statistics.instances * slots) + statistics.open_streams,
        slots=slots,
        oldest_s=statistics.oldest_waiting_s,
        run_s=calls.ns / calls.count / 1e9 if calls.count else None,
    )


class LoadSamples:
    """The samples of the load of one model version since its last decision. Not thread-safe."""

    def __init__(self) -> None:
        self._samples: list[InstanceLoad] = []

    def add(self, load: InstanceLoad) -> None:
        """Add a sample. Samples have equal distances in time."""
        self._samples.append(load)

    def take(self) -> InstanceLoad | None:
        """Return the mean of the samples, and forget them. Return None without a sample."""
        samples, self._samples = self._samples, []
        if not samples:
            return None
        return replace(
            samples[-1],
            waiting=fmean(sample.waiting for sample in samples),
            running=fmean(sample.running for sample in samples),
        )


def observe_instances(at_ms: int, load: InstanceLoad, status: InstanceStatus) -> Observation:
    """Return the observation of a model version for the decision."""
    # The sum is rounded once: half a waiting row and half a running one are a row.
    backlog, running = round(load.waiting + load.running), round(load.running)
    workers = min(status.ready, status.instances)
    return Observation(
        at_ms,
        due=backlog - running,
        running=running,
        slots=load.slots,
        workers=workers,
        starting=status.instances - workers,
        draining=status.draining,
        busy=min(workers, ceil(running / load.slots)),
        oldest_s=load.oldest_s,
        run_s=load.run_s,
        drains=True,
    )


def instance_scaling(model: str, workers: WorkerRange, values: Mapping[str, Any]) -> InstanceScalingSettings:
    """Return the settings of a model with this range of instances; `values` replace the defaults.

    Raises:
        ConfigError: A name is unknown, or a value is out of range.
    """
    known = [declared.field for declared in declared_settings(InstanceScalingSettings)]
    if unknown := sorted(values.keys() - set(known)):
        raise ConfigError(
            f"model {model}: scaling: unknown key {unknown[0]!r}; the keys are {', '.join(known)}"
        )
    try:
        return InstanceScalingSettings(workers=workers, **values)
    except ConfigError as error:
        raise ConfigError(f"model {model}: scaling: {error}") from error


@dataclass(frozen=True, slots=True)
class ScaledModel:
    """A loaded model version whose number of instances follows its load."""

    status: InstanceStatus
    settings: InstanceScalingSettings


class ScaledModels(Protocol):
    """The models of a scaler. Any thread may call the methods.

    A version may be unloaded at any time: `load` and `resize` then raise ModelNotFoundError or
    ModelNotReadyError.
    """

    def scaled(self) -> Sequence[ScaledModel]:
        """Return the loaded versions whose number of instances has a range."""
        ...

    def load(self, name: str, version: str) -> InstanceLoad:
        """Return the current load of a version."""
        ...

    def resize(self, name: str, version: str, instances: int) -> None:
        """Change the number of instances within its range. Block while instances load.

        Raise an error if an instance does not load; the number of before stays.
        """
        ...


class RepositoryModels(ScaledModels):
    """The models of a repository. Raises ConfigError for invalid settings of their scaling."""

    def __init__(self, repository: ModelRepository) -> None:
        for definition in repository.definitions():
            instance_scaling(definition.name, WorkerRange(1, 1), definition.settings.scaling)
        self._repository = repository

    @override
    def scaled(self) -> Sequence[ScaledModel]:
        values = {(each.name, each.version): each.settings.scaling for each in self._repository.definitions()}
        return [
            ScaledModel(
                status, instance_scaling(status.name, workers, values.get((status.name, status.version), {}))
            )
            for status in self._repository.scaled_models()
            if (workers := _range(status)) is not None
        ]

    @override
    def load(self, name: str, version: str) -> InstanceLoad:
        engine = self._repository.engine(name, version)
        return load_of(engine.model_statistics(), min(engine.metadata.max_batch_rows, SLOTS_MAX))

    @override
    def resize(self, name: str, version: str, instances: int) -> None:
        self._repository.scale(name, version, instances)


def _range(status: InstanceStatus) -> WorkerRange | None:
    return None if status.instances_max is None else WorkerRange(status.instances_min, status.instances_max)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the number of instances that is under way."""

    number: int
    """The number of instances before."""
    decision: Decision
    memory: ScalingMemory
    """The memory before the decision."""
    done: "Future[None]"


@dataclass(slots=True)
class _Past:
    """The past of one model version, as far as its decisions depend on it."""

    samples: LoadSamples = field(default_factory=LoadSamples)
    memory: ScalingMemory | None = None
    change: _Change | None = None
    failures: int = 0
    """Number of changes in a row that failed."""
    error: str = ""
    """The error of the last change, if it failed."""
    retry_s: float = -inf
    """The time before which nothing is changed."""

    def without_change(self, memory: ScalingMemory) -> None:
        """Begin no cooldown for a change that was not made; `memory` is that before."""
        assert self.memory is not None
        self.memory = replace(self.memory, added_at_ms=memory.added_at_ms, removed_at_ms=memory.removed_at_ms)


class InstanceScaler(Service):
    """The scaler of the models that have a range of instances, as a service. Use it once.

    One thread samples and decides; up to `LOADING_MAX` threads wait for instances to load. `stop` does
    not wait for a load in progress: it ends with the repository, which stops next.

    Args:
        models: The models. Their owner starts them before and stops them after.
        clock: The clock of samples and decisions.
    """

    def __init__(self, models: ScaledModels, *, clock: Clock | None = None) -> None:
        self._models = models
        self._clock = clock or SystemClock()
        self._pasts: dict[tuple[str, str], _Past] = {}
        """The pasts of the models that are scaled, by name and version."""
        self._due_s = -inf
        """The time of the next decisions."""
        self._pool = ThreadPoolExecutor(LOADING_MAX, "headrace-instances")
        self._stopping = threading.Event()
        self._life = threading.Lock()
        self._thread: threading.Thread | None = None

    @override
    def start(self) -> None:
        with self._life:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="headrace-instances", daemon=True)
                self._thread.start()

    @override
    def stop(self, *, drain: bool = True) -> None:
        self._stopping.set()
        with self._life:
            if self._thread is not None:
                self._thread.join()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        # Without a scaled model, nothing is sampled: one look at the models each second.
        while not self._clock.sleep(SAMPLE_S if self._pasts else DECISION_S, self._stopping):
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - the next tick may succeed
                _log.exception("the instances of models could not be scaled")

    def tick(self) -> None:
        """Sample the load of each scaled model. Decide, if decisions are due."""
        for (name, version), past in self._pasts.items():
            with suppress(ModelNotFoundError, ModelNotReadyError):
                past.samples.add(self._models.load(name, version))
        now_s = self._clock.now()
        if now_s < self._due_s:
            return
        self._due_s = now_s + DECISION_S
        # Before the numbers are read, so that they are those after the changes.
        for (name, _), past in self._pasts.items():
            if past.change is not None and past.change.done.done():
                _finish(name, past, past.change, now_s)
        scaled = {(each.status.name, each.status.version): each for each in self._models.scaled()}
        self._pasts = {key: self._pasts.get(key) or _Past() for key in scaled}
        for key, model in scaled.items():
            self._decide(self._pasts[key], model, now_s)

    def _decide(self, past: _Past, model: ScaledModel, now_s: float) -> None:
        load = past.samples.take()
        if load is None:
            return
        status = model.status
        observed = observe_instances(round(now_s * 1000), load, status)
        memory = past.memory or ScalingMemory.resume(observed)
        decision = decide(model.settings, observed, memory)
        past.memory = decision.memory
        if decision.wanted == observed.current:
            return
        if past.change is not None or now_s < past.retry_s:
            past.without_change(memory)
            return
        done = self._pool.submit(self._models.resize, status.name, status.version, decision.wanted)
        past.change = _Change(observed.current, decision, memory, done)


def _finish(name: str, past: _Past, change: _Change, now_s: float) -> None:
    """Log the end of a change, and set the time of the next attempt after a failure."""
    past.change = None
    error = change.done.exception()
    if error is None:
        past.failures, past.error = 0, ""
        # The words of the decision are those of jobs.
        reason = change.decision.reason.replace("job", "row").replace("worker", "instance")
        _log.info("model %s: %d -> %d instances: %s", name, change.number, change.decision.wanted, reason)
        return
    past.without_change(change.memory)
    past.failures += 1
    delay_s = BACKOFF.delay_s(past.failures, inf, 1.0)
    assert delay_s is not None
    past.retry_s = now_s + delay_s
    if isinstance(error, ModelNotFoundError | ModelNotReadyError) or past.error == str(error):
        return
    past.error = str(error)
    _log.warning(
        "model %s: %d instances stay, %d are wanted: %s", name, change.number, change.decision.wanted, error
    )
