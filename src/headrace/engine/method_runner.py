"""The methods of a model: checked once it is made, and called, plain or asynchronous."""

import asyncio
import contextvars
import difflib
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from headrace.core.errors import CancelledRequestError, ConfigError, ModelLoadError, PredictError
from headrace.core.model import CALL, NO_CALL, Model, has_handle, has_predict, has_predict_stream, has_step
from headrace.engine.model_errors import RemoteError, describe_error


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
        "predict": has_predict(model),
        "predict_stream": has_predict_stream(model),
        "handle": has_handle(model),
        "step": has_step(model),
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
