"""A model's own code: its methods, checked once it is made and called, and the exceptions they raise.

Methods are plain or asynchronous. Of an exception, this module knows its text, the error to report to
clients, and what it says about memory and device.
"""

import asyncio
import contextvars
import difflib
import inspect
import logging
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    HeadraceError,
    InstanceLostError,
    ModelLoadError,
    PredictError,
    RefusedRowsError,
)
from headrace.core.model import (
    CALL,
    NO_CALL,
    Model,
    RowError,
    overrides,
)
from headrace.core.model_traceback import ModelTraceback

_log = logging.getLogger("headrace.engine")

WHY_CHARS_MAX: Final = 2000
"""Limit of characters kept of an exception's text."""


class RemoteError(Exception):
    """An exception that a model raised in another process, as the text of `describe_error` there.

    `traceback` is its traceback in that process, if the exception is unexpected.
    """

    traceback: ModelTraceback | None = None


def error_text(error: BaseException) -> str:
    """Return the message of an exception; empty if it has none."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide which error it was
        return ""


def describe_error(error: BaseException) -> str:
    """Return type and message of an exception, cut at WHY_CHARS_MAX."""
    text = error_text(error)
    if isinstance(error, RemoteError):
        return text[:WHY_CHARS_MAX]
    kind = type(error).__name__
    return f"{kind}: {text}"[:WHY_CHARS_MAX] if text else kind


def internal_error(model: str, error: BaseException, consequence: str = "") -> PredictError:
    """Return the error of a request that failed through a defect of headrace.

    `consequence` is appended to its text. The error reaches remote clients: the exception is
    chained to it and logged, but its text is left out.
    """
    wrapped = PredictError(
        model,
        f"an internal error ({type(error).__name__}) failed the request{consequence}: "
        "see the log of headrace",
    )
    wrapped.__cause__ = error
    return wrapped


_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|bad_alloc|bad allocation|failed to allocate", re.IGNORECASE
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if a model ran out of memory, its own or a device's, by type or by message."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | RemoteError) and bool(
        _OUT_OF_MEMORY.search(describe_error(error))
    )


def reported_error(
    model: str, error: BaseException, traceback: ModelTraceback | None = None
) -> HeadraceError:
    """Return the error to report to the client of a whole request whose call raised `error`.

    A HeadraceError unchanged, a RowError as RefusedRowsError, others as PredictError with the
    `traceback`.
    """
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, RowError):
        return refused_error(model, error.rows, error)
    wrapped = PredictError(model, describe_error(error), traceback=traceback)
    wrapped.__cause__ = error
    return wrapped


def refused_error(model: str, rows: Mapping[int, object], error: RowError) -> RefusedRowsError:
    """Return the error of a whole request of which the model refused these rows by `error`."""
    reasons = "; ".join(f"row {row}: {str(why)[:WHY_CHARS_MAX]}" for row, why in sorted(rows.items())[:8])
    refused = RefusedRowsError(model, reasons or "it raised RowError without a row")
    refused.__cause__ = error
    return refused


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

    def raise_error(self) -> None:
        """Raise the error of a call that this process cannot make, if it cannot."""
        if (error := self.error()) is not None:
            raise error

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


class LoopThread:
    """An event loop that runs in a thread until it is stopped."""

    def __init__(self, name: str) -> None:
        self._runner = asyncio.Runner()
        started = Future[None]()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.result()

    def _run(self, started: "Future[None]") -> None:
        try:
            self.loop = self._runner.get_loop()
        except BaseException as error:  # noqa: BLE001 - raised again in the constructor
            started.set_exception(error)
            return
        with self._runner:
            self._over = asyncio.Event()
            started.set_result(None)
            self._runner.run(self._over.wait())

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a function in the loop, and await its result if that is a coroutine.

        Any other thread.
        """
        return asyncio.run_coroutine_threadsafe(_called(function), self.loop)

    def stop(self) -> None:
        """Cancel the running tasks and end the thread. Does nothing the second time."""
        with suppress(RuntimeError):  # the loop is closed already
            self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


async def _called(function: Callable[[], Any]) -> Any:
    try:
        result = function()
        return await result if inspect.iscoroutine(result) else result
    except (SystemExit, KeyboardInterrupt) as error:
        # They would end the loop and all other tasks in it.
        raise RemoteError(describe_error(error)) from error


