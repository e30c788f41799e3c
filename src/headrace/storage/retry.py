"""Trying again, on a clock.

What arrives here is a `TransientFault`: something that may pass (a refused connection, 503, a body cut short).
What leaves is an answer, or `UnavailableError` once a verb has failed for `retry_s` without any progress.
"""

import logging
import random
import threading
from collections.abc import Callable
from typing import TypeVar

from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError
from headrace.core.retry import RetryPolicy

Answer = TypeVar("Answer")
_log = logging.getLogger("headrace.storage")


class TransientFault(Exception):  # noqa: N818 - it never leaves the room; what leaves is an error
    """An attempt failed in a way that may pass. `retry_after_s` is when the server asked to be asked again."""

    def __init__(self, why: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class Retrier:
    """Hands out attempts. Safe from any thread; `wake` ends every wait at once (the owner is closing)."""

    def __init__(
        self,
        clock: Clock,
        policy: RetryPolicy,
        *,
        seed: int | None = None,
        wake: threading.Event | None = None,
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._random = random.Random(seed)  # noqa: S311 - jitter, not a secret
        self._wake = wake

    def begin(self, uri: str, verb: str) -> "Attempts":
        """Start counting for one verb on one object; `verb` is for messages, such as "reading"."""
        return Attempts(self, uri, verb)

    def run(self, uri: str, verb: str, attempt: Callable[[], Answer]) -> Answer:
        """Call `attempt` until it answers or raises something other than TransientFault."""
        attempts = self.begin(uri, verb)
        while True:
            try:
                return attempt()
            except TransientFault as fault:
                attempts.failed(fault)

    def now(self) -> float:
        """The clock's seconds."""
        return self._clock.now()

    def share(self) -> float:
        """A draw for the jitter."""
        return self._random.random()

    def wait(self, seconds: float) -> bool:
        """Sleep; whether waiting is over for good."""
        return self._clock.sleep(seconds, self._wake)


class Attempts:
    """The failures of one verb since it last made progress."""

    def __init__(self, retrier: Retrier, uri: str, verb: str) -> None:
        self._retrier = retrier
        self._uri = uri
        self._verb = verb
        self._count = 0
        self._since_s = 0.0

    def progressed(self) -> None:
        """Something arrived: the next failure has the whole budget again."""
        self._count = 0

    def failed(self, fault: TransientFault) -> None:
        """Wait before the next attempt, or raise UnavailableError when there is none."""
        now_s = self._retrier.now()
        if self._count == 0:
            self._since_s = now_s
        self._count += 1
        elapsed_s = now_s - self._since_s
        policy = self._retrier.policy
        delay_s = policy.delay_s(
            self._count,
            policy.retry_s - elapsed_s,
            self._retrier.share(),
            retry_after_s=fault.retry_after_s,
        )
        tries = f"{self._count} attempts over {elapsed_s:.1f} s"
        if delay_s is None:
            why = f"{self._verb} still fails after {tries}: {fault}. Is the server up and the endpoint right?"
            raise UnavailableError(self._uri, why) from fault
        # The first failure is worth a line of its own; the others only in a detailed log.
        level = logging.WARNING if self._count == 1 else logging.INFO
        _log.log(level, "%s: %s failed, trying again in %.1f s: %s", self._uri, self._verb, delay_s, fault)
        if self._retrier.wait(delay_s):
            raise UnavailableError(self._uri, f"{self._verb} was given up after {tries}: {fault}") from fault
