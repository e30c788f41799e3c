"""The parameters by which a request says how urgent it is: Triton's ``priority`` and ``timeout``."""

from dataclasses import replace

from headrace.core.errors import DataError
from headrace.core.tensor import DEFAULT_PRIORITY, InferRequest

_PRIORITY_MAX = 2**32


def scheduled(request: InferRequest, now: float) -> InferRequest:
    """The request with the priority and the deadline that its parameters ask for.

    ``priority`` is 1 for the most urgent, 0 for the default; ``timeout`` counts in microseconds from `now`, 0 for none.
    An earlier deadline that the request has already stays. DataError for what is no number.
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
        asked = now + timeout_us / 1e6
        deadline = asked if deadline is None else min(asked, deadline)
    return replace(request, priority=min(priority, _PRIORITY_MAX) or DEFAULT_PRIORITY, deadline=deadline)


def _number(value: object, name: str) -> int:
    if type(value) is not int or value < 0:
        raise DataError(f"the parameter {name!r} must be a whole number of 0 or more, not {value!r:.40}")
    return value
