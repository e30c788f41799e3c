"""The attempts under the leases of a worker, and the heartbeats that keep and watch them."""

import logging
import threading
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from headrace.core.clock import Clock
from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.job import JobProgress
from headrace.jobs.kinds import Attempt, StopReason
from headrace.jobs.ledger import Heartbeat, JobLedger
from headrace.jobs.notify.subscription import wants_progress
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.registration import Registration

LeaseKey = tuple[str, int]
"""A job's id and a lease number."""

_log = logging.getLogger("headrace.jobs")

_RETRY_S: Final = 1.0
"""Seconds until the next try with an unavailable ledger: leases expire meanwhile."""
PROGRESS_NOTIFY_S: Final = 30.0
"""The shortest time between two notifications of a job's progress."""
_ORDERS_S: Final = 0.1
"""The shortest time between two reads of the orders to a worker with jobs: it may have to cancel some."""
_IDLE_ORDERS_S: Final = 1.0
"""The same for an idle worker, for which most notifications mean new jobs."""
_CONFIRM_S: Final = 0.1
"""Seconds until a draining worker reports again that it claims no more jobs."""


@dataclass(slots=True)
class _Entry:
    """An open attempt."""

    attempt: Attempt
    limit_s: float | None = None
    """The end of its time limit, on the worker's clock."""
    stop_seen_s: float | None = None
    """The time at which its stop was first seen."""
    finished: bool = False
    """True once its outcome is known."""
    working: bool = False
    """True while a thread works on it, or will."""


