"""The access log: one log record for each request, when it ends."""

import logging
from typing import Any, Final

from typing_extensions import override

from headrace.server.observation import Observer, RequestObservation

ACCESS_LOGGER: Final = "headrace.access"
PATH_CHARS_MAX: Final = 512

_log = logging.getLogger(ACCESS_LOGGER)


class RequestLog(Observer):
    """An observer that logs every request: as a warning if the server is at fault, else as info.

    The record has the extra fields of `fields`. It never contains queries, bodies, headers or keys.
    """

    def begin(self, observation: RequestObservation) -> None:
        """Nothing is logged before the end."""

    @override
    def end(self, observation: RequestObservation) -> None:
        level = logging.WARNING if observation.fault else logging.INFO
        if _log.isEnabledFor(level):
            _log.log(level, "request", extra=fields(observation))


def fields(observation: RequestObservation) -> dict[str, Any]:
    """Return the log fields of a request, without those that do not apply.

    `duration_ms` ends when the last byte is passed to the transport.
    """
    record: dict[str, Any] = {
        "request_id": observation.body_id or observation.request_id,
        "door": observation.protocol,
        "method": observation.method,
        "path": observation.path[:PATH_CHARS_MAX],
        "action": observation.action,
        "status": observation.status,
        "duration_ms": round((observation.ended_s - observation.began_s) * 1000, 3),
        "bytes_in": observation.bytes_in,
        "bytes_out": observation.bytes_out,
    }
    if observation.model:
        record |= {"model": observation.model, "version": observation.version, "rows": observation.rows}
    if observation.streamed:
        record["items"] = observation.items
    if observation.client:
        record["client"] = observation.client
    if observation.trace_id:
        record["trace_id"] = observation.trace_id
    if observation.failure is not None:
        name, status = observation.failure
        record |= {"error": name, "why": status.why}
    if (
        observation.body_id
        and observation.header("x-request-id")
        and observation.body_id != observation.request_id
    ):
        # Both ids are the client's: errors and responses have the one of the body, the logs of
        # other servers the one of the header.
        record["header_request_id"] = observation.request_id
    return record
