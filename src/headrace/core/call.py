"""Information for a model about its current call: the remaining time and cancellation."""

from contextvars import ContextVar
from typing import Final, Protocol


class Call(Protocol):
    """A running call of `Model.predict`, `Model.predict_stream` or `Model.step`."""

    @property
    def deadline_s(self) -> float | None:
        """Seconds until the last deadline of the call's requests.

        Negative when it has passed; None if a request has no deadline.
        """
        ...

    @property
    def cancelled(self) -> bool:
        """True if no client waits for the result any more.

        Each client has disconnected or cancelled, or its deadline has passed.
        """
        ...


class _NoCall:
    """The value outside of any call."""

    deadline_s = None
    cancelled = False


NO_CALL: Final = _NoCall()
CALL: ContextVar[Call] = ContextVar("headrace_call", default=NO_CALL)
"""The running call, set by the engine around every call of a model."""


def current_call() -> Call:
    """Return the model call in which this code runs, or outside of calls a call without a deadline.

    A thread cannot be stopped from outside, so a model with long steps should check from time to
    time::

        for step in range(steps):
            if headrace.current_call().cancelled:
                raise TimeoutError("no client waits for this call")  # seen by no client either
            ...
    """
    return CALL.get()
