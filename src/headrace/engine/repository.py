"""Models by name and version: loaded, replaced and unloaded while requests go on.

Takes model definitions and requests to load or unload; gives the engine of a name and a version.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, ModelNotFoundError, ModelNotReadyError
from headrace.core.model import Model
from headrace.core.predictor import Service
from headrace.core.statistics import (
    InstanceDeath,
    InstanceStatus,
    ModelIndexEntry,
    ModelState,
    ModelStatistics,
)
from headrace.engine.engine import Engine
from headrace.engine.live_traffic import LiveTraffic
from headrace.engine.settings import ServeSettings

_log = logging.getLogger("headrace.engine")

LOADING_MAX = 4
"""Limit of models that load at the same time. In this process, one instance loads after another."""


@dataclass(frozen=True, slots=True)
class ModelDefinition:
    """One version of one model: its factory and how it is served."""

    name: str
    version: str
    make: Callable[[], Model]
    fingerprint: str = ""
    settings: ServeSettings = field(default_factory=ServeSettings)


FindDefinitions = Callable[[str], Sequence[ModelDefinition]]
"""Returns the current definitions of a model by its name. Raises ConfigError or ModelNotFoundError.
Returns the current definitions of a model by its name. Raises ConfigError or ModelNotFoundError.
"""


@dataclass(slots=True)
class _Version:
    definition: ModelDefinition
    state: ModelState = ModelState.UNAVAILABLE
    reason: str = ""
    engine: Engine | None = None
    instances_min: int = 1
    instances_max: int | None = None
    """Largest number of instances, if it depends on the load; see `ModelRepository.set_instances`."""
    resizing: threading.Lock = field(default_factory=threading.Lock)
    """Held while the number of instances, or its limits, change."""

    def condition(self) -> tuple[ModelState, str]:
        """Return the state to report, and its reason."""
        lost_reason = None if self.engine is None else self.engine.lost_reason
        return (self.state, self.reason) if lost_reason is None else (ModelState.UNAVAILABLE, lost_reason)


class ModelRepository(Service):
    """The engines of many models and versions.

    `engine` is for any thread and never waits. `load`, `unload`, `start` and `stop` block while
    models load and drain. A model that is loaded again keeps serving until the new engine is ready;
    a request that the old engine has accepted is completed by the old engine.
    """

    def __init__(
        self,
        definitions: Sequence[ModelDefinition],
        *,
        find: FindDefinitions | None = None,
        clock: Clock | None = None,
        in_flight_max: int | None = None,
        traffic: LiveTraffic | None = None,
    ) -> None:
        self._find = find
        self._in_flight_max = in_flight_max
        """Limit of unanswered `submit` requests of each engine; see `Engine`."""
        self._traffic = traffic
        self._clock = clock
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()
        """Held while an instance of any model loads in this process."""
        self._changing = threading.Lock()
        """Held while models are loaded or unloaded: one change at a time."""
        self._changing_engines: set[Engine] = set()
        """Engines that are starting or draining."""
        self._models: dict[str, dict[str, _Version]] = {}
        self._ready: dict[tuple[str, str], Engine] = {}
        self._started = False
        for definition in definitions:
            versions = self._models.setdefault(definition.name, {})
            if definition.version in versions:
                raise ConfigError(
                    f"model {definition.name} version {definition.version} is defined twice: "
                    "rename one, or give it another version"
                )
            versions[definition.version] = _Version(definition)

    # Look-up

    def engine(self, name: str, version: str = "") -> Engine:
        """Return the engine of a version, or of the newest ready version.

        Raises ModelNotFoundError and ModelNotReadyError.
        """
        found = self._ready.get((name, version))
        if found is not None:
            return found
        versions = self._models.get(name)
        if versions is None:
            raise ModelNotFoundError(name, "there is no model of this name")
        if version and version not in versions:
            raise ModelNotFoundError(name, f"it has no version {version!r} (it has {', '.join(versions)})")
        entry = versions[version] if version else versions[max(versions, key=_version_key)]
        # The reason may name files: it is for operators, in the index and the log.
        raise ModelNotReadyError(name, f"it is {entry.state.value.lower()}")

    def ready(self) -> bool:
        """Return True if `start` loaded every model, there is a model, and every model is ready.

        A model is ready while its instances are alive and its checkpoint store can be reached.

        A later load or unload does not change the result while it is under way, nor if it fails.
        """
        ready = self._ready
        return self._started and bool(ready) and all(engine.ready for engine in ready.values())

    def model_ready(self, name: str, version: str = "") -> bool:
        """Return True if the model can take requests now.

        Raises ModelNotFoundError for an unknown model.
        """
        try:
            return self.engine(name, version).ready
        except ModelNotReadyError:
            return False

    def versions(self, name: str) -> tuple[str, ...]:
        """Return the ready versions, oldest first. Raises ModelNotFoundError for an unknown model."""
        with self._lock:
            if name not in self._models:
                raise ModelNotFoundError(name, "there is no model of this name")
            ready = [v for v, e in self._models[name].items() if e.engine is not None]
        return tuple(sorted(ready, key=_version_key))

    def index(self, *, ready: bool = False) -> tuple[ModelIndexEntry, ...]:
        """Return every version, ordered by name; only those that are ready if `ready`.

        A version whose instances are all given up is unavailable, with the reason.
        """
        with self._lock:
            entries = [
                ModelIndexEntry(name, version, *e.condition())
                for name, versions in sorted(self._models.items())
                for version, e in sorted(versions.items(), key=lambda item: _version_key(item[0]))
            ]
        return tuple(e for e in entries if not ready or e.state is ModelState.READY)

    def statistics(self, name: str = "", version: str = "") -> tuple[ModelStatistics, ...]:
        """Return the statistics of the loaded versions: of all, of one model or of one version.

        Raises ModelNotFoundError for an unknown model, and ModelNotReadyError for one version not
        ready.
        """
        if name and version:
            return (self.engine(name, version).model_statistics(),)
        with self._lock:
            if name and name not in self._models:
                raise ModelNotFoundError(name, "there is no model of this name")
            engines = [
                e.engine
                for found, versions in sorted(self._models.items())
                for e in versions.values()
                if e.engine is not None and name in ("", found)
            ]
        return tuple(engine.model_statistics() for engine in engines)

    def last_death(self) -> InstanceDeath | None:
        """Return the last death of an instance of a loaded model that was not intended."""
        with self._lock:
            engines = [e.engine for versions in self._models.values() for e in versions.values()]
        deaths = [engine.last_death for engine in engines if engine is not None]
        return max((d for d in deaths if d is not None), key=lambda d: d.at_ms, default=None)

    # The number of instances

    def instance_status(self, name: str, version: str = "") -> InstanceStatus:
        """Return the numbers of instances of a version, or of the newest ready version.

        Raises ModelNotFoundError and ModelNotReadyError.
        """
        engine, entry = self._loaded(name, version)
        return _instance_status(entry, engine)

    def scaled_models(self) -> tuple[InstanceStatus, ...]:
        """Return the numbers of instances of the loaded versions whose number depends on their load."""
        with self._lock:
            entries = [
                (entry, entry.engine)
                for versions in self._models.values()
                for entry in versions.values()
                if entry.engine is not None and entry.instances_max is not None
            ]
        return tuple(_instance_status(entry, engine) for entry, engine in entries)

    def set_instances(
        self, name: str, version: str, instances: int, instances_max: int | None = None
    ) -> InstanceStatus:
        """Change the number of instances of a loaded model while it serves; no request fails.

        With `instances_max`, the number is that of the load from then on, from `instances` to
        `instances_max`; without, it is fixed. Blocks while instances load. Instances that are removed
        finish their requests, streams and sequences afterwards. The next `load` of the model restores
        the numbers of its definition. An empty `version` is the newest ready one.

        Raises ModelNotFoundError, ModelNotReadyError, ConfigError for numbers that are impossible,
        InstanceLostError once no instance is left, and ModelLoadError if an instance does not load; then
        the number of before stays.
        """
        _, entry = self._loaded(name, version)
        settings = replace(entry.definition.settings, instances=instances, instances_max=instances_max)
        with entry.resizing:
            engine = self.engine(name, entry.definition.version)
            count, _, _ = engine.instance_counts()
            count = _within(count, settings.instances, settings.instances_max)
            engine.set_instances(count, settings.most_instances)
            entry.instances_min, entry.instances_max = settings.instances, settings.instances_max
        return _instance_status(entry, engine)

    def scale(self, name: str, version: str, instances: int) -> None:
        """Change the number of instances within the limits of `set_instances`. Blocks and raises like it."""
        _, entry = self._loaded(name, version)
        with entry.resizing:
            count = _within(instances, entry.instances_min, entry.instances_max)
            self.engine(name, entry.definition.version).set_instances(count, entry.instances_max or 1)

    def _loaded(self, name: str, version: str) -> tuple[Engine, _Version]:
        """Return a version, or the newest ready one. Raises ModelNotFoundError and ModelNotReadyError."""
        engine = self.engine(name, version)
        return engine, self._models[name][engine.version or ""]

    def definitions(self) -> tuple[ModelDefinition, ...]:
        """Return the definition of every version, ordered by name."""
        with self._lock:
            return tuple(e.definition for _, vs in sorted(self._models.items()) for e in vs.values())

    # Loading and unloading

    @override
    def start(self) -> None:
        """Load every model. Raises the first error; then no model is left running."""
        with self._changing:
            with self._lock:
                entries = [e for versions in self._models.values() for e in versions.values() if not e.engine]
            with ThreadPoolExecutor(LOADING_MAX, "headrace-loading") as pool:
                loads = [pool.submit(self._load, entry, entry.definition) for entry in entries]
            errors = [e for load in loads if (e := load.exception()) is not None]
        if errors:
            self.stop(drain=False)
            raise errors[0]
        self._started = True

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Unload every model.

        Accepted requests are finished, or fail with StoppedError without `drain`.

        Without `drain`, engines that are loading or draining at the moment are cut short too.
        """
        self._started = False
        if not drain:
            for engine in list(self._changing_engines):
                engine.stop(drain=False)
        with self._changing, self._lock:
            entries = [e for versions in self._models.values() for e in versions.values() if e.engine]
            engines: list[Engine] = [self._unpublish(entry, ModelState.UNAVAILABLE, "") for entry in entries]
        with ThreadPoolExecutor(max(1, len(engines)), "headrace-stopping") as pool:
            for engine in engines:
                pool.submit(self._stop_engine, engine, drain=drain)

    def load(self, name: str) -> None:
        """Load a model, or reload it as defined now.

        Versions that are no longer defined are unloaded.

        Raises ModelNotFoundError, ConfigError or ModelLoadError; then the engines from before stay.
        """
        with self._changing:
            definitions = self._definitions(name)
            with self._lock:
                versions = self._models.setdefault(name, {})
                removed = [e for v, e in versions.items() if v not in {d.version for d in definitions}]
                entries = [versions.setdefault(d.version, _Version(d)) for d in definitions]
            for entry, definition in zip(entries, definitions, strict=True):
                self._load(entry, definition)
            for entry in removed:
                self._unload(entry)
            with self._lock:
                for entry in removed:
                    versions.pop(entry.definition.version, None)

    def _definitions(self, name: str) -> Sequence[ModelDefinition]:
        known = self._models.get(name)
        if self._find is not None:
            try:
                return self._find(name)
            except ModelNotFoundError:
                if known is None:
                    raise
        if known is None:
            raise ModelNotFoundError(name, "there is no model of this name")
        return [entry.definition for entry in known.values()]

    def unload(self, name: str) -> None:
        """Unload every version of a model, after its accepted requests. Raises ModelNotFoundError."""
        with self._changing:
            with self._lock:
                if name not in self._models:
                    raise ModelNotFoundError(name, "there is no model of this name")
                entries = list(self._models[name].values())
            for entry in entries:
                self._unload(entry)

    def _load(self, entry: _Version, definition: ModelDefinition) -> None:
        previous = entry.engine
        if previous is None:
            self._set_state(entry, ModelState.LOADING)
        engine = Engine(
            definition.make,
            name=definition.name,
            version=definition.version,
            fingerprint=definition.fingerprint,
            serving=definition.settings,
            in_flight_max=self._in_flight_max,
            clock=self._clock,
            load_lock=self._load_lock,
            traffic=self._traffic,
        )
        self._changing_engines.add(engine)
        try:
            engine.start()
        except BaseException as error:
            if previous is None:
                self._set_state(entry, ModelState.UNAVAILABLE, str(error))
            raise
        finally:
            self._changing_engines.discard(engine)
        with entry.resizing, self._lock:
            entry.definition = definition
            entry.engine, entry.state, entry.reason = engine, ModelState.READY, ""
            settings = definition.settings
            entry.instances_min, entry.instances_max = settings.instances, settings.instances_max
            self._publish()
        _log.info("model loaded", extra={"model": definition.name, "version": definition.version})
        if previous is not None:
            self._stop_engine(previous)

    def _unload(self, entry: _Version) -> None:
        if entry.engine is None:
            self._set_state(entry, ModelState.UNAVAILABLE, _UNLOADED)
            return
        with self._lock:
            engine = self._unpublish(entry, ModelState.UNLOADING, "")
        self._stop_engine(engine)
        self._set_state(entry, ModelState.UNAVAILABLE, _UNLOADED)

    def _stop_engine(self, engine: Engine, *, drain: bool = True) -> None:
        self._changing_engines.add(engine)
        try:
            engine.stop(drain=drain)
        finally:
            self._changing_engines.discard(engine)

    def _unpublish(self, entry: _Version, state: ModelState, reason: str) -> Engine:
        """Take an engine out of the look-up; the lock is held."""
        engine, entry.engine = entry.engine, None
        assert engine is not None
        entry.state, entry.reason = state, reason
        self._publish()
        return engine

    def _set_state(self, entry: _Version, state: ModelState, reason: str = "") -> None:
        with self._lock:
            entry.state, entry.reason = state, reason

    def _publish(self) -> None:
        """Replace the look-up table of `engine`, so that readers need no lock."""
        ready: dict[tuple[str, str], Engine] = {}
        for name, versions in self._models.items():
            for version in sorted(versions, key=_version_key):
                engine = versions[version].engine
                if engine is not None:
                    ready[name, version] = ready[name, ""] = engine
        self._ready = ready


_UNLOADED = "unloaded"


def _instance_status(entry: _Version, engine: Engine) -> InstanceStatus:
    instances, ready, draining = engine.instance_counts()
    return InstanceStatus(
        entry.definition.name,
        entry.definition.version,
        instances,
        ready,
        draining,
        entry.instances_min,
        entry.instances_max,
    )


def _within(count: int, least: int, most: int | None) -> int:
    """Return the number of instances within its limits; `least` alone fixes it."""
    return least if most is None else min(max(count, least), most)


def _version_key(version: str) -> tuple[int, int, str]:
    """Return the sort key of a version: texts by spelling first, then numbers by value."""
    return (1, int(version), "") if version.isdecimal() else (0, 0, version)
