"""Actions on all jobs that match a filter: rights, limits, time, objects and the audit log."""

from dataclasses import replace

import pytest

from cases import for_each
from headrace.core.errors import (
    DataError,
    ForbiddenError,
    JobLedgerUnavailableError,
    LimitError,
    UnavailableError,
)
from headrace.jobs import bulk
from headrace.jobs.access import ApiKey, Scope
from headrace.jobs.actions import JobAction
from headrace.jobs.audit import DETAILS_CHARS_MAX, audit_entry
from headrace.jobs.audit_log import AuditLog
from headrace.jobs.bulk import BULK_JOBS_MAX, BULK_S_MAX, BulkRequest, run_bulk
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter
from headrace.jobs.state import JobState
from headrace.testing import ManualWallClock, MemoryJobLedger

OPS = ApiKey("ops", "ops", frozenset({Scope.OPERATE}))
ADMIN = ApiKey("root", "ops", frozenset({Scope.ADMIN}))
ANN = ApiKey("ann", "a", frozenset({Scope.SUBMIT}))
CANCEL = BulkRequest(JobAction.CANCEL, JobFilter(queue="q"))


@pytest.fixture
def ledger():
    made = MemoryJobLedger(ManualWallClock())
    made.start()
    yield made
    made.stop()


def submit(ledger, count=1, **spec):
    replies = ledger.submit([NewJob(**{"queue": "q", "model": "m", **spec})] * count)
    return [reply.job.id for reply in replies]


def apply(ledger, key, request, *, delete=lambda job: None, now_s=lambda: 0.0):
    return run_bulk(ledger, key, request, delete_objects=delete, now_s=now_s)


def states(ledger, job_ids):
    return [ledger.get(job_id).state.value for job_id in job_ids]


def test_matching_jobs_are_changed_and_others_stay(ledger):
    wanted, other = submit(ledger, 3), submit(ledger, queue="other")
    reply = apply(ledger, OPS, CANCEL)
    assert (reply.matched, reply.changed, reply.skipped, reply.next_after) == (3, 3, {}, "")
    assert states(ledger, wanted + other) == ["cancelled"] * 3 + ["pending"]
    assert ledger.history(wanted[0])[-1].by == "ops"


def test_dry_run_counts_and_changes_nothing(ledger):
    wanted = submit(ledger, 3)
    reply = apply(ledger, OPS, replace(CANCEL, dry_run=True))
    assert (reply.dry_run, reply.matched, reply.changed) == (True, 3, 0)
    assert states(ledger, wanted) == ["pending"] * 3
    assert ledger.audit().entries == ()


def test_limit_ends_a_request_and_its_position_continues(ledger, monkeypatch):
    monkeypatch.setattr(bulk, "_TRANSACTION_JOBS", 2)
    wanted = submit(ledger, 7)
    first = apply(ledger, OPS, replace(CANCEL, limit=3))
    assert (first.matched, first.changed) == (3, 3)
    assert states(ledger, wanted).count("cancelled") == 3
    rest = apply(ledger, OPS, replace(CANCEL, after=first.next_after))
    assert (rest.matched, rest.next_after) == (4, "")
    assert states(ledger, wanted) == ["cancelled"] * 7


def test_long_request_ends_after_a_transaction(ledger, monkeypatch):
    monkeypatch.setattr(bulk, "_TRANSACTION_JOBS", 2)
    submit(ledger, 7)
    times = iter([0.0, BULK_S_MAX - 0.1, BULK_S_MAX])
    reply = apply(ledger, OPS, CANCEL, now_s=lambda: next(times))
    assert reply.matched == reply.changed == 4
    assert reply.next_after


def test_filter_is_narrowed_to_states_of_the_action(ledger):
    ended, pending = submit(ledger), submit(ledger)
    ledger.cancel(ended[0])
    assert apply(ledger, OPS, CANCEL).matched == 1
    with pytest.raises(DataError, match="cancel applies to jobs that are blocked, pending, running"):
        apply(ledger, OPS, BulkRequest(JobAction.CANCEL, JobFilter(states=frozenset({JobState.FAILED}))))
    retried = apply(ledger, OPS, BulkRequest(JobAction.RETRY, JobFilter(states=frozenset(JobState))))
    assert retried.changed == 2
    assert states(ledger, ended + pending) == ["pending", "pending"]


def test_filter_without_conditions_needs_all(ledger):
    wanted = submit(ledger, 2)
    with pytest.raises(DataError, match="all=true"):
        apply(ledger, OPS, BulkRequest(JobAction.CANCEL, JobFilter()))
    assert states(ledger, wanted) == ["pending"] * 2
    assert apply(ledger, OPS, BulkRequest(JobAction.CANCEL, JobFilter(), all_jobs=True)).changed == 2


