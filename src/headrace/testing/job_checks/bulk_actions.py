"""Checks of actions on many jobs, and of the audit log."""

from typing import Final

from headrace.core.errors import JobNotFoundError
from headrace.jobs.actions import ACTION_STATES, JobAction, SkipReason
from headrace.jobs.audit import AUDIT_KEPT_DAYS, AuditEntry
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import Job
from headrace.jobs.ledger import DAY_MS, JobLedger
from headrace.jobs.state import ENDED, JobState
from headrace.testing.expect import equal, raises
from headrace.testing.job_checks.bench import LedgerBench, done, ids

_UNKNOWN: Final = "01a3185c-5000-7849-aacf-f0401441a1cd"
_PAGES_MAX: Final = 50


def check_action_changes_jobs_in_its_states(bench: LedgerBench) -> None:
    """Check that an action changes each job as the operation of its name, and leaves other states."""
    for action in JobAction:
        jobs = {state: bench.submit_ended(state, queue=f"{action}-{state}") for state in sorted(ENDED)}
        jobs[JobState.RUNNING] = bench.submit_running(queue=f"{action}-running")
        jobs[JobState.PENDING] = bench.submit(queue=f"{action}-pending")
        after = (jobs[JobState.RUNNING].id,)
        jobs[JobState.BLOCKED] = bench.submit(queue=f"{action}-blocked", after=after)
        expected = {jobs[state].id for state in ACTION_STATES[action]}
        reply = bench.ledger.apply_action(action, ids(jobs.values()), by="ann")
        equal(set(ids(reply.changed)), expected, f"the jobs that {action.value} changed")
        equal(dict(reply.skipped), {SkipReason.STATE: len(jobs) - len(expected)}, "the skipped jobs")
        for state, job in jobs.items():
            if job.id in expected:
                _check_changed(bench, action, job)
            else:
                equal(bench.reload(job), job, f"a {state.value} job after {action.value}")
        bench.settle(jobs[JobState.RUNNING], done())


def _check_changed(bench: LedgerBench, action: JobAction, before: Job) -> None:
    if action is JobAction.DELETE:
        raises(JobNotFoundError, lambda: bench.ledger.get(before.id), "a deleted job")
        return
    after, entry = bench.reload(before), bench.ledger.history(before.id)[-1]
    republished = action is JobAction.RETRY and before.state is JobState.PUBLISH_FAILED
    if action is JobAction.CANCEL:
        event = HistoryEvent.CANCEL_REQUESTED
        running = before.state is JobState.RUNNING
        state = JobState.RUNNING if running else JobState.CANCELLED
        equal(after.cancel_requested, running, "the request to cancel a job")
    else:
        event = HistoryEvent.REPUBLISHED if republished else HistoryEvent.REQUEUED
        state = JobState.PUBLISHING if republished else JobState.PENDING
        equal(after.result is None, not republished, "the absence of a result")
    what = f"a {before.state.value} job after {action.value}"
    equal((after.state, entry.event, entry.by), (state, event, "ann"), what)


def check_action_reply(bench: LedgerBench) -> None:
    """Check that the reply has the changed jobs in order, and counts others by reason.

    The tenant None changes the jobs of all tenants.
    """
    own, other = bench.submit(tenant="a"), bench.submit(tenant="b")
    running = bench.submit_running(tenant="a", queue="q")
    wanted = [running.id, _UNKNOWN, own.id, own.id, other.id]
    reply = bench.ledger.apply_action(JobAction.CANCEL, wanted, tenant="a")
    equal(ids(reply.changed), [running.id, own.id], "the changed jobs of a tenant")
    equal([job.state for job in reply.changed], [JobState.RUNNING, JobState.CANCELLED], "their states")
    equal(list(reply.changed), [bench.reload(running), bench.reload(own)], "the changed jobs as they are")
    equal(dict(reply.skipped), {SkipReason.GONE: 2}, "an unknown job, and that of another tenant")
    again = bench.ledger.apply_action(JobAction.CANCEL, ids([running, own, other]))
    equal(ids(again.changed), [other.id], "the changed jobs of all tenants")
    wanted_skips = {SkipReason.REQUESTED: 1, SkipReason.STATE: 1}
    equal(dict(again.skipped), wanted_skips, "a repeated request to cancel, and a cancelled job")
    equal(len(bench.events(running)), 1, "the number of requests in a history")
    none = bench.ledger.apply_action(JobAction.DELETE, [])
    equal(len(none.changed) + len(none.skipped), 0, "the jobs in the reply for no jobs")


