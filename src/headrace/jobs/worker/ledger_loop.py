"""The worker's loop with the ledger: settle and claim in one transaction.

Settlements that arrive during a transaction go together with the next one. Short jobs share
commits, and a single job waits for nothing.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from headrace.core.clock import Clock, RetryPolicy
from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.job import Completed, Failed, Job, JobFailure, Settlement
from headrace.jobs.ledger import ClaimRequest, JobLedger, SettleAndClaimReply
from headrace.jobs.state import WITH_RESULT, Cause, JobState
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.running_jobs import LeaseKey, RunningJobs

_log = logging.getLogger("headrace.jobs")

_RETRY_POLICY: Final = RetryPolicy(retry_s=float("inf"), first_delay_s=0.1, delay_max_s=5.0)
_FINAL_TRIES: Final = 3
"""Tries of a stopping worker with an unavailable ledger."""
_RECHECK_S: Final = 0.05
"""Seconds until the next read if a due job could not be claimed because another transaction holds
it.
"""
_LIMITED_POLL_S: Final = 1.0
"""Seconds until the next claim of jobs that wait for the end of other workers' jobs, by a limit."""
_MODEL_RETRY_S: Final = 60.0
"""Seconds until a worker claims jobs of a model again that it could not use."""
_NOT_DURABLE_RETRY_MS: Final = 10_000
_REFUSALS_MAX: Final = 5
"""Failures of one settlement, while others succeed, after which a plain failure is recorded
instead.
"""

_TRIES_MAX: Final = 100
"""Failures of one settlement, with nothing else to settle or claim, after which it is replaced:
minutes.
"""


@dataclass(slots=True)
class _Refused:
    """A settlement that made the ledger fail."""

    tries: int = 0
    refusals: int = 0
    """Failures with a successful transaction since the last one: the ledger is not the reason."""
    successes: int = -1
    """The number of successful transactions at the last failure."""


