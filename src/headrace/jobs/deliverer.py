"""The service that delivers: takes what is due from the outbox, sends it, and records what became of it."""

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.retry import RetryPolicy
from headrace.jobs.delivery import DeliveryPolicy, decide
from headrace.jobs.notifier import Answer, Notifier, Retry
from headrace.jobs.outbox import Claim, Outbox

_log = logging.getLogger("headrace.jobs.deliverer")


@dataclass(frozen=True, slots=True)
class DelivererSettings:
    """How much at a time.

    Args:
        threads: Attempts under way at most, each to another endpoint.
        lease_s: How long an attempt may take before somebody else may make it again; more than any notifier's timeout.
        poll_s: How often the outbox is asked when nothing wakes the service: others may have put something in.
    """

    threads: int = 8
    lease_s: float = 120.0
    poll_s: float = 1.0

    def __post_init__(self) -> None:
        if self.threads < 1 or min(self.lease_s, self.poll_s) <= 0:
            raise ConfigError("a deliverer has 1 thread or more, a lease and a poll of more than 0 s")


class Deliverer:
    """Delivers what is in an outbox: a `Service`. Any number may share an outbox, in as many processes.

    An attempt takes one of `threads`, and an endpoint has at most one attempt under way, so one that hangs holds up nobody
    but itself, for as long as its notifier waits. When the outbox cannot be reached the service goes on asking; an attempt
    whose end could not be recorded is made again when its lease has passed, under the same event id.

    Args:
        outbox: What is due; stays the caller's.
        notifier: Who sends; stays the caller's.
        clock: For the waits between two looks.
        seed: Of the jitter.
    """

    def __init__(
        self,
        outbox: Outbox,
        notifier: Notifier,
        *,
        policy: DeliveryPolicy | None = None,
        settings: DelivererSettings | None = None,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self._outbox = outbox
        self._notifier = notifier
        self._policy = policy or DeliveryPolicy()
        self._settings = settings or DelivererSettings()
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)  # noqa: S311 - jitter, not a secret
        self._life = threading.Lock()
        self._running: _Run | None = None

    def start(self) -> None:
        """See `Service.start`."""
        with self._life:
            if self._running is None:
                self._running = _Run(self._settings.threads)
                self._running.begin(self._work)

    def stop(self, *, drain: bool = True) -> None:
        """See `Service.stop`. Attempts under way end either way, each within its notifier's timeout, and are recorded.

        Nothing new is claimed. Without `drain`, claims whose attempt has not begun are given back. What waits in the
        outbox stays there.
        """
        with self._life:
            if self._running is not None:
                self._running.end(drain=drain)
                self._running = None

    def wake(self) -> None:
        """Look into the outbox now: something new is in it. From any thread, also when not running."""
        run = self._running
        if run is not None:
            run.woken.set()

    def _work(self, run: "_Run") -> None:
        """Claim and hand out, until told to stop."""
        failures = 0
        while not run.stopping:
            run.woken.clear()
            try:
                claims = self._claimed(run)
                failures = 0
                wait_s = 0.0 if claims else self._wait_s(run)
            except Exception:  # noqa: BLE001 - whatever broke below, notifications must not end with it
                failures += 1
                wait_s = self._backoff_s(failures)
                _log.warning("the outbox cannot be asked, trying again in %.1f s", wait_s, exc_info=True)
                claims = []
            for claim in claims:
                run.hand_out(self._deliver, claim)
            if wait_s > 0 and not run.stopping:
                self._clock.sleep(wait_s, run.woken)

    def _claimed(self, run: "_Run") -> list[Claim]:
        free = run.free()
        return list(self._outbox.claim(free, round(self._settings.lease_s * 1000))) if free else []

    def _wait_s(self, run: "_Run") -> float:
        """Until the next look: an attempt that ends wakes the loop, and so does `wake`."""
        if not run.free():
            return self._settings.poll_s
        due_at_ms = self._outbox.next_due_at_ms()
        if due_at_ms is None:
            return self._settings.poll_s
        # Never nothing: what is due may be held by somebody else.
        left_s = (due_at_ms - self._outbox.now_ms()) / 1000
        return min(max(left_s, 0.01), self._settings.poll_s)

    def _backoff_s(self, failures: int) -> float:
        policy = RetryPolicy(first_delay_s=self._settings.poll_s, delay_max_s=30.0)
        return policy.delay_s(failures, policy.retry_s, self._random.random()) or policy.delay_max_s

    def _deliver(self, run: "_Run", claim: Claim) -> None:
        """One attempt, in a thread of the pool."""
        try:
            if run.abandoned:
                self._outbox.release(claim)
                return
            answer = self._send(claim)
            now_ms = self._outbox.now_ms()
            decision = decide(
                claim.attempt,
                answer,
                claim.health,
                now_ms,
                share=self._random.random(),
                policy=self._policy,
            )
            if not self._outbox.record(claim, decision):
                _log.warning("%s took longer than its lease, and is somebody else's now", claim.delivery_id)
                return
            level = logging.INFO if isinstance(answer, Retry) else logging.DEBUG
            _log.log(level, "%s, attempt %d: %s", claim.delivery_id, claim.attempt, decision.outcome)
            if decision.disable_why:
                _log.warning("endpoint %s is disabled: %s", claim.target.endpoint_id, decision.disable_why)
        except HeadraceError as error:
            _log.warning("%s, attempt %d, could not be recorded: %s", claim.delivery_id, claim.attempt, error)
        except Exception:  # noqa: BLE001 - logged; the attempt is made again when its lease has passed
            _log.exception("%s, attempt %d, could not be recorded", claim.delivery_id, claim.attempt)

    def _send(self, claim: Claim) -> Answer:
        if claim.attempt > len(self._policy.schedule_s):
            # None of those before was recorded: it may be this notification that ends whoever sends it.
            return Retry("no attempt before this one came to its end")
        try:
            return self._notifier.send(claim.notification, claim.target)
        except Exception:  # noqa: BLE001 - a defect of a notifier costs an attempt, and no thread
            _log.exception("%s: the notifier failed in an unexpected way", claim.delivery_id)
            return Retry("internal error")


class _Run:
    """One life of a deliverer, from start to stop."""

    def __init__(self, threads: int) -> None:
        self.woken = threading.Event()
        self.stopping = False
        self.abandoned = False
        self._free = threads
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, "headrace-deliver")
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[["_Run"], None]) -> None:
        self._thread = threading.Thread(target=work, args=(self,), name="headrace-deliverer", daemon=True)
        self._thread.start()

    def end(self, *, drain: bool) -> None:
        self.abandoned = not drain
        self.stopping = True
        self.woken.set()
        if self._thread is not None:
            self._thread.join()
        self._pool.shutdown()

    def free(self) -> int:
        """How many attempts more can begin."""
        with self._lock:
            return self._free

    def hand_out(self, deliver: Callable[["_Run", Claim], None], claim: Claim) -> None:
        """Make an attempt in a thread of the pool; its end wakes the loop."""
        with self._lock:
            self._free -= 1
        self._pool.submit(self._one, deliver, claim)

    def _one(self, deliver: Callable[["_Run", Claim], None], claim: Claim) -> None:
        try:
            deliver(self, claim)
        finally:
            with self._lock:
                self._free += 1
            self.woken.set()
