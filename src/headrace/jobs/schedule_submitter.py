"""Due schedules to jobs: a maintenance task, of which any number of processes may run.

A claim of a schedule passes after `LEASE_MS` if its run is not recorded, and another process repeats
the run. The idempotency key of the job contains the time of the run, so that no time makes two jobs.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from headrace.core.errors import (
    DataError,
    ForbiddenError,
    HeadraceError,
    JobLedgerUnavailableError,
    JobStateError,
    OverloadedError,
    QueueFullError,
    StoppedError,
    UnavailableError,
)
from headrace.jobs.access import ApiKey
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobLedger, SubmitReply
from headrace.jobs.schedule_operations import Submit
from headrace.jobs.schedules import JobSchedule, ScheduleClaim, next_time_ms, read_scheduled_job, run_key
from headrace.jobs.submission import SubmissionLimits

LEASE_MS: Final = 30_000
"""The time after which a run without a record is repeated."""
ROUND_RUNS: Final = 100
WAIT_S: Final = 20.0
"""The time limit of the ledger's reply to a submission."""
ERROR_CHARS_MAX: Final = 1_000
_TEMPORARY: Final = (
    JobLedgerUnavailableError,
    OverloadedError,
    QueueFullError,
    StoppedError,
    UnavailableError,
)

_log = logging.getLogger("headrace.jobs.schedules")

FindKey = Callable[[str], ApiKey | None]
"""Returns the API key of a name, or None if there is none any more."""


class ScheduleSubmitter:
    """A maintenance task that submits the jobs of due schedules, with the rights of their API keys.

    A submission that fails temporarily is repeated until the next time of its schedule. Any other
    refusal ends the run, and the schedule has the reason as its `last_error`.
    """

    def __init__(
        self, ledger: JobLedger, limits: SubmissionLimits, *, find_key: FindKey, submit: Submit
    ) -> None:
        self._ledger = ledger
        self._limits = limits
        self._find_key = find_key
        self._submit = submit
        self.round_runs: Final = ROUND_RUNS

    def tick(self) -> int:
        """Run the due schedules. Return their number."""
        claims = self._ledger.claim_schedules(self.round_runs, LEASE_MS)
        # All are submitted before any is awaited, so that they share a commit.
        started = [(claim, self._start(claim)) for claim in claims]
        for claim, outcome in started:
            self._record(claim, _wait(outcome))
        return len(claims)

    def _start(self, claim: ScheduleClaim) -> "Job | Exception | Future[SubmitReply]":
        schedule = claim.schedule
        if schedule.missed:
            _log.warning("a schedule missed times", extra={**_fields(claim), "missed": schedule.missed})
        try:
            # A process that died after the submission of this run has left its job.
            existing = self._ledger.get_by_key(schedule.tenant, run_key(schedule.name, claim.at_ms))
            return existing or self._begin(claim)
        except HeadraceError as error:
            return error
        except Exception as error:  # noqa: BLE001 - one schedule must not stop the others
            _log.exception("a schedule failed", extra=_fields(claim))
            return error

    def _begin(self, claim: ScheduleClaim) -> "Future[SubmitReply]":
        schedule, at_ms = claim.schedule, claim.at_ms
        if next_time_ms(schedule.settings, at_ms) <= claim.claimed_at_ms:
            raise StoppedError("no process submitted the job before the next time of the schedule")
        key = self._owner(schedule)
        self._require_no_overlap(schedule)
        submission = read_scheduled_job(
            schedule.name,
            schedule.settings,
            at_ms,
            self._limits,
            idempotency_key=run_key(schedule.name, at_ms),
            model_optional=key.endpoints is not None,
        )
        return self._submit(key, submission)

    def _owner(self, schedule: JobSchedule) -> ApiKey:
        key = self._find_key(schedule.changed_by)
        if key is None or key.tenant != schedule.tenant:
            which = f"the API key {schedule.changed_by!r}" if schedule.changed_by else "access without keys"
            raise ForbiddenError(
                f"{which}, which set this schedule, has ended: set the schedule again with another key"
            )
        return key

    def _require_no_overlap(self, schedule: JobSchedule) -> None:
        if schedule.settings.overlap == "allow" or not schedule.last_job_id:
            return
        job = self._ledger.get_many([schedule.last_job_id]).get(schedule.last_job_id)
        if job is not None and not job.state.ended:
            raise JobStateError(job.id, job.state.value, "the schedule skips runs until it has ended")

    def _record(self, claim: ScheduleClaim, outcome: Job | Exception) -> None:
        """Record the outcome of a run, unless it is repeated after the lease."""
        if isinstance(outcome, Job):
            self._write(claim, job_id=outcome.id)
            return
        message = outcome.public_message if isinstance(outcome, HeadraceError) else "internal error"
        repeated = isinstance(outcome, _TEMPORARY) and _may_repeat(claim)
        _log.warning(
            "a schedule submitted no job%s: %s",
            f"; it tries again in {LEASE_MS / 1000:g} s" if repeated else "",
            outcome,
            extra=_fields(claim),
        )
        if not repeated:
            self._write(claim, error=message[:ERROR_CHARS_MAX])

    def _write(self, claim: ScheduleClaim, *, job_id: str = "", error: str = "") -> None:
        try:
            self._ledger.record_run(claim.schedule, job_id=job_id, error=error)
        except HeadraceError as failure:
            # The run is repeated, which finds its job.
            _log.warning("the run of a schedule was not recorded: %s", failure, extra=_fields(claim))


def _wait(outcome: "Job | Exception | Future[SubmitReply]") -> Job | Exception:
    """Return the job of a submission, or the error that ended it."""
    if not isinstance(outcome, Future):
        return outcome
    try:
        return outcome.result(WAIT_S).job
    except TimeoutError:
        return JobLedgerUnavailableError(f"the ledger did not respond within {WAIT_S:g} s")
    except Exception as error:  # noqa: BLE001 - one schedule must not stop the others
        return error


def _may_repeat(claim: ScheduleClaim) -> bool:
    """Return True if the run can be repeated before the next time of its schedule."""
    try:
        return next_time_ms(claim.schedule.settings, claim.at_ms) > claim.claimed_at_ms + LEASE_MS
    except DataError:
        return False


def _fields(claim: ScheduleClaim) -> dict[str, object]:
    schedule = claim.schedule
    return {"schedule": schedule.name, "tenant": schedule.tenant, "at_ms": claim.at_ms}