class MethodRunner:
    """A runner of one model's methods, in the thread of its instance or in a loop of its own.

    One call at a time; `cancel` is for any thread. Close it.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._runner: asyncio.Runner | None = None
        self._loop_thread: LoopThread | None = None
        self._cancel: Callable[[], object] | None = None

    def start_loop(self) -> None:
        """Run all further methods in a thread with an event loop: its streams run there, too."""
        self._loop_thread = LoopThread(f"headrace-{self._model}-loop")

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of `start_loop`, or None."""
        return None if self._loop_thread is None else self._loop_thread.loop

    def cancel(self) -> None:
        """Cancel the asynchronous method in progress, if any."""
        cancel = self._cancel
        if cancel is not None:
            cancel()

    def close(self) -> None:
        """End the thread and the event loops."""
        if self._loop_thread is not None:
            self._loop_thread.stop()
        if self._runner is not None:
            self._runner.close()

    def run(self, method: Callable[[], Any]) -> Any:
        """Call a method of the model in its thread, and wait for it if it is asynchronous."""
        if self._loop_thread is not None:
            return self._run_in_loop(method, self._loop_thread)
        result = method()
        return self.run_coroutine(result) if inspect.iscoroutine(result) else result

    def run_hook(self, hook: Callable[[], Any]) -> Any:
        """Call a hook of a model with a `step`. A cancellation of the failed call does not reach it."""
        token = CALL.set(NO_CALL)
        try:
            result = hook()
            return self._run_to_end(result) if inspect.iscoroutine(result) else result
        finally:
            CALL.reset(token)

    def run_coroutine(self, coroutine: Any) -> Any:
        """Return the result of a coroutine that a method returned. `cancel` cancels it."""
        return self._run_to_end(self._await_cancellable(coroutine))

    def _run_to_end(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        # The context of this call, not of the first one.
        return self._runner.run(coroutine, context=contextvars.copy_context())

    def _run_in_loop(self, method: Callable[[], Any], loop_thread: LoopThread) -> Any:
        def begin() -> Any:
            result = method()
            return self._await_cancellable(result) if inspect.iscoroutine(result) else result

        try:
            return loop_thread.submit(begin).result()
        except (asyncio.CancelledError, FutureCancelledError):
            raise self._unexpected_cancel_error() from None

    async def _await_cancellable(self, coroutine: Any) -> Any:
        """Return the result of a model's method. Raises CancelledRequestError after `cancel`."""
        task, loop, call = asyncio.current_task(), asyncio.get_running_loop(), CALL.get()
        assert task is not None
        cancelled = False

        def cancel() -> None:
            # Only once: a second cancellation would interrupt the clean-up of the model.
            nonlocal cancelled
            if not cancelled:
                cancelled = True
                loop.call_soon_threadsafe(task.cancel)

        self._cancel = cancel
        if call.cancelled:
            cancel()
        try:
            return await coroutine
        except asyncio.CancelledError:
            if not cancelled:
                raise self._unexpected_cancel_error() from None
            raise CancelledRequestError(f"model {self._model}: the call was cancelled") from None
        finally:
            self._cancel = None

    def _unexpected_cancel_error(self) -> PredictError:
        return PredictError(self._model, "it raised CancelledError, although its call was not cancelled")


_EXAMPLES: Final = {
    "predict": "def predict(self, x)",
    "predict_stream": "def predict_stream(self, requests)",
    "handle": "def handle(self, requests)",
    "step": "def step(self, states, x)",
    "predict_request": "def predict_request(self, request)",
}
"""The methods that serve requests, as a user writes them."""


def check_methods(model: Model, name: str, *, inline: bool) -> None:
    """Raise ModelLoadError if the model has no method that serves requests, or has step and others.

    Raise ConfigError for a step that should run `inline`.

    The error names the class, its file and the method to write.
    """
    defined = _defined_methods(model)
    for method in defined:
        value = getattr(model, method)
        if not callable(value):
            raise ModelLoadError(
                name, f"{method} of {_location(model)} is {value!r:.80}, not a method: {_advice(method)}"
            )
    if not defined:
        raise ModelLoadError(name, f"{_location(model)} {_missing(model)}")
    if "step" in defined and inline:
        raise ConfigError(f"model {name}: a model with a step cannot run inline; set isolation to thread")
    if "step" in defined and (others := ", ".join(m for m in defined if m != "step")):
        raise ModelLoadError(name, f"it defines both step and {others}: step alone serves all requests")


def _defined_methods(model: Model) -> list[str]:
    defined = {
        "predict": overrides(model, "predict"),
        "predict_stream": overrides(model, "predict_stream"),
        "handle": overrides(model, "handle"),
        "step": overrides(model, "step"),
        "predict_request": model.predict_request is not None,
    }
    return [method for method, is_defined in defined.items() if is_defined]


def _missing(model: Model) -> str:
    """Return the reason for a model without any method that serves requests."""
    reason = "has no predict, no predict_stream, no handle and no step"
    for method in ("predict", "predict_stream", "handle", "step"):
        if similar := _similar_name(model, method):
            return f"{reason}: rename its {similar} to {method}"
    return f"{reason}: {_advice('predict')}, which returns one row for each row of x"


def _similar_name(model: Model, method: str) -> str:
    """Return the name of a method of the user's class that looks like `method`, else ""."""
    names = {
        attribute.lower(): attribute
        for base in type(model).__mro__
        if base is not Model and issubclass(base, Model)
        for attribute, value in vars(base).items()
        if attribute not in vars(Model) and _is_method(value)
    }
    close = difflib.get_close_matches(method, names, n=1, cutoff=0.75)
    return names[close[0]] if close else ""


def _is_method(value: Any) -> bool:
    return callable(value) or isinstance(value, classmethod | staticmethod)


def _advice(method: str) -> str:
    return f"write {_EXAMPLES[method]}"


def _location(model: Model) -> str:
    """Return the class of a model and the file that defines it."""
    kind = type(model)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__
    return f"class {kind.__name__} ({file})"
