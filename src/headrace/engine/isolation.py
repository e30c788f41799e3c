"""Where an instance runs: on its callers' event loop, in a thread, or in a process of its own."""

from collections.abc import Callable
from typing import Final

from headrace.core.call import current_call
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Isolation, Model
from headrace.engine.backend import Backend, LocalBackend
from headrace.engine.process import ProcessBackend
from headrace.engine.reason import reason
from headrace.engine.recipe import recipe_of
from headrace.engine.settings import ServeSettings

INLINE_CALL_S: Final = 0.0001
"""A call on one row that takes no longer than this is not worth a hop to a thread (some 11 µs each way, and more under
load), and holds up an event loop for no longer than parsing a request does."""
INLINE_BATCH_S: Final = 0.001
"""A call on the largest batch must not take longer than this either: it holds up everybody else."""
_TRIES: Final = 5


class Placement:
    """Loads the instances of one model where its settings, or the model itself, say."""

    def __init__(
        self,
        make_model: Callable[[], Model],
        name: str,
        *,
        version: str | None,
        fingerprint: str,
        settings: ServeSettings,
        clock: Clock,
    ) -> None:
        self._make_model = make_model
        self._name = name
        self._version = version
        self._fingerprint = fingerprint
        self._settings = settings
        self._clock = clock
        self._isolation: Isolation | None = settings.isolation

    def load(self) -> Backend:
        """Load one instance, for the thread that this is called in. Raises ModelLoadError, ConfigError."""
        made: list[Model] = []
        if self._isolation is None:
            # What the model says itself, which is known once there is one.
            made.append(self._made())
            self._isolation = made[0].isolation
        if self._isolation == "process":
            return self._apart()
        return self._local((lambda: made[0]) if made else self._make_model)

    def _made(self) -> Model:
        try:
            return self._make_model()
        except (ModelLoadError, ConfigError):
            raise
        except BaseException as error:
            raise ModelLoadError(self._name, f"it did not load: {reason(error)}") from error

    def _apart(self) -> ProcessBackend:
        return ProcessBackend(
            recipe_of(self._make_model, self._name),
            self._name,
            clock=self._clock,
            fingerprint=self._fingerprint,
            version=self._version,
            settings=self._settings,
        )

    def _local(self, make_model: Callable[[], Model]) -> LocalBackend:
        inline = self._isolation == "inline"
        if inline and self._settings.instances > 1:
            raise ConfigError(f"model {self._name}: there can be only one inline instance; ask for threads")
        backend = LocalBackend(
            make_model,
            self._name,
            clock=self._clock,
            fingerprint=self._fingerprint,
            version=self._version,
            settings=self._settings,
            inline=inline,
        )
        if inline and backend.is_async:
            backend.close()
            raise ConfigError(
                f"model {self._name}: an asynchronous predict cannot run inline, where nothing can wait for it; "
                "set isolation to thread"
            )
        return backend

    def inline(self, backend: Backend) -> bool:
        """Whether this instance is called on its callers' threads and event loops."""
        if not isinstance(backend, LocalBackend) or self._settings.instances > 1:
            return False
        if self._isolation != "auto":
            return self._isolation == "inline"
        if backend.is_async or backend.metadata.streams:
            return False
        fits = self._fits(backend, 1, INLINE_CALL_S) and self._fits(backend, backend.rows_max, INLINE_BATCH_S)
        # A plain function that returns a coroutine is known only once it was called.
        return fits and not backend.is_async

    def _fits(self, backend: LocalBackend, rows: int, most_s: float) -> bool:
        """Whether calls on so many rows of zeros keep within a time; not, when they cannot be made."""
        times_s: list[float] = []
        try:
            zeros = backend.zeros(rows)
            if zeros is None:
                return False
            for _ in range(_TRIES):
                called = backend.call((zeros,), rows, "", current_call(), fresh=False)
                times_s.append(called.input_s + called.infer_s + called.output_s)
                if called.infer_s > 10 * most_s:
                    return False
        except BaseException:  # noqa: BLE001 - zeros need not be an input that the model takes, nor fit into memory
            return False
        return sorted(times_s)[_TRIES // 2] <= most_s
