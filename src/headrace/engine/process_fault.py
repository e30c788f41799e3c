"""The error after which this process cannot call a model any more."""

import logging
import threading
from collections.abc import Callable

from headrace.core.errors import InstanceLostError
from headrace.engine.model_errors import describe_error, is_out_of_memory

_log = logging.getLogger("headrace.engine")


class ProcessFault:
    """The first unrecoverable error of a model in this process, shared by its instances in threads.

    They use one device context, so all of them are lost with the first. Any thread.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason: str | None = None
        """The reason to report to clients; None while the process can call the model."""

    def error(self) -> InstanceLostError | None:
        """Return the error of a call that this process cannot make; None if it can."""
        reason = self.reason
        return None if reason is None else InstanceLostError(self._model, reason, cause="unrecoverable")

    def check(
        self, error: BaseException, is_unrecoverable: Callable[[BaseException], bool]
    ) -> InstanceLostError | None:
        """Return the error to report instead of an unrecoverable `error` of the model, else None.

        The first unrecoverable error is logged, and the callbacks are called.
        """
        if is_out_of_memory(error) or not self._names(error, is_unrecoverable):
            return None
        with self._lock:
            is_first = self.reason is None
            if is_first:
                self.reason = (
                    f"it raised an error after which it needs a new process: {describe_error(error)}"
                )
            callbacks = list(self._callbacks) if is_first else []
        if is_first:
            _log.error(
                "the model cannot be called any more in this process: %s",
                describe_error(error),
                extra={"model": self._model},
            )
        for callback in callbacks:
            callback()
        return self.error()

    def _names(self, error: BaseException, is_unrecoverable: Callable[[BaseException], bool]) -> bool:
        try:
            return is_unrecoverable(error)
        except Exception:  # noqa: BLE001 - the error of the call is the one to report
            _log.exception("is_unrecoverable of a model failed", extra={"model": self._model})
            return False

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Add a callback for the fault, called once, in the thread that raised the error."""
        with self._lock:
            self._callbacks.append(callback)

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """Remove a callback. Does nothing the second time."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)
