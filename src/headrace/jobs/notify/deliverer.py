"""The service that delivers notifications: claims, sends and records due deliveries."""

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from typing_extensions import override

from headrace.core.clock import Clock, RetryPolicy, SystemClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.predictor import Service
from headrace.jobs.notify import (
    TARGET_KINDS,
    Delivered,
    DeliveryResult,
    Notification,
    Notifier,
    RetryLater,
)
from headrace.jobs.notify.delivery import Claim, DeliveryPolicy, Outbox, decide
from headrace.jobs.tracing import JobTracer, SpanError, notification_span

_log = logging.getLogger("headrace.jobs.deliverer")


@dataclass(frozen=True, slots=True)
class DelivererSettings:
    """The settings of a deliverer.

    Args:
        threads: The largest number of concurrent attempts, each to another receiver.
        lease_s: Seconds after which another deliverer may repeat an attempt; more than any
            notifier's timeout.
        poll_s: Seconds between reads of the outbox without a wakeup; other processes may add
            deliveries.
    """

    threads: int = 8
    lease_s: float = 120.0
    poll_s: float = 1.0

    def __post_init__(self) -> None:
        if self.threads < 1 or min(self.lease_s, self.poll_s) <= 0:
            raise ConfigError("threads must be at least 1, lease_s and poll_s above 0")


class Deliverer(Service):
    """A service that delivers the notifications of an outbox.

    Any number, in any processes, may share it.

    An attempt occupies one of `threads`, and a receiver has at most one running attempt. A
    receiver that does not respond therefore delays only itself, for its notifier's timeout. If the
    outbox is unavailable, the service keeps retrying. An attempt that could not be recorded is
    repeated after its lease, with the same event id.

    Args:
        outbox: The due deliveries; owned by the caller.
        notifier: The sender; owned by the caller.
        tracer: The tracer of the attempts, if there is any.
        clock: The clock of waits between reads.
        seed: The seed of the jitter.
    """

    def __init__(
        self,
        outbox: Outbox,
        notifier: Notifier,
        *,
        policy: DeliveryPolicy | None = None,
        settings: DelivererSettings | None = None,
        tracer: JobTracer | None = None,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self._outbox = outbox
        self._notifier = notifier
        self._policy = policy or DeliveryPolicy()
        self._settings = settings or DelivererSettings()
        self._tracer = tracer
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)  # noqa: S311 - jitter, not a secret
        self._life = threading.Lock()
        self._running: _Run | None = None

    @override
    def start(self) -> None:
        with self._life:
            if self._running is None:
                self._running = _Run(self._settings.threads)
                self._running.begin(self._work)

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Stop. Running attempts finish within their notifier's timeout and are recorded.

        No further deliveries are claimed. Without `drain`, claims whose attempt has not begun are
        released. Waiting deliveries stay in the outbox.
        """
        with self._life:
            if self._running is not None:
                self._running.end(drain=drain)
                self._running = None

    def wake(self) -> None:
        """Read the outbox now. Any thread may call this, also while the service is not running."""
        run = self._running
        if run is not None:
            run.woken.set()

    def _work(self, run: "_Run") -> None:
        """Claim and send until stopped."""
        failures = 0
        while not run.stopping:
            run.woken.clear()
            try:
                claims = self._claimed(run)
                failures = 0
                wait_s = 0.0 if claims else self._wait_s(run)
            except Exception:  # noqa: BLE001 - the service must continue
                failures += 1
                wait_s = self._backoff_s(failures)
                _log.warning("the outbox is unavailable, retrying in %.1f s", wait_s, exc_info=True)
                claims = []
            for claim in claims:
                run.start_attempt(self._deliver, claim)
            if wait_s > 0 and not run.stopping:
                self._clock.sleep(wait_s, run.woken)

    def _claimed(self, run: "_Run") -> list[Claim]:
        free = run.free()
        return list(self._outbox.claim(free, round(self._settings.lease_s * 1000))) if free else []

    def _wait_s(self, run: "_Run") -> float:
        """Return the seconds until the next read. The end of an attempt and `wake` end the wait."""
        if not run.free():
            return self._settings.poll_s
        due_at_ms = self._outbox.next_due_at_ms()
        if due_at_ms is None:
            return self._settings.poll_s
        # Never 0: another deliverer may hold the due delivery.
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
            result = self._send(claim)
            now_ms = self._outbox.now_ms()
            decision = decide(
                claim.attempt,
                result,
                claim.health,
                now_ms,
                share=self._random.random(),
                policy=self._policy,
            )
            if not self._outbox.record(claim, decision):
                _log.warning("%s exceeded its lease and was claimed by another deliverer", claim.delivery_id)
                return
            level = logging.INFO if isinstance(result, RetryLater) else logging.DEBUG
            _log.log(level, "%s, attempt %d: %s", claim.delivery_id, claim.attempt, decision.outcome)
            if decision.disable_why:
                _log.warning("receiver %s is disabled: %s", claim.target.receiver_id, decision.disable_why)
        except HeadraceError as error:
            _log.warning("%s, attempt %d, could not be recorded: %s", claim.delivery_id, claim.attempt, error)
        except Exception:  # noqa: BLE001 - logged; the attempt is repeated after its lease
            _log.exception("%s, attempt %d, could not be recorded", claim.delivery_id, claim.attempt)

    def _send(self, claim: Claim) -> DeliveryResult:
        if claim.attempt > len(self._policy.schedule_s):
            # No earlier attempt was recorded: this notification may be the one that kills its
            # sender.
            return RetryLater("no earlier attempt was recorded")
        if self._tracer is None:
            return self._notify(claim, claim.notification)
        notification, kind = claim.notification, TARGET_KINDS[type(claim.target)]
        span = notification_span(
            self._tracer,
            kind,
            notification.trace,
            job_id=notification.job_id,
            event=notification.type,
            receiver_id=claim.target.receiver_id,
            attempt=claim.attempt,
        )
        trace = span.traceparent or notification.trace
        result = self._notify(claim, replace(notification, trace=trace))
        is_delivered = isinstance(result, Delivered)
        span.end(error=None if is_delivered else SpanError(type(result).__name__, result.why))
        return result

    def _notify(self, claim: Claim, notification: Notification) -> DeliveryResult:
        try:
            return self._notifier.send(notification, claim.target)
        except Exception:  # noqa: BLE001 - a defect of a notifier must not end the thread
            _log.exception("%s: the notifier failed unexpectedly", claim.delivery_id)
            return RetryLater("internal error")


class _Run:
    """One run of a deliverer, from start to stop."""

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
        """Return the number of further attempts that can begin."""
        with self._lock:
            return self._free

    def start_attempt(self, deliver: Callable[["_Run", Claim], None], claim: Claim) -> None:
        """Start an attempt in a thread of the pool; its end wakes the loop."""
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
