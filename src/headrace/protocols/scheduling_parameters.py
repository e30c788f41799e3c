"""The request parameters of Triton that set urgency: ``priority`` and ``timeout``."""

from dataclasses import replace

from headrace.core.errors import DataError
from headrace.core.tensor import DEFAULT_PRIORITY, InferRequest

_PRIORITY_MAX = 2**32


def apply_scheduling_parameters(request: InferRequest, now: float) -> InferRequest:
    """Return the request with the priority and the deadline of its parameters.

    ``priority`` is 1 for the most urgent, 0 for the default. ``timeout`` is in microseconds from
    `now`, 0 for none. An earlier deadline of the request stays.

    Raises:
        DataError: A parameter is not a whole number of 0 or more.
    """
    parameters = request.parameters
    if not parameters:
        return request
    priority = _number(parameters.get("priority", 0), "priority")
    timeout_us = _number(parameters.get("timeout", 0), "timeout")
    if not priority and not timeout_us:
        return request
    deadline = request.deadline
    if timeout_us:
        requested = now + timeout_us / 1e6
        deadline = requested if deadline is None else min(requested, deadline)
    return replace(request, priority=min(priority, _PRIORITY_MAX) or DEFAULT_PRIORITY, deadline=deadline)


def _number(value: object, name: str) -> int:
    if type(value) is not int or value < 0:
        raise DataError(f"the parameter {name!r} must be a whole number of 0 or more, not {value!r:.40}")
    return value
