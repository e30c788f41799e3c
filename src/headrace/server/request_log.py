"""The access log: one record for each request, when it is over."""

import logging
from typing import Any, Final

from headrace.server.observation import Observation

ACCESS_LOGGER: Final = "headrace.access"
PATH_CHARS_MAX: Final = 512

_log = logging.getLogger(ACCESS_LOGGER)


class RequestLog:
    """An `Observer` that logs every request: at level info, or warning where the server is at fault.

    The record's extras are those of `fields`; queries, bodies, headers and keys are never among them.
    """

    def begin(self, seen: Observation) -> None:
        """Nothing is logged before the end."""

    def end(self, seen: Observation) -> None:
        """Log it."""
        level = logging.WARNING if seen.fault else logging.INFO
        if _log.isEnabledFor(level):
            _log.log(level, "request", extra=fields(seen))


def fields(seen: Observation) -> dict[str, Any]:
    """What is logged of a request; what it has not is left out. `duration_ms` is up to the last byte handed over."""
    found: dict[str, Any] = {
        "request_id": seen.body_id or seen.request_id,
        "door": seen.door,
        "method": seen.method,
        "path": seen.path[:PATH_CHARS_MAX],
        "action": seen.action,
        "status": seen.status,
        "duration_ms": round((seen.ended_s - seen.began_s) * 1000, 3),
        "bytes_in": seen.bytes_in,
        "bytes_out": seen.bytes_out,
    }
    if seen.model:
        found |= {"model": seen.model, "version": seen.version, "rows": seen.rows}
    if seen.streamed:
        found["items"] = seen.items
    if seen.client:
        found["client"] = seen.client
    if seen.trace_id:
        found["trace_id"] = seen.trace_id
    if seen.failure is not None:
        name, status = seen.failure
        found |= {"error": name, "why": status.why}
    if seen.body_id and seen.header("x-request-id") and seen.body_id != seen.request_id:
        # Both are the caller's: the one of the body is in errors and in the answer, the header's in other servers' logs.
        found["header_request_id"] = seen.request_id
    return found