class RunningJobs:
    """The worker's attempts by job and lease. Thread-safe.

    An attempt is open from its claim until the ledger has replied to its settlement. An attempt
    whose thread continues after that, because it ignores `stop`, is no longer open. It occupies its
    slot until its thread returns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[LeaseKey, _Entry] = {}
        self._returning: set[Attempt] = set()
        """Attempts that are no longer open, and occupy their slots."""
        self._claiming = False
        self.empty: Final = threading.Event()
        """Set while no attempt is open and no claim is under way."""
        self.empty.set()

    def add(self, attempt: Attempt) -> None:
        """Add an attempt. An earlier attempt at the same job is stopped as lost."""
        with self._lock:
            job_id = attempt.job.id
            earlier = [e.attempt for (known, _), e in self._open.items() if known == job_id]
            self._open[job_id, attempt.job.lease] = _Entry(attempt)
            self.empty.clear()
        for lost in earlier:
            lost.stop(StopReason.LOST)

    def begin(self, attempt: Attempt, limit_s: float | None = None) -> None:
        """Note that a thread works on the attempt; its time limit ends at `limit_s`."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is not None:
                entry.working, entry.limit_s = True, limit_s

    def mark_finished(self, attempt: Attempt) -> bool:
        """Note that the attempt's outcome is known. Return True for the first call only."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is None or entry.finished:
                return False
            entry.finished = True
            return True

    def thread_returned(self, attempt: Attempt) -> bool:
        """Note that the attempt's thread is free, and its outcome known. Return False if it was before."""
        with self._lock:
            self._returning.discard(attempt)
            entry = self._entry(attempt)
            if entry is None:
                return False
            entry.working = False
            known, entry.finished = entry.finished, True
            return not known

    def remove(self, attempt: Attempt) -> None:
        """Close an attempt that is settled or lost. It occupies its slot until its thread is free."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is None:
                return
            del self._open[attempt.job.id, attempt.job.lease]
            if entry.working:
                self._returning.add(attempt)
            self._set_if_empty()

    @property
    def claiming(self) -> bool:
        """True while a claim is under way."""
        return self._claiming

    def begin_claim(self) -> None:
        """Note that a claim is under way: until `end_claim`, further attempts may be added."""
        with self._lock:
            self._claiming = True
            self.empty.clear()

    def end_claim(self) -> None:
        """Note that all claimed jobs were added."""
        with self._lock:
            self._claiming = False
            self._set_if_empty()

    def attempts(self) -> tuple[Attempt, ...]:
        """Return all open attempts."""
        with self._lock:
            return tuple(entry.attempt for entry in self._open.values())

    def get(self, job_id: str, lease: int) -> Attempt | None:
        """Return the open attempt under a lease, or None."""
        with self._lock:
            entry = self._open.get((job_id, lease))
            return None if entry is None else entry.attempt

    def slots_after(self, ending: Iterable[LeaseKey] = ()) -> tuple[int, bool]:
        """Return the slots in use once `ending` are settled, and True if one job must run alone."""
        gone = set(ending)
        with self._lock:
            taken = [e.attempt.job for key, e in self._open.items() if e.working or key not in gone]
            return len(taken) + len(self._returning), any(job.alone for job in taken)

    def stop_all(self, reason: StopReason) -> None:
        """Stop all open attempts."""
        for attempt in self.attempts():
            attempt.stop(reason)

    def overdue(self, now_s: float) -> tuple[Attempt, ...]:
        """Return the attempts past their time limit that were not stopped."""
        with self._lock:
            return tuple(
                e.attempt
                for e in self._open.values()
                if not e.finished
                and e.attempt.stopped is None
                and e.limit_s is not None
                and e.limit_s <= now_s
            )

    def stuck(self, now_s: float, stop_s: float) -> tuple[Attempt, ...]:
        """Return the attempts that have not stopped `stop_s` after their stop was first seen here."""
        stuck: list[Attempt] = []
        with self._lock:
            for entry in self._open.values():
                if entry.finished or entry.attempt.stopped is None:
                    continue
                if entry.stop_seen_s is None:
                    entry.stop_seen_s = now_s
                if now_s - entry.stop_seen_s >= stop_s:
                    stuck.append(entry.attempt)
        return tuple(stuck)

    def next_check_s(self, now_s: float, stop_s: float) -> float | None:
        """Return when the next attempt will be overdue or stuck; None if none can be."""
        checks: list[float] = []
        with self._lock:
            for entry in self._open.values():
                if entry.finished:
                    continue
                if entry.attempt.stopped is not None:
                    checks.append(now_s if entry.stop_seen_s is None else entry.stop_seen_s + stop_s)
                elif entry.limit_s is not None:
                    checks.append(entry.limit_s)
        return min(checks, default=None)

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def _entry(self, attempt: Attempt) -> _Entry | None:
        entry = self._open.get((attempt.job.id, attempt.job.lease))
        return entry if entry is not None and entry.attempt is attempt else None

    def _set_if_empty(self) -> None:
        if not self._claiming and not self._open:
            self.empty.set()


class Heartbeats:
    """The heartbeats of a worker. One thread runs `run`; any thread may call the other methods.

    If the ledger does not respond, attempts continue: their outcome counts unless another worker
    has taken the job. But no more jobs are claimed (`may_claim`). A draining worker claims none either.

    Args:
        ledger: The ledger.
        settings: The lease and the heartbeat interval.
        running_jobs: The worker's attempts.
        give_up: Called in the heartbeat thread, once or more often, with an attempt that has not
            stopped `stop_s` after it was told to.
        clock: The clock of waits.
        registration: The worker's entry in the registry.
    """

    def __init__(
        self,
        ledger: JobLedger,
        settings: WorkerSettings,
        running_jobs: RunningJobs,
        *,
        give_up: Callable[[Attempt], None],
        clock: Clock,
        registration: Registration,
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._running_jobs = running_jobs
        self._give_up = give_up
        self._clock = clock
        self._registration = registration
        self._notified: WeakKeyDictionary[Attempt, tuple[float, JobProgress]] = WeakKeyDictionary()
        self._wake = threading.Event()
        self._ended = False
        self._check_due = False
        self._answered_s = clock.now()
        """The time of the ledger's last response."""
        self._checked_s = clock.now()
        self._next_s = clock.now() + settings.heartbeat_s
        """The time of the next heartbeat."""

    # Any thread

    def may_claim(self) -> bool:
        """Return False if the worker drains, or its last heartbeat is so old that leases may be lost."""
        if self._registration.draining:
            return False
        late_s = self._clock.now() - self._answered_s
        return late_s <= self._settings.lease_s / 2 or not len(self._running_jobs)

    def attempt_began(self, limit_s: float | None) -> None:
        """Note that an attempt began; its time limit ends at `limit_s` on this worker's clock."""
        if len(self._running_jobs) == 1:
            # Its lease is new, so the ledger has just responded.
            self._answered_s = self._clock.now()
        if limit_s is not None:
            self._wake.set()

    def attempts_stopped(self) -> None:
        """Note that attempts were told to stop: `stop_s` begins for them."""
        self._wake.set()

    def check_orders(self) -> None:
        """Read the orders to the worker soon, because the ledger has changed."""
        self._check_due = True
        self._wake.set()

    def end(self) -> None:
        """Let `run` return."""
        self._ended = True
        self._wake.set()

    # The heartbeat thread

    def run(self) -> None:
        """Send heartbeats until `end`."""
        while not self._ended:
            self._wake.clear()
            try:
                self._round(self._clock.now())
            except Exception:  # noqa: BLE001 - a worker without this thread loses all its leases
                _log.exception("a heartbeat failed, retrying")
                self._next_s = self._clock.now() + _RETRY_S
            if not self._ended:
                self._clock.sleep(self._wait_s(), self._wake)

    def _round(self, now_s: float) -> None:
        for attempt in self._running_jobs.overdue(now_s):
            attempt.stop(StopReason.TIME_LIMIT)
        for attempt in self._running_jobs.stuck(now_s, self._settings.stop_s):
            self._give_up(attempt)
        if now_s >= self._next_s:
            self._send_heartbeats()
            self._registration.register()
        elif self._check_due and now_s >= self._next_orders_s():
            self._read_orders()

    def _wait_s(self) -> float:
        now_s = self._clock.now()
        until_s = self._next_s
        check_s = self._running_jobs.next_check_s(now_s, self._settings.stop_s)
        if check_s is not None:
            until_s = min(until_s, check_s)
        if self._check_due:
            until_s = min(until_s, self._next_orders_s())
        return max(0.0, until_s - now_s)

    def _next_orders_s(self) -> float:
        return self._checked_s + (_ORDERS_S if len(self._running_jobs) else _IDLE_ORDERS_S)

    def _send_heartbeats(self) -> None:
        now_s = self._clock.now()
        # A lost lease must not be extended; of each job only the last lease remains.
        open_attempts = [
            attempt for attempt in self._running_jobs.attempts() if attempt.stopped is not StopReason.LOST
        ]
        self._next_s = now_s + self._settings.heartbeat_s
        heartbeats = [self._heartbeat_of(a) for a in open_attempts]
        report = self._registration.report()
        try:
            reply = self._ledger.heartbeat(self._settings.name, heartbeats, self._settings.lease_ms, report)
        except JobLedgerUnavailableError as error:
            if open_attempts:
                self._next_s = now_s + _RETRY_S
            _log.warning("no heartbeat could be sent, retrying: %s", error)
            return
        self._answered_s = now_s
        # The reply concerns the leases that were sent: a job may be open under a later one by now.
        _stop(open_attempts, reply.lost, StopReason.LOST)
        _stop(open_attempts, reply.cancel, StopReason.CANCELLED)
        _stop(open_attempts, reply.expired, StopReason.EXPIRED)
        self._registration.on_reply(report, reply)
        self._confirm_soon(now_s)

    def _heartbeat_of(self, attempt: Attempt) -> Heartbeat:
        """Return an attempt's heartbeat; subscribers see new progress every `PROGRESS_NOTIFY_S`."""
        job, progress = attempt.job, attempt.progress
        notify = False
        if progress is not None and wants_progress(job.spec.notify):
            now_s = self._clock.now()
            notified_s, notified = self._notified.get(attempt, (float("-inf"), None))
            notify = notified != progress and now_s - notified_s >= PROGRESS_NOTIFY_S
            if notify:
                self._notified[attempt] = (now_s, progress)
        return Heartbeat(job.id, job.lease, progress, attempt.cursor, notify)

    def _read_orders(self) -> None:
        self._check_due, self._checked_s = False, self._clock.now()
        open_attempts = self._running_jobs.attempts()  # Read before the query, for the same reason.
        try:
            orders = self._ledger.worker_orders(self._settings.name)
        except JobLedgerUnavailableError:
            return  # The next heartbeat reports them too.
        _stop(open_attempts, orders.cancelled, StopReason.CANCELLED)
        self._registration.order(draining=orders.draining)
        self._confirm_soon(self._checked_s)

    def _confirm_soon(self, now_s: float) -> None:
        """Let a draining worker report soon that it claims no more jobs: an operator may wait for it."""
        if self._registration.is_to_confirm:
            self._next_s = min(self._next_s, now_s + _CONFIRM_S)


def _stop(attempts: Iterable[Attempt], job_ids: Container[str], reason: StopReason) -> None:
    for attempt in attempts:
        if attempt.job.id in job_ids:
            attempt.stop(reason)