class LedgerLoop:
    """The settle-and-claim loop of a worker.

    One thread runs `run`; any thread may call the other methods.

    Args:
        ledger: The ledger.
        settings: Queues, concurrency, lease.
        running_jobs: The worker's attempts; they determine the free slots.
        begin: Called in the loop's thread with each claimed job. It adds the job to `running_jobs`
            and returns at once.
        secure: Makes results durable before they are settled, and returns the settlements to
            record, one for one. If it raises, completed attempts are settled as storage failures
            and retried.
        settled: Called in the loop's thread with each recorded settlement and True if it counted.
            It removes the attempt from `running_jobs` and returns at once.
        may_claim: Returns False for other reasons to claim nothing: a drain, or an overdue heartbeat.
        clock: The clock of waits.
        share: Draws the jitter of a wait, 0 to 1.
    """

    def __init__(
        self,
        ledger: JobLedger,
        settings: WorkerSettings,
        running_jobs: RunningJobs,
        *,
        begin: Callable[[Job], None],
        secure: Callable[[Sequence[Settlement]], Sequence[Settlement]],
        settled: Callable[[Settlement, bool], None],
        may_claim: Callable[[], bool],
        clock: Clock,
        share: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._running_jobs = running_jobs
        self._begin = begin
        self._secure = secure
        self._settled = settled
        self._may_claim = may_claim
        self._clock = clock
        self._share = share
        self._waits_for_idleness = settings.waits_for_idleness
        self._claim = ClaimRequest(settings.name, settings.queues, 1, settings.lease_ms, settings.region)
        """A claim of one job, to copy."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._pending: dict[LeaseKey, Settlement] = {}
        """The settlements to record, by job and lease, oldest first."""
        self._may_have_jobs = True
        """True if a claim may return jobs."""
        self._skipped_regions = False
        """True if the last claim skipped jobs of other regions because the worker was not idle."""
        self._limited = False
        """True if the last claim left jobs that wait for the end of others, by a limit."""
        self._poll_at_s = clock.now()
        """The time of the next claim without a notification."""
        self._closed = False
        self._ended = False
        self._failures = 0
        """Failures of the ledger in a row. After one, the last transaction may have been committed.
        """
        self._final_tries = 0
        self._singly = 0
        """The number of next transactions with one settlement, or a claim alone: one settlement may
        cause the failures.
        """
        self._apart = False
        self._successes = 0
        """The number of successful transactions."""
        self._refused: dict[LeaseKey, _Refused] = {}
        self._missing_models: dict[str, float] = {}
        """The models that the worker could not use, and the times until which it claims no job of them."""

    # Any thread

    def settle(self, settlement: Settlement) -> None:
        """Record a settlement with the next transaction."""
        with self._lock:
            self._pending[settlement.job_id, settlement.lease] = settlement
        self._wake.set()

    def leave_model(self, model: str) -> None:
        """Leave the jobs of a model that this worker cannot use to other workers for a while."""
        with self._lock:
            self._missing_models[model] = self._clock.now() + _MODEL_RETRY_S

    def notify(self) -> None:
        """Note that jobs may be claimable."""
        self._may_have_jobs = True
        self._wake.set()

    def slot_freed(self) -> None:
        """Note that a slot is free: if the queues were not empty, claim more."""
        if self._may_have_jobs or self._skipped_regions:
            self._wake.set()

    def close(self) -> None:
        """Claim no more.

        `running_jobs.begin_claim` covers a claim under way until all its jobs are added.
        """
        self._closed = True

    def end(self) -> None:
        """Record the waiting settlements and let `run` return. No settlements may follow."""
        self._closed = self._ended = True
        self._wake.set()

    # The loop's thread

    def run(self) -> None:
        """Run transactions until `end`.

        Settlements that an unavailable ledger missed wait for lease expiry.
        """
        while True:
            self._wake.clear()
            if self._ended and (not self._pending or self._final_tries >= _FINAL_TRIES):
                return
            leaving = self._ended
            try:
                if self._settle_and_claim():
                    continue
            except Exception:  # noqa: BLE001 - without this thread the worker is useless
                _log.exception("a transaction failed unexpectedly, its outcome is looked up")
                self._failures += 1
            if leaving:
                self._final_tries += 1
            self._clock.sleep(self._wait_s(), self._wake)

    def _wait_s(self) -> float:
        """Return the seconds until the next transaction, unless a wakeup comes first."""
        if self._failures:
            delay_s = _RETRY_POLICY.delay_s(self._failures, float("inf"), self._share())
            assert delay_s is not None, "an endless budget"
            return delay_s
        return max(0.0, self._poll_at_s - self._clock.now())

    def _settle_and_claim(self) -> bool:
        """Run one transaction. Return True if there was one and the ledger responded."""
        try:
            if self._failures:
                self._resolve()
            pending = self._next()
            claim = self._next_claim(pending)
            if not pending and claim is None:
                if self._apart and self._pending:
                    return True
                # After a failure, `_resolve` has found out which settlements were recorded.
                known, self._failures = self._failures > 0, 0
                return known
            settlements = self._secured(pending)
            reply = self._ledger.settle_and_claim(settlements, claim)
        except JobLedgerUnavailableError as error:
            _log.warning("the job ledger is unavailable, retrying: %s", error)
            return self._failed()
        except Exception:  # noqa: BLE001 - as above
            _log.exception("the job ledger failed, retrying")
            self._suspect()
            return self._failed()
        self._failures, self._singly = 0, max(0, self._singly - 1)
        self._successes += 1
        self._take(pending, settlements, reply.accepted)
        if claim is not None:
            self._claimed(reply, claim)
        return True

    def _next(self) -> dict[LeaseKey, Settlement]:
        """Return the settlements to record now, by job and lease."""
        with self._lock:
            pending = dict(self._pending)
        self._apart = bool(self._singly) and not self._apart
        if self._apart:
            return {}
        return dict(islice(pending.items(), 1)) if self._singly else pending

    def _failed(self) -> bool:
        self._failures += 1
        self._may_have_jobs = True
        return False

    def _suspect(self) -> None:
        """Handle an error of the ledger that is no outage: one settlement may cause it."""
        with self._lock:
            singly, self._singly = self._singly, max(self._singly, len(self._pending) + 1)
            if not singly or self._apart or not self._pending:
                return
            key = next(iter(self._pending))
            self._pending[key] = self._plainer(self._pending.pop(key))

    def _plainer(self, settlement: Settlement) -> Settlement:
        """Return the settlement, or a plain failure once it alone failed often enough."""
        key = (settlement.job_id, settlement.lease)
        refused = self._refused.setdefault(key, _Refused())
        refused.tries += 1
        refused.refusals += self._successes > refused.successes
        refused.successes = self._successes
        if refused.refusals < _REFUSALS_MAX and refused.tries < _TRIES_MAX:
            return settlement
        _log.error(
            "the outcome of an attempt cannot be recorded, recording a failure instead",
            extra={"job": settlement.job_id},
        )
        failure = JobFailure(Cause.DEFECT, "the outcome of the attempt could not be recorded")
        return Settlement(settlement.job_id, settlement.lease, Failed(failure, _NOT_DURABLE_RETRY_MS))

    def _next_claim(self, pending: Mapping[LeaseKey, Settlement]) -> ClaimRequest | None:
        """Return a claim for the slots that are free once `pending` is settled, or None to claim nothing."""
        now_s = self._clock.now()
        if now_s >= self._poll_at_s:
            self._may_have_jobs = True
            self._poll_at_s = now_s + self._settings.poll_s * (0.75 + self._share() / 4)
        # The settled jobs may have been those that others wait for.
        may_have_jobs = self._may_have_jobs or (self._limited and bool(pending))
        if self._closed or not (may_have_jobs or self._skipped_regions) or not self._may_claim():
            return None
        if self._singly and pending:
            return None
        used_slots, alone = self._running_jobs.slots_after(pending)
        free_slots = self._settings.concurrency - used_slots
        if free_slots <= 0 or alone or (used_slots and not may_have_jobs):
            return None
        # Checked again after `begin_claim`: the thread that closes waits for claims afterwards, and a
        # draining worker reports that it claims no more once no claim is under way.
        self._running_jobs.begin_claim()
        if self._closed or not self._may_claim():
            self._running_jobs.end_claim()
            return None
        # Reset before the claim, so that a notification during the claim is kept.
        self._may_have_jobs = False
        other_regions = not used_slots and self._waits_for_idleness
        self._skipped_regions = self._waits_for_idleness and not other_regions
        return replace(
            self._claim,
            jobs_max=free_slots,
            other_regions=other_regions,
            without_models=self._without_models(now_s),
        )

    def _without_models(self, now_s: float) -> frozenset[str]:
        with self._lock:
            self._missing_models = {
                m: until_s for m, until_s in self._missing_models.items() if until_s > now_s
            }
            return frozenset(self._missing_models)

    def _secured(self, pending: Mapping[LeaseKey, Settlement]) -> Sequence[Settlement]:
        """Return the settlements to record, one for one."""
        settlements = tuple(pending.values())
        if not settlements:
            return ()
        try:
            secured = self._secure(settlements)
            if [(s.job_id, s.lease) for s in secured] == list(pending):
                return secured
            _log.error("secure returned other settlements than it was given")
        except Exception:  # noqa: BLE001 - a result that is not durable is not complete
            _log.exception("results could not be made durable")
        return list(map(not_durable, settlements))

    def _resolve(self) -> None:
        """Find out if a failed transaction was committed, and apply its results."""
        with self._lock:
            pending = dict(self._pending)
        for job in self._ledger.list_running(self._settings.name):
            if self._running_jobs.get(job.id, job.lease) is None:
                self._begin(job)
        self._running_jobs.end_claim()
        known = self._ledger.get_many([job_id for job_id, _ in pending]) if pending else {}
        for key, settlement in pending.items():
            job = known.get(settlement.job_id)
            if job is None or job.state is not JobState.RUNNING or job.lease != settlement.lease:
                counted = job is not None and _counted(job, settlement)
                self._take([key], [settlement], [counted])

    def _take(
        self, keys: Collection[LeaseKey], settlements: Sequence[Settlement], accepted: Sequence[bool]
    ) -> None:
        """Apply the ledger's reply to the settlements of these jobs and leases."""
        with self._lock:
            for key in keys:
                self._pending.pop(key, None)
        for key, settlement, counted in zip(keys, settlements, accepted, strict=True):
            self._refused.pop(key, None)
            self._settled(settlement, counted)

    def _claimed(self, reply: SettleAndClaimReply, claim: ClaimRequest) -> None:
        for job in reply.claimed:
            self._begin(job)
        self._running_jobs.end_claim()
        self._limited = reply.limited
        if len(reply.claimed) == claim.jobs_max or any(job.alone for job in reply.claimed):
            self._may_have_jobs = True
        elif reply.due_in_ms is not None:
            self._poll_within(max(reply.due_in_ms / 1000, _RECHECK_S))
        if reply.limited:
            self._poll_within(_LIMITED_POLL_S)

    def _poll_within(self, seconds: float) -> None:
        self._poll_at_s = min(self._poll_at_s, self._clock.now() + seconds)


def not_durable(settlement: Settlement) -> Settlement:
    """Return the settlement for a completed attempt whose result could not be made durable."""
    if not isinstance(settlement.outcome, Completed):
        return settlement
    failure = JobFailure(Cause.STORAGE, "the result could not be stored", "StorageError")
    return replace(settlement, outcome=Failed(failure, _NOT_DURABLE_RETRY_MS))


def _counted(job: Job, settlement: Settlement) -> bool:
    """Return True if a settlement without a reply was recorded, judging by the job's current state."""
    if job.lease != settlement.lease:
        return False
    if not isinstance(settlement.outcome, Completed):
        return True
    return (
        job.state in {JobState.PUBLISHING, *WITH_RESULT}
        and job.result is not None
        and job.result.uri == settlement.outcome.result.uri
    )