def check_action_with_taken_output(bench: LedgerBench) -> None:
    """Check that jobs whose output another job owns by now are skipped, and that others run again."""
    named = {"output_uri": "memory://out/", "key": "k"}
    first = bench.submit_ended(JobState.FAILED, **named)
    owner = bench.submit(**named)
    plain = bench.submit_ended(JobState.FAILED, queue="q")
    reply = bench.ledger.apply_action(JobAction.REQUEUE, ids([first, plain]))
    equal(ids(reply.changed), [plain.id], "the requeued jobs")
    equal(dict(reply.skipped), {SkipReason.OUTPUT_TAKEN: 1}, "the skipped jobs")
    equal((bench.reload(first), bench.reload(owner)), (first, owner), "the other jobs")
    equal(ids(bench.claim(9, queues=["q"])), [plain.id], "the job that runs again")


def check_action_is_audited(bench: LedgerBench) -> None:
    """Check that an action on many jobs is recorded once, with their number, if it changed any."""
    entry = AuditEntry("ops", "t", "jobs.cancel", details={"filter": {"queue": "q", "tag": ["a=b"]}})
    job_ids = ids(bench.submit_many(3))
    bench.ledger.apply_action(JobAction.CANCEL, [*job_ids, _UNKNOWN], audit=entry)
    bench.ledger.apply_action(JobAction.CANCEL, job_ids, audit=entry)
    entries = bench.ledger.audit().entries
    equal(len(entries), 1, "the number of entries of an action that changed jobs, and one that did not")
    (found,) = entries
    recorded = (found.done_by, found.tenant, found.action, found.subject, found.details, found.jobs)
    equal(recorded, ("ops", "t", "jobs.cancel", "", entry.details, 3), "the entry of an action")
    equal(found.at_ms, bench.clock.now_ms(), "the time of the entry")


def check_audit_log(bench: LedgerBench) -> None:
    """Check that the audit log lists all entries of a key and an action, newest first, in pages."""
    equal(bench.ledger.audit().entries, (), "the log of a new ledger")
    other = bench.start_ledger()
    for number in range(5):
        ledger = (bench.ledger, other)[number % 2]
        entry = AuditEntry(f"key-{number % 2}", "t", f"queue.{number % 3}", f"q{number}", {"n": number})
        ledger.record_audit(entry)
        bench.advance(1)
    equal(_subjects(bench.ledger), ["q4", "q3", "q2", "q1", "q0"], "all entries")
    equal(_subjects(bench.ledger, done_by="key-0"), ["q4", "q2", "q0"], "the entries of a key")
    equal(_subjects(bench.ledger, action="queue.1"), ["q4", "q1"], "the entries of an action")
    equal(_subjects(bench.ledger, done_by="key-0", action="queue.1"), ["q4"], "the entries of both")
    equal(_subjects(bench.ledger, done_by="none"), [], "the entries of an unknown key")
    first = bench.ledger.audit(limit=1).entries[0]
    equal((first.details, first.jobs), ({"n": 4}, None), "the details of an entry")


def check_audit_log_ends(bench: LedgerBench) -> None:
    """Check that an entry leaves the audit log after `AUDIT_KEPT_DAYS`."""
    bench.ledger.record_audit(AuditEntry("ops", "", "queue.change", "old"))
    bench.advance(AUDIT_KEPT_DAYS * DAY_MS)
    bench.ledger.record_audit(AuditEntry("ops", "", "queue.change", "new"))
    equal(_subjects(bench.ledger), ["new", "old"], "the entries on the last day of the first one")
    bench.advance(1)
    equal(_subjects(bench.ledger), ["new"], "the entries after that")
    bench.ledger.record_audit(AuditEntry("ops", "", "queue.change", "newer"))
    equal(_subjects(bench.ledger), ["newer", "new"], "the entries after another one")


def _subjects(ledger: JobLedger, *, done_by: str = "", action: str = "") -> list[str]:
    """Return the subjects of the matching entries, after a check that pages of any size have them too."""
    listed: list[list[str]] = []
    for limit in (100, 2, 1):
        found: list[str] = []
        after = ""
        for _ in range(_PAGES_MAX):
            page = ledger.audit(done_by=done_by, action=action, after=after, limit=limit)
            found += [entry.subject for entry in page.entries]
            after = page.next_after
            if not after:
                break
        listed.append(found)
    equal(listed[1:], [listed[0], listed[0]], "the entries in pages of 2 and 1")
    return listed[0]
