"""What a model can ask about the call that it is in: how long there is, and whether anybody still waits."""

from contextvars import ContextVar
from typing import Protocol


class Call(Protocol):
    """A call of `Model.predict` or `Model.predict_stream` that is going on."""

    @property
    def deadline_s(self) -> float | None:
        """Seconds until the last of its callers stops waiting; negative when past, None when one waits for ever."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether every caller has gone, or is past its deadline: what the model works out now, nobody reads."""
        ...


class _Unasked:
    """Outside of any call."""

    deadline_s = None
    cancelled = False


_UNASKED = _Unasked()
CALL: ContextVar[Call] = ContextVar("headrace_call", default=_UNASKED)
"""Set by the engine around every call of a model."""


def current_call() -> Call:
    """The call of `predict` or `predict_stream` that this code runs in; outside of one, a call without an end.

    A model with long steps looks now and then, since nobody can stop a thread::

        for step in range(steps):
            if headrace.current_call().cancelled:
                raise TimeoutError("nobody waits for this any more")  # read by nobody either
            ...
    """
    return CALL.get()
