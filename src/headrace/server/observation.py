"""What is known of one request while it is answered: gathered for traces and the access log, when either is on.

A door makes one Observation for each request, fills it in, and hands it to its observers at the begin and at the end. A door that
has no observers makes none.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from secrets import token_hex
from typing import Any, Final, Protocol

from headrace.core.tensor import InferRequest
from headrace.engine.ticket import RequestTimes
from headrace.server.answers import UNKNOWN
from headrace.server.errors import Status, is_fault

_log = logging.getLogger("headrace.server")

REQUEST_ID: Final = "x-request-id"
_SAFE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")


def safe_id(text: str | None) -> str:
    """An id as it may be sent in a header: printable ASCII of at most 128 characters, without spaces; else nothing."""
    return text if text is not None and _SAFE_ID.fullmatch(text) else ""


class Observation:
    """One request, as far as it has come. Times are seconds of the door's clock, which is also the engines'.

    `header` looks a header, or an item of gRPC metadata, up by its name in lower case.
    """

    __slots__ = (
        "action",
        "began_ns",
        "began_s",
        "body_id",
        "bytes_in",
        "bytes_out",
        "client",
        "door",
        "ended_s",
        "failure",
        "first_item_s",
        "header",
        "items",
        "method",
        "model",
        "path",
        "request_id",
        "rows",
        "span",
        "status",
        "streamed",
        "times",
        "trace_id",
        "version",
    )

    def __init__(
        self, door: str, method: str, path: str, *, began_s: float, header: Callable[[str], str | None]
    ) -> None:
        self.door = door
        self.method = method
        self.path = path
        self.header = header
        self.began_s = began_s
        self.began_ns = time.time_ns()
        """Nanoseconds since the epoch, at `began_s`."""
        self.ended_s = began_s
        self.action = UNKNOWN
        self.model = ""
        self.version = ""
        self.status: int | str = 0
        """What was sent: an HTTP status, or a gRPC code by name."""
        self.failure: tuple[str, Status] | None = None
        """The error, by the name of its class, and what it became; in a stream also one after the begin."""
        self.request_id = safe_id(header(REQUEST_ID)) or token_hex(16)
        """What is echoed: the caller's, or one of ours."""
        self.body_id = ""
        self.client = ""
        """The name of the API key, never the key."""
        self.rows = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.streamed = False
        self.items = 0
        """Items of a stream that were sent."""
        self.first_item_s: float | None = None
        self.times = RequestTimes()
        self.trace_id = ""
        self.span: Any = None
        """The tracer's own."""

    def asked(self, request: InferRequest) -> None:
        """The body was read."""
        self.body_id = request.id
        self.rows = request.rows if request.inputs else 0

    def sent(self, items: int, now_s: float) -> None:
        """Items of a stream are on their way."""
        if self.first_item_s is None:
            self.first_item_s = now_s
        self.streamed = True
        self.items += items

    def failed(self, error: BaseException, status: Status) -> None:
        """It ends with an error."""
        self.failure = (type(error).__name__, status)

    @property
    def fault(self) -> bool:
        """Whether it failed by a fault of the server or its models, not of the caller."""
        if is_fault(self.status):
            return True
        return self.failure is not None and is_fault(self.failure[1].http)

    def epoch_ns(self, time_s: float) -> int:
        """A time of the door's clock as nanoseconds since the epoch."""
        return self.began_ns + round((time_s - self.began_s) * 1e9)


class Observer(Protocol):
    """Told of every request of a door, in the door's event loop: must be quick, and never block."""

    def begin(self, seen: Observation) -> None:
        """A request came; of what it asks nothing is known but its head."""
        ...

    def end(self, seen: Observation) -> None:
        """It is over, answered or not; called once, after `begin`."""
        ...


CURRENT: ContextVar[Observation | None] = ContextVar("headrace_request", default=None)
"""The request that this task is about, where requests are observed."""


class Observers:
    """Several as one. What one of them raises is logged, and never harms the request."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def begin(self, seen: Observation) -> None:
        """See `Observer`."""
        for observer in self._observers:
            try:
                observer.begin(seen)
            except Exception as error:  # noqa: BLE001 - see the class
                _log.error("a request could not be observed", exc_info=error)

    def end(self, seen: Observation) -> None:
        """See `Observer`; in reverse, so that what began first ends last."""
        for observer in reversed(self._observers):
            try:
                observer.end(seen)
            except Exception as error:  # noqa: BLE001 - see the class
                _log.error("a request could not be observed to its end", exc_info=error)


def tracing_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the usual ``OTEL_*`` variables ask for traces: an exporter is named, or an endpoint, and nothing says no."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter != "none"
    return bool(
        environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    )
