"""A circuit breaker: stops calls to an endpoint that is down, and detects its return.

Pure: the caller passes `now` in seconds of a monotonic clock, and waits.

::

    closed ──failures_max failures in a row──▶ open ──cool-down over──▶ half_open (one probe)
      ▲                                          ▲                         │
      └── any success ───────────────────────────┼── the probe fails, the cool-down doubles
                                                 ┘
"""

from dataclasses import dataclass
from typing import Literal

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
    """A circuit breaker of one endpoint. Not thread-safe: one event loop owns it.

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
