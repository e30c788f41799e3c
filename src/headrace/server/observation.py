"""The data about one running request, for traces and the access log, and counters of all responses.

A listener with observers creates a `RequestObservation` for each request, fills it in, and passes
it to its observers at the begin and at the end. A listener without observers creates none.
"""

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from secrets import token_hex
from typing import Any, Final, Protocol

from typing_extensions import override

from headrace.core.errors import ModelInputError
from headrace.core.predictor import RequestTimes
from headrace.core.tensor import InferRequest
from headrace.server.errors import ErrorStatus, is_fault, status_of

_log = logging.getLogger("headrace.server")

ACCESS_LOGGER: Final = "headrace.access"
"""The name of the logger of the access log, which has one record for each request, when it ends."""
PATH_CHARS_MAX: Final = 512
REQUEST_ID: Final = "x-request-id"
UNKNOWN: Final = "unknown"
"""The action of requests for unknown paths, so that they add a single label value."""

_access_log = logging.getLogger(ACCESS_LOGGER)

Key = tuple[str, int | str]
"""The action, such as ``infer``, and the status: a number, or a gRPC code by name."""
_SAFE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")


def safe_id(text: str | None) -> str:
    """Return the id if it is safe in a header, else an empty string.

    A safe id has 1 to 128 printable ASCII characters without spaces.
    """
    return text if text is not None and _SAFE_ID.fullmatch(text) else ""


@dataclass(eq=False, slots=True)
class RequestObservation:
    """The data about one request so far. Times are seconds of the clock that engines use."""

    protocol: str
    method: str
    path: str
    _: KW_ONLY
    began_s: float
    header: Callable[[str], str | None]
    """Returns a header, or an item of gRPC metadata, by its lower-case name."""
    began_ns: int = field(default_factory=time.time_ns)
    """Nanoseconds since the epoch at `began_s`."""
    ended_s: float = 0.0
    action: str = UNKNOWN
    route: str = ""
    """The path of the route, with placeholders for its parameters."""
    model: str = ""
    version: str = ""
    status: int | str = 0
    """The status that was sent: an HTTP status, or a gRPC code by name."""
    failure: tuple[str, ErrorStatus] | None = None
    """The class name of the error, and its status; also of an error after the start of a stream."""
    request_id: str = ""
    """The id of the response: the client's, or a generated one."""
    body_id: str = ""
    client: str = ""
    """The name of the API key, never the key."""
    rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    streamed: bool = False
    items: int = 0
    """The number of stream items that were sent."""
    first_item_s: float | None = None
    times: RequestTimes = field(default_factory=RequestTimes)
    trace_id: str = ""
    traceparent: str = ""
    """The trace context of the span, for the children of the request."""
    span: Any = None
    """The span of the tracer."""

    def __post_init__(self) -> None:
        self.ended_s = self.began_s
        self.request_id = safe_id(self.header(REQUEST_ID)) or token_hex(16)

    def on_route(self, action: str, path: str, arguments: Mapping[str, str]) -> None:
        """Record the route of the request, and the model that its path names."""
        self.action, self.route = action, path
        self.model, self.version = arguments.get("model_name", ""), arguments.get("model_version", "")

    def on_request(self, request: InferRequest) -> None:
        """Record the request after its body was read."""
        self.body_id = request.id
        try:
            self.rows = request.rows if request.inputs else 0
        except ModelInputError:
            # Not every model needs rows. The engine reports a request that its model cannot take.
            self.rows = max(t.rows if t.data.ndim else 1 for t in request.inputs)

    def on_items_sent(self, items: int, now_s: float) -> None:
        """Record items of a stream that are about to be sent."""
        if self.first_item_s is None:
            self.first_item_s = now_s
        self.streamed = True
        self.items += items

    def on_error(self, error: BaseException, status: ErrorStatus) -> None:
        """Record the error that ends the request."""
        self.failure = (type(error).__name__, status)

    @property
    def fault(self) -> bool:
        """True if the server or a model failed, not the client."""
        if is_fault(self.status):
            return True
        return self.failure is not None and is_fault(self.failure[1].http)

    def epoch_ns(self, time_s: float) -> int:
        """Return a time of the clock as nanoseconds since the epoch."""
        return self.began_ns + round((time_s - self.began_s) * 1e9)


class Observer(Protocol):
    """An observer of every request of a listener.

    The event loop of the listener calls it. It must be quick and must not block.
    """

    def begin(self, observation: RequestObservation) -> None:
        """Handle the start of a request. Only its head is known."""
        ...

    def end(self, observation: RequestObservation) -> None:
        """Handle the end of a request, once, after `begin`. The request may have no response."""
        ...


CURRENT: ContextVar[RequestObservation | None] = ContextVar("headrace_request", default=None)
"""The request that this task handles, if requests are observed."""


def observed_error_status(error: Exception, observation: RequestObservation) -> ErrorStatus:
    """Return the status of an error. Log records about it have the id of the response."""
    token = CURRENT.set(observation)
    try:
        status = status_of(error)
    finally:
        CURRENT.reset(token)
    observation.on_error(error, status)
    return status


class Observers(Observer):
    """Several observers as one. An exception of an observer is logged and never harms the request."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    @override
    def begin(self, observation: RequestObservation) -> None:
        for observer in self._observers:
            try:
                observer.begin(observation)
            except Exception as error:  # noqa: BLE001 - see the class
                _log.error("an observer failed at the start of a request", exc_info=error)

    @override
    def end(self, observation: RequestObservation) -> None:
        # In reverse order: the observer that began first ends last.
        for observer in reversed(self._observers):
            try:
                observer.end(observation)
            except Exception as error:  # noqa: BLE001 - see the class
                _log.error("an observer failed at the end of a request", exc_info=error)


def tracing_wanted(environment: Mapping[str, str]) -> bool:
    """Return True if the standard ``OTEL_*`` variables request traces.

    They do so with an exporter or an endpoint, unless tracing is disabled.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter != "none"
    return bool(
        environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    )


@dataclass(frozen=True, slots=True)
class ResponseCounters:
    """The response counters of one listener.

    Only the event loop of the listener writes them. Any thread may copy them.
    """

    protocol: str
    """rest or grpc."""
    sent: Counter[Key] = field(default_factory=Counter[Key])
    """The complete responses, by the status that was sent."""
    broken: Counter[Key] = field(default_factory=Counter[Key])
    """The streams that failed after their first byte, by the status that they would have had."""


class RequestLog(Observer):
    """An observer that logs every request: as a warning if the server is at fault, else as info.

    The record has the extra fields of `log_fields`. It never contains queries, bodies, headers or keys.
    """

    def begin(self, observation: RequestObservation) -> None:
        """Nothing is logged before the end."""

    @override
    def end(self, observation: RequestObservation) -> None:
        level = logging.WARNING if observation.fault else logging.INFO
        if _access_log.isEnabledFor(level):
            _access_log.log(level, "request", extra=log_fields(observation))


def log_fields(observation: RequestObservation) -> dict[str, Any]:
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
