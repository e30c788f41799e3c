"""Models by name and version: found, loaded, replaced and unloaded while requests go on.

Arrives: definitions, and wishes to load or unload. Leaves: the engine that answers for a name and a version.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, ModelNotFoundError, ModelNotReadyError
from headrace.core.model import Model
from headrace.core.statistics import ModelIndexEntry, ModelState, ModelStatistics
from headrace.engine.engine import Engine
from headrace.engine.settings import ServeSettings

_log = logging.getLogger("headrace.engine")

LOADING_MAX = 4
"""Models that are loaded side by side."""


@dataclass(frozen=True, slots=True)
class ModelDefinition:
    """One version of one model: how it is made, and how it is served."""

    name: str
    version: str
    make: Callable[[], Model]
    fingerprint: str = ""
    settings: ServeSettings = field(default_factory=ServeSettings)


Find = Callable[[str], Sequence[ModelDefinition]]
"""Definitions of a model by its name, as they are now; raises ConfigError or ModelNotFoundError where there are none."""


@dataclass(slots=True)
class _Version:
    definition: ModelDefinition
    state: ModelState = ModelState.UNAVAILABLE
    reason: str = ""
    engine: Engine | None = None


class ModelRepository:
    """Implements the life of `Service` over all of its models.

    `engine` is for any thread and never waits; `load`, `unload`, `start` and `stop` block, as long as loading and
    draining take. A model that is loaded again goes on answering until the new one is ready; a request that an old one
    has is answered by it.
    """

    def __init__(
        self,
        definitions: Sequence[ModelDefinition],
        *,
        find: Find | None = None,
        clock: Clock | None = None,
        in_flight_max: int | None = None,
    ) -> None:
        self._find = find
        self._in_flight_max = in_flight_max
        """See `Engine`: for callers in threads, of which so many ask at once."""
        self._clock = clock
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        """Held while models are loaded or unloaded: one change at a time."""
        self._changed_now: set[Engine] = set()
        """Engines that are starting or draining."""
        self._models: dict[str, dict[str, _Version]] = {}
        self._ready: dict[tuple[str, str], Engine] = {}
        self._started = False
        for definition in definitions:
            versions = self._models.setdefault(definition.name, {})
            if definition.version in versions:
                raise ConfigError(
                    f"model {definition.name} version {definition.version} is there twice: give one another name or version"
                )
            versions[definition.version] = _Version(definition)

    # Asking

    def engine(self, name: str, version: str = "") -> Engine:
        """The engine of a version, or of the newest that is ready. ModelNotFoundError, ModelNotReadyError."""
        found = self._ready.get((name, version))
        if found is not None:
            return found
        versions = self._models.get(name)
        if versions is None:
            raise ModelNotFoundError(name, "there is no model of this name here")
        if version and version not in versions:
            raise ModelNotFoundError(name, f"it has no version {version!r} (it has {', '.join(versions)})")
        entry = versions[version] if version else versions[max(versions, key=_order)]
        # Why is for those who run the server, in its index and its log: it may name files.
        raise ModelNotReadyError(name, f"it is {entry.state.value.lower()}")

    def ready(self) -> bool:
        """Whether `start` has loaded every model, there is one, and every instance is alive.

        What is loaded or unloaded later takes nothing away while it is under way, nor when it fails.
        """
        ready = self._ready
        return self._started and bool(ready) and all(engine.alive for engine in ready.values())

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model can be asked now. ModelNotFoundError for an unknown one."""
        try:
            return self.engine(name, version).alive
        except ModelNotReadyError:
            return False

    def versions(self, name: str) -> tuple[str, ...]:
        """The versions that are ready, oldest first. ModelNotFoundError for an unknown model."""
        with self._lock:
            if name not in self._models:
                raise ModelNotFoundError(name, "there is no model of this name here")
            ready = [v for v, e in self._models[name].items() if e.engine is not None]
        return tuple(sorted(ready, key=_order))

    def index(self, *, ready: bool = False) -> tuple[ModelIndexEntry, ...]:
        """Every version, by name; with `ready` those alone that can be asked."""
        with self._lock:
            entries = [
                ModelIndexEntry(name, version, e.state, e.reason)
                for name, versions in sorted(self._models.items())
                for version, e in sorted(versions.items(), key=lambda item: _order(item[0]))
            ]
        return tuple(e for e in entries if not ready or e.state is ModelState.READY)

    def statistics(self, name: str = "", version: str = "") -> tuple[ModelStatistics, ...]:
        """Figures of the versions that are loaded; of one model, or one version, when named. ModelNotFoundError."""
        if name and version:
            return (self.engine(name, version).model_statistics(),)
        with self._lock:
            if name and name not in self._models:
                raise ModelNotFoundError(name, "there is no model of this name here")
            engines = [
                e.engine
                for found, versions in sorted(self._models.items())
                for e in versions.values()
                if e.engine is not None and name in ("", found)
            ]
        return tuple(engine.model_statistics() for engine in engines)

    def definitions(self) -> tuple[ModelDefinition, ...]:
        """Every version as it is defined, by name."""
        with self._lock:
            return tuple(e.definition for _, vs in sorted(self._models.items()) for e in vs.values())

    # Changing

    def start(self) -> None:
        """Load every model; raises the first error, after which nothing is left running."""
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

    def stop(self, *, drain: bool = True) -> None:
        """Unload every model, finishing what was accepted, or failing it with StoppedError.

        Without `drain` what is being loaded or drained at the moment is cut short too.
        """
        self._started = False
        if not drain:
            for engine in list(self._changed_now):
                engine.stop(drain=False)
        with self._changing, self._lock:
            entries = [e for versions in self._models.values() for e in versions.values() if e.engine]
            engines: list[Engine] = [self._withdraw(entry, ModelState.UNAVAILABLE, "") for entry in entries]
        with ThreadPoolExecutor(max(1, len(engines)), "headrace-stopping") as pool:
            for engine in engines:
                pool.submit(self._end, engine, drain=drain)

    def load(self, name: str) -> None:
        """Load a model, or load it again as it is now; versions that are no more are unloaded.

        Raises ModelNotFoundError, ConfigError, or ModelLoadError: then what was there before goes on.
        """
        with self._changing:
            wanted = self._definitions(name)
            with self._lock:
                versions = self._models.setdefault(name, {})
                gone = [e for v, e in versions.items() if v not in {d.version for d in wanted}]
                entries = [versions.setdefault(d.version, _Version(d)) for d in wanted]
            for entry, definition in zip(entries, wanted, strict=True):
                self._load(entry, definition)
            for entry in gone:
                self._unload(entry)
            with self._lock:
                for entry in gone:
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
            raise ModelNotFoundError(name, "there is no model of this name here")
        return [entry.definition for entry in known.values()]

    def unload(self, name: str) -> None:
        """Unload every version of a model, once it has answered what it had. ModelNotFoundError for an unknown one."""
        with self._changing:
            with self._lock:
                if name not in self._models:
                    raise ModelNotFoundError(name, "there is no model of this name here")
                entries = list(self._models[name].values())
            for entry in entries:
                self._unload(entry)

    def _load(self, entry: _Version, definition: ModelDefinition) -> None:
        before = entry.engine
        if before is None:
            self._tell(entry, ModelState.LOADING)
        engine = Engine(
            definition.make,
            name=definition.name,
            version=definition.version,
            fingerprint=definition.fingerprint,
            serving=definition.settings,
            in_flight_max=self._in_flight_max,
            clock=self._clock,
        )
        self._changed_now.add(engine)
        try:
            engine.start()
        except BaseException as error:
            if before is None:
                self._tell(entry, ModelState.UNAVAILABLE, str(error))
            raise
        finally:
            self._changed_now.discard(engine)
        with self._lock:
            entry.definition = definition
            entry.engine, entry.state, entry.reason = engine, ModelState.READY, ""
            self._publish()
        _log.info("model loaded", extra={"model": definition.name, "version": definition.version})
        if before is not None:
            self._end(before)

    def _unload(self, entry: _Version) -> None:
        if entry.engine is None:
            self._tell(entry, ModelState.UNAVAILABLE, _UNLOADED)
            return
        with self._lock:
            engine = self._withdraw(entry, ModelState.UNLOADING, "")
        self._end(engine)
        self._tell(entry, ModelState.UNAVAILABLE, _UNLOADED)

    def _end(self, engine: Engine, *, drain: bool = True) -> None:
        self._changed_now.add(engine)
        try:
            engine.stop(drain=drain)
        finally:
            self._changed_now.discard(engine)

    def _withdraw(self, entry: _Version, state: ModelState, reason: str) -> Engine:
        """Let nobody find an engine any more; the lock is held."""
        engine, entry.engine = entry.engine, None
        assert engine is not None
        entry.state, entry.reason = state, reason
        self._publish()
        return engine

    def _tell(self, entry: _Version, state: ModelState, reason: str = "") -> None:
        with self._lock:
            entry.state, entry.reason = state, reason

    def _publish(self) -> None:
        """What `engine` looks things up in, made anew: readers need no lock."""
        ready: dict[tuple[str, str], Engine] = {}
        for name, versions in self._models.items():
            for version in sorted(versions, key=_order):
                engine = versions[version].engine
                if engine is not None:
                    ready[name, version] = ready[name, ""] = engine
        self._ready = ready


_UNLOADED = "unloaded"


def _order(version: str) -> tuple[int, int, str]:
    """Numbers by size, after everything else by spelling."""
    return (1, int(version), "") if version.isdecimal() else (0, 0, version)
