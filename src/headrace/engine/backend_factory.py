"""Backend factory: instances in the client's event loop, in a thread or in a process."""

import threading
from collections.abc import Callable
from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Isolation, Model, current_call
from headrace.engine.backend import Backend, CallInputs
from headrace.engine.local_backend import LocalBackend
from headrace.engine.model_methods import ProcessFault, describe_error
from headrace.engine.process.parent import ProcessBackend
from headrace.engine.recipe import make_recipe
from headrace.engine.settings import ServeSettings

INLINE_CALL_S: Final = 0.0001
"""Maximum seconds of an inline call on one row. A shorter call is not worth a hop to a thread
(about 11 µs each way, and more under load), and blocks an event loop no longer than parsing a
request does.
"""
INLINE_BATCH_S: Final = 0.001
"""Maximum seconds of an inline call on the largest batch, which blocks all other requests."""
_TRIES: Final = 5


class BackendFactory:
    """A loader of one model's backends, with the isolation of its settings or of the model itself.

    `load_lock` is held while a model is made, loaded and warmed up in this process: libraries keep
    the state of a load in global variables (torch.export), or import modules meanwhile. Processes
    load in parallel.
    """

    def __init__(
        self,
        make_model: Callable[[], Model],
        name: str,
        *,
        version: str | None,
        fingerprint: str,
        settings: ServeSettings,
        clock: Clock,
        load_lock: threading.Lock,
    ) -> None:
        self._make_model = make_model
        self._name = name
        self._version = version
        self._fingerprint = fingerprint
        self._settings = settings
        self._clock = clock
        self._load_lock = load_lock
        self.instances = settings.most_instances
        """Largest number of instances; it decides whether an instance can be called inline."""
        self._isolation: Isolation | None = settings.isolation
        self._fault = ProcessFault(name)

    def load(self) -> Backend:
        """Load one instance for the calling thread. Raises ModelLoadError and ConfigError.

        It is loaded in a process of its own if its isolation is a process, or if this process
        cannot call the model any more.
        """
        if self._isolation != "process" and self._fault.reason is None:
            try:
                with self._load_lock:
                    backend = self._load_unless_process()
            except ModelLoadError:
                # Another model may have broken the device of this process.
                if self._fault.reason is None:
                    raise
                return self._load_in_process()
            if backend is not None:
                return backend
        return self._load_in_process()

    def check_instances(self, count: int) -> None:
        """Raise ConfigError if the model cannot have this number of instances."""
        if self._isolation == "inline" and count > 1:
            raise ConfigError(
                f"model {self._name}: only one instance can run inline; set isolation to thread"
            )

    def check_replaceable(self, backend: LocalBackend) -> None:
        """Raise ConfigError, with advice, if no other process can load the model of this backend."""
        if backend.metadata.whole_requests:
            raise ConfigError(
                f"model {self._name} cannot run in a process of its own: it takes whole requests "
                "(predict_request); restart the server"
            )
        try:
            make_recipe(self._make_model, self._name)
        except ConfigError as error:
            raise ConfigError(f"{error}; then restart the server, with isolation process") from error

    def replace(self, backend: LocalBackend) -> Backend:
        """Close a lost backend, and load its model in a process of its own, in one attempt.

        Call it again after an error of loading, which is raised.
        """
        backend.close()
        return self._load_in_process()

    def _load_unless_process(self) -> LocalBackend | None:
        """Load an instance in this process, or return None if the model's isolation is a process."""
        models: list[Model] = []
        if self._isolation is None:
            # The model's own isolation is known once a model exists.
            models.append(self._make_model_checked())
            self._isolation = models[0].isolation
        if self._isolation == "process":
            return None
        return self._load_in_thread((lambda: models[0]) if models else self._make_model)

    def _make_model_checked(self) -> Model:
        try:
            return self._make_model()
        except (ModelLoadError, ConfigError):
            raise
        except BaseException as error:
            raise ModelLoadError(self._name, f"it did not load: {describe_error(error)}") from error

    def _load_in_process(self) -> ProcessBackend:
        try:
            recipe = make_recipe(self._make_model, self._name)
        except ConfigError as error:
            if self._fault.reason is not None:
                raise
            raise ConfigError(f"{error}; or set isolation to thread") from error
        return ProcessBackend(
            recipe,
            self._name,
            clock=self._clock,
            fingerprint=self._fingerprint,
            version=self._version,
            settings=self._settings,
        )

    def _load_in_thread(self, make_model: Callable[[], Model]) -> LocalBackend:
        self.check_instances(self.instances)
        is_inline = self._isolation == "inline"
        backend = LocalBackend(
            make_model,
            self._name,
            clock=self._clock,
            fingerprint=self._fingerprint,
            version=self._version,
            settings=self._settings,
            inline=is_inline,
            fault=self._fault,
        )
        if is_inline and backend.is_async:
            backend.close()
            raise ConfigError(
                f"model {self._name}: an asynchronous predict cannot run inline; set isolation to thread"
            )
        return backend

    def is_inline(self, backend: Backend) -> bool:
        """Return True if this instance is called in its clients' threads and event loops."""
        if not isinstance(backend, LocalBackend) or self.instances > 1:
            return False
        if self._isolation != "auto":
            return self._isolation == "inline"
        if backend.is_async or backend.metadata.can_stream or backend.metadata.can_handle:
            return False
        is_fast = self._is_fast_enough(backend, 1, INLINE_CALL_S) and self._is_fast_enough(
            backend, backend.rows_max, INLINE_BATCH_S
        )
        # A plain function that returns a coroutine is known only after a call.
        return is_fast and not backend.is_async

    def _is_fast_enough(self, backend: LocalBackend, rows: int, limit_s: float) -> bool:
        """Return True if the median call on `rows` rows of zeros takes up to `limit_s`.

        Return False if the model cannot be called with zeros.
        """
        times_s: list[float] = []
        try:
            zeros = backend.inputs.zeros(rows)
            if zeros is None:
                return False
            for _ in range(_TRIES):
                called = backend.call(CallInputs((zeros,), rows), current_call())
                times_s.append(called.input_s + called.infer_s + called.output_s)
                if called.infer_s > 10 * limit_s:
                    return False
        except BaseException:  # noqa: BLE001 - zeros may be rejected by the model, or not fit into memory
            return False
        return sorted(times_s)[_TRIES // 2] <= limit_s