def test_key_changes_jobs_of_its_tenant_only(ledger):
    own, other = submit(ledger, tenant="a"), submit(ledger, tenant="b")
    assert apply(ledger, ANN, replace(CANCEL, job_filter=JobFilter(), all_jobs=True)).matched == 1
    assert states(ledger, own + other) == ["cancelled", "pending"]
    with pytest.raises(ForbiddenError, match="its own tenant only"):
        apply(ledger, ANN, replace(CANCEL, job_filter=JobFilter(tenant="b")))
    assert apply(ledger, OPS, replace(CANCEL, job_filter=JobFilter(tenant="b"))).changed == 1


@for_each("action", list(JobAction))
def test_action_needs_the_scope_of_the_single_one(action, ledger):
    reader = ApiKey("r", "r", frozenset({Scope.READ, Scope.MONITOR}))
    with pytest.raises(ForbiddenError, match="scope"):
        apply(ledger, reader, BulkRequest(action, JobFilter(queue="q")))
    if action is JobAction.DELETE:
        with pytest.raises(ForbiddenError, match="scope submit"):
            apply(ledger, OPS, BulkRequest(action, JobFilter(queue="q")))


def test_only_admin_deletes_jobs_of_all_tenants(ledger):
    for job_id in submit(ledger, tenant="a") + submit(ledger, tenant="b"):
        ledger.cancel(job_id)
    delete = BulkRequest(JobAction.DELETE, JobFilter(queue="q"))
    both = ApiKey("both", "a", frozenset({Scope.SUBMIT, Scope.OPERATE}))
    assert apply(ledger, both, delete).changed == 1
    assert apply(ledger, ADMIN, delete).changed == 1


def test_deleted_jobs_lose_their_objects_and_errors_leave_orphans(ledger, caplog):
    job_ids = submit(ledger, 3)
    for job_id in job_ids:
        ledger.cancel(job_id)
    deleted = []

    def delete(job):
        deleted.append(job.id)
        if len(deleted) == 1:
            raise UnavailableError("memory://s", "the store is away")

    assert (
        apply(ledger, ADMIN, BulkRequest(JobAction.DELETE, JobFilter(queue="q")), delete=delete).changed == 3
    )
    assert sorted(deleted) == sorted(job_ids)
    assert "orphans" in caplog.text


@for_each("limit", [0, BULK_JOBS_MAX + 1])
def test_limit_is_bounded(limit, ledger):
    with pytest.raises(LimitError, match=str(BULK_JOBS_MAX)):
        apply(ledger, OPS, replace(CANCEL, limit=limit))


def test_audit_log_has_the_filter_and_the_number(ledger):
    submit(ledger, 2, tenant="a", tags={"day": "1"}, kind="stream")
    wanted = JobFilter(queue="q", states=frozenset({JobState.PENDING}), tags={"day": "1"}, kind="stream")
    apply(ledger, ANN, replace(CANCEL, job_filter=wanted))
    apply(ledger, ANN, replace(CANCEL, job_filter=wanted))
    (entry,) = ledger.audit().entries
    assert (entry.done_by, entry.tenant, entry.action, entry.jobs) == ("ann", "a", "jobs.cancel", 2)
    assert entry.details == {
        "filter": {"queue": "q", "kind": "stream", "state": ["pending"], "tag": ["day=1"]}
    }


def test_empty_tenant_is_a_condition(ledger):
    submit(ledger)
    apply(ledger, OPS, replace(CANCEL, job_filter=JobFilter(tenant="")))
    assert ledger.audit().entries[0].details == {"filter": {"tenant": ""}}


# The audit log


def test_unavailable_ledger_leaves_the_entry_in_the_log(ledger, caplog):
    ledger.unavailable = True
    AuditLog(ledger).record(OPS, "queue.change", "q", {"paused": True})
    (record,) = caplog.records
    assert (record.levelname, record.by, record.action, record.subject) == (
        "ERROR",
        "ops",
        "queue.change",
        "q",
    )
    with pytest.raises(JobLedgerUnavailableError):
        AuditLog(ledger).find(OPS)


def test_long_details_are_truncated():
    entry = audit_entry(OPS, "jobs.cancel", details={"filter": {"queue": "q" * DETAILS_CHARS_MAX}})
    assert list(entry.details) == ["truncated"]
    assert len(entry.details["truncated"]) == DETAILS_CHARS_MAX


def test_only_operators_read_the_audit_log(ledger):
    with pytest.raises(ForbiddenError, match="scope operate"):
        AuditLog(ledger).find(ANN)
    with pytest.raises(LimitError, match="from 1 to"):
        AuditLog(ledger).find(OPS, limit=0)
