"""Retry store operations after transient failures.

An attempt raises `TransientFault` for a failure that may pass: a refused connection, 503, an
interrupted body. After `retry_s` seconds of failures without progress, the operation raises
`UnavailableError`.
"""

import logging
import random
import threading
from collections.abc import Callable
from typing import TypeVar

from headrace.core.clock import Clock, RetryPolicy, TransientFault
from headrace.core.errors import UnavailableError

_Result = TypeVar("_Result")
_log = logging.getLogger("headrace.storage")


class Retrier:
    """A runner of attempts. Safe from any thread.

    Args:
        clock: The clock of waits and budgets.
        policy: Delays and the budget.
        seed: The seed of the jitter; None: random.
        wake: An event that ends all waits at once, because the owner is closing.
    """

    def __init__(
        self,
        clock: Clock,
        policy: RetryPolicy,
        *,
        seed: int | None = None,
        wake: threading.Event | None = None,
    ) -> None:
        self.clock = clock
        self.policy = policy
        self.random = random.Random(seed)  # noqa: S311 - jitter, not a secret
        self.wake = wake

    def begin(self, uri: str, verb: str) -> "Attempts":
        """Return a failure counter for one operation on one object.

        `verb` names the operation in messages, such as "reading".
        """
        return Attempts(self, uri, verb)

    def run(self, uri: str, verb: str, attempt: Callable[[], _Result]) -> _Result:
        """Call `attempt` until it returns or raises another exception than TransientFault."""
        attempts = self.begin(uri, verb)
        while True:
            try:
                return attempt()
            except TransientFault as fault:
                attempts.record_failure(fault)

    def now(self) -> float:
        """Return the seconds of the clock."""
        return self.clock.now()


class Attempts:
    """The failures of one operation since its last progress."""

    def __init__(self, retrier: Retrier, uri: str, verb: str) -> None:
        self._retrier = retrier
        self._uri = uri
        self._verb = verb
        self._count = 0
        self._since_s = 0.0

    def record_progress(self) -> None:
        """Record progress: the next failure has the whole budget again."""
        self._count = 0

    def record_failure(self, fault: TransientFault) -> None:
        """Wait before the next attempt. Raises UnavailableError if the budget is spent."""
        retrier, policy = self._retrier, self._retrier.policy
        now_s = retrier.now()
        if self._count == 0:
            self._since_s = now_s
        self._count += 1
        elapsed_s = now_s - self._since_s
        delay_s = policy.delay_s(
            self._count,
            policy.retry_s - elapsed_s,
            retrier.random.random(),
            retry_after_s=fault.retry_after_s,
        )
        tries = f"{self._count} attempts over {elapsed_s:.1f} s"
        if delay_s is None:
            detail = f"{fault}. Is the server up and the endpoint right?"
            raise UnavailableError(self._uri, f"{self._verb} still fails after {tries}", detail) from fault
        # The first failure is a warning; repetitions appear only in a detailed log.
        level = logging.WARNING if self._count == 1 else logging.INFO
        _log.log(level, "%s: %s failed, retrying in %.1f s: %s", self._uri, self._verb, delay_s, fault)
        if retrier.clock.sleep(delay_s, retrier.wake):
            raise UnavailableError(
                self._uri, f"{self._verb} was abandoned after {tries}, on closing", str(fault)
            ) from fault
