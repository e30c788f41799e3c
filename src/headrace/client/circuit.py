"""A circuit that stops asking an endpoint that does not answer, and finds out when it is back.

Pure: `now` is handed in, in seconds of a monotonic clock; the caller waits.

::

    closed ──failures_max failures in a row──▶ open ──cool-down over──▶ probing (one attempt)
      ▲                                          ▲                         │
      └── any success ───────────────────────────┼──── it fails, twice the cool-down
                                                 ┘
"""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["closed", "open", "probing"]


@dataclass(frozen=True, slots=True)
class CircuitState:
    """A snapshot. Times are in the clock's seconds."""

    phase: Phase = "closed"
    failures: int = 0
    """Failed attempts since the last success."""
    since_s: float | None = None
    """When the first of them failed."""
    last_error: str = ""
    """Of the last failure ever; empty when there was none."""
    opened: int = 0
    """How often it went from closed to open."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether to go ahead. When not: after how long to ask again; None is not before the state has changed."""

    go: bool
    probe: bool = False
    wait_s: float | None = None


_GO = Admission(go=True)
_PROBE = Admission(go=True, probe=True)
_WAIT = Admission(go=False)


class Circuit:
    """Counts, and decides who may go. Not safe across threads: one loop owns it."""

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
        """A snapshot."""
        return CircuitState(self._phase, self._failures, self._since_s, self._last_error, self._opened)

    def admit(self, now: float) -> Admission:
        """Whether an attempt may go now. Whoever is told `probe` must report its end by one of the others."""
        if self._phase == "closed":
            return _GO
        if self._phase == "probing":
            return _WAIT
        if now < self._probe_at_s:
            return Admission(go=False, wait_s=self._probe_at_s - now)
        self._phase = "probing"
        return _PROBE

    def succeeded(self) -> None:
        """An attempt was answered, also one that began before the circuit opened: the endpoint is there."""
        self._phase = "closed"
        self._failures = 0
        self._since_s = None
        self._cool_down_s = self._first_cool_down_s

    def failed(self, now: float, why: str, *, probe: bool = False) -> None:
        """An attempt was not answered."""
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

    def abandoned(self) -> None:
        """The probe was cancelled: the next who asks is the probe."""
        self._phase = "open"

    def _open(self, now: float) -> None:
        self._phase = "open"
        self._probe_at_s = now + self._cool_down_s
