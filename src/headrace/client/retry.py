"""Decide about attempts: the kinds of an endpoint's responses, and its circuit breaker.

Pure: the caller passes `now` in seconds of a monotonic clock, waits and retries. `TransientFault`
stands for an attempt that may succeed when repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from headrace.protocols.oip_documents import decode_error_kind

BRIEF_ATTEMPTS_MAX = 3
"""The limit of attempts for a request whose rows may exhaust the memory."""


class ResponseKind(Enum):
    """The consequence of a response for its request."""

    SUCCESS = auto()
    """The response answers the request."""
    ROWS_REFUSED = auto()
    """The endpoint refuses the request, perhaps only because of some rows."""
    REQUEST_REFUSED = auto()
    """The endpoint refuses every such request: a wrong URL, model name or credentials."""
    RETRY = auto()
    """A transient failure: retry within the budget."""
    RETRY_BRIEFLY = auto()
    """A transient failure, or one caused by the rows: retry a few times, then refuse the rows."""


_RETRIED_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
_SEQUENCE_ERROR_KINDS = frozenset({"sequence_gone", "sequence_lost"})
"""Kinds of errors about sequences, as headrace servers send them."""
_REQUEST_REFUSED_STATUSES = frozenset(
    {401, 402, 403, 404, 405, 406, 407, 410, 411, 415, 426, 431, 501, 505, 511}
)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response. Header names are in lower case."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def classify_response(response: HttpResponse) -> ResponseKind:
    """Return the kind of a response, by its status and by sequence errors in its body.

    500 may concern only some of the rows, because the model raised. 507 means that the model is out
    of memory.
    """
    status = response.status
    if 200 <= status < 300:
        return ResponseKind.SUCCESS
    if status in _RETRIED_STATUSES:
        return ResponseKind.RETRY
    if status == 507:
        return ResponseKind.RETRY_BRIEFLY
    if is_sequence_error(response):
        return ResponseKind.ROWS_REFUSED
    if status in _REQUEST_REFUSED_STATUSES or not 400 <= status <= 500:
        return ResponseKind.REQUEST_REFUSED
    return ResponseKind.ROWS_REFUSED


def is_sequence_error(response: HttpResponse) -> bool:
    """Return True if a refusal says that a sequence has ended or has lost its state.

    The client must start such a sequence again.
    """
    return response.status in (409, 410) and decode_error_kind(response.body) in _SEQUENCE_ERROR_KINDS


def describe_refusal(response: HttpResponse, text: str) -> str:
    """Return the message of a refusal, with advice. `text` is the server's own message."""
    detail = f": {text}" if text else ""
    status = response.status
    if status == 401:
        advice = " (it requires credentials: set or correct HEADRACE_ENDPOINT_TOKEN)"
    elif status == 403:
        advice = " (the credentials do not allow this)"
    elif status in (404, 410) and not is_sequence_error(response):
        advice = " (are the model's name, its version and the URL right?)"
    elif 300 <= status < 400:
        advice = f" (it redirects to {response.headers.get('location', '?')}: use that URL)"
    else:
        advice = ""
    return f"HTTP {status}{detail}{advice}"


Phase = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class CircuitState:
    """A snapshot of a circuit breaker. Times are in seconds of the clock."""

    phase: Phase = "closed"
    failures: int = 0
    """Failed attempts since the last success."""
    since_s: float | None = None
    """The time of the first of these failures."""
    last_error: str = ""
    """The last failure ever; "" if there was none."""
    opened: int = 0
    """The number of changes from closed to open."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision about one attempt.

    `probe` marks the single attempt of the half-open phase. For a refused attempt, `wait_s` is the
    number of seconds until the next decision; None means after the next change of state.
    """

    allowed: bool
    probe: bool = False
    wait_s: float | None = None


_ALLOW = Admission(allowed=True)
_PROBE = Admission(allowed=True, probe=True)
_WAIT = Admission(allowed=False)


class CircuitBreaker:
    """A circuit breaker of one endpoint: it stops calls while the endpoint is down, and detects its return.

    ::

        closed ──failures_max failures in a row──▶ open ──cool-down over──▶ half_open (one probe)
          ▲                                          ▲                         │
          └── any success ───────────────────────────┼── the probe fails, the cool-down doubles
                                                     ┘

    Not thread-safe: one event loop owns it.

    Args:
        failures_max: Failures in a row that open the circuit.
        cool_down_s: Seconds from the opening to the first probe.
        cool_down_max_s: The limit of the cool-down, which doubles with each failed probe.
    """

    def __init__(self, *, failures_max: int, cool_down_s: float = 1.0, cool_down_max_s: float = 15.0) -> None:
        self._failures_max = failures_max
        self._first_cool_down_s = cool_down_s
        self._cool_down_max_s = cool_down_max_s
        self._cool_down_s = cool_down_s
        self._phase: Phase = "closed"
        self._failures = 0
        self._since_s: float | None = None
        self._last_error = ""
        self._opened = 0
        self._probe_at_s = 0.0

    @property
    def state(self) -> CircuitState:
        """A snapshot of the state."""
        return CircuitState(self._phase, self._failures, self._since_s, self._last_error, self._opened)

    def admit(self, now: float) -> Admission:
        """Decide about an attempt.

        The caller must report the end of a probe with `record_success`, `record_failure` or
        `release_probe`.
        """
        if self._phase == "closed":
            return _ALLOW
        if self._phase == "half_open":
            return _WAIT
        if now < self._probe_at_s:
            return Admission(allowed=False, wait_s=self._probe_at_s - now)
        self._phase = "half_open"
        return _PROBE

    def record_success(self) -> None:
        """Close the circuit after a response, also to an attempt that began before it opened."""
        self._phase = "closed"
        self._failures = 0
        self._since_s = None
        self._cool_down_s = self._first_cool_down_s

    def record_failure(self, now: float, why: str, *, probe: bool = False) -> None:
        """Record an attempt without a response. The circuit may open."""
        self._failures += 1
        self._last_error = why
        if self._since_s is None:
            self._since_s = now
        if probe:
            self._cool_down_s = min(2 * self._cool_down_s, self._cool_down_max_s)
            self._open(now)
        elif self._phase == "closed" and self._failures >= self._failures_max:
            self._opened += 1
            self._open(now)

    def release_probe(self) -> None:
        """Record that the probe was cancelled. The next attempt becomes the probe."""
        self._phase = "open"

    def _open(self, now: float) -> None:
        self._phase = "open"
        self._probe_at_s = now + self._cool_down_s
