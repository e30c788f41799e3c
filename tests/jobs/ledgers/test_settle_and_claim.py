"""The query plans of claims, heartbeats and maintenance, and their transactions."""

import itertools
import re

import pytest

from headrace.jobs.job import Completed, NewJob, ResultRef, Settlement
from headrace.jobs.lanes import lane_text
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers.database import read_statement
from headrace.testing import ManualWallClock
from jobs.copied_jobs import copy_jobs
from jobs.ledger_fixtures import LEDGERS, SQL_LEDGERS

CLAIMS = {
    "claim_only_lane": {
        "queue": "default",
        "row_limit": 10,
        "crashes_together_max": 2,
        "worker": "w",
        "region": "",
        "lease_ms": 1000,
    },
    "lane_candidates": {
        "queue": "default",
        "lane": lane_text(NewJob(model="m", region="east")),
        "row_limit": 10,
        "crashes_together_max": 2,
    },
    "claimable_lanes": {"queue": "default", "region": "*", "without_models": "", "sleeper_limit": 1},
}
"""The statements of a claim that find jobs, with values."""


@pytest.fixture(params=SQL_LEDGERS)
def ledger(request):
    ledger = LEDGERS[request.param](ManualWallClock(), request.getfixturevalue)()
    ledger.start()
    yield ledger
    ledger.stop()


def fill(ledger, *, prefix="first", ended=2_000, pending=500, asleep=500):
    """Insert ended, pending and sleeping jobs by copying rows."""
    (first,) = ledger.submit([NewJob(model="m")])
    ledger._database.run(
        lambda t: t.connection.exec_driver_sql(
            "UPDATE headrace_job SET state = 'completed', ended_at_ms = created_at_ms"
        )
    )
    waits = {"state": "'pending'", "ended_at_ms": "NULL"}
    regions = "CASE n % 3 WHEN 0 THEN '' WHEN 1 THEN 'east' ELSE 'west' END"
    copy_jobs(ledger, first.job.id, ended, id=f"'{prefix}-ended-' || n")
    copy_jobs(
        ledger,
        first.job.id,
        pending,
        id=f"'{prefix}-pending-' || n",
        priority="n % 10",
        region=regions,
        lane=f"'|||m|' || {regions}",
        rank_ms="due_at_ms + 3600000 * (n % 10)",
        **waits,
    )
    later = {"due_at_ms": "created_at_ms + 60000 + n", "asleep": "TRUE", **waits}
    copy_jobs(ledger, first.job.id, asleep, id=f"'{prefix}-asleep-' || n", **later)


def plan_of(ledger, name, values, explain="") -> str:
    """Return the database's plan for a statement."""
    statement = read_statement(name)
    from headrace.jobs.ledgers.database import sa

    def run(transaction):
        dialect = transaction.connection.dialect.name
        command = explain or ("EXPLAIN QUERY PLAN" if dialect == "sqlite" else "EXPLAIN")
        rows = transaction.connection.execute(sa.text(f"{command} {getattr(statement, dialect)}"), values)
        return "\n".join(str(row[-1]) for row in rows)

    return ledger._database.run(run)


def check_claim_plan(ledger, name):
    """Check that a claim neither scans nor sorts the table."""
    plan = plan_of(ledger, name, CLAIMS[name])
    assert "headrace_job_awake" in plan
    assert ("headrace_job_asleep" in plan) == (name != "lane_candidates")
    for scan in ("SCAN job", "SCAN headrace_job", "SCAN sleeper", "SCAN other", "Seq Scan on headrace_job"):
        assert scan not in plan, plan
    assert "TEMP B-TREE" not in plan, plan
    assert "Sort" not in plan, plan


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
def test_claim_uses_the_partial_indices(ledger, analyzed):
    # The planner's statistics may be from a time without pending jobs.
    if analyzed:
        ledger.submit([NewJob(model="m") for _ in range(2_000)])
        ledger._database.run(
            lambda t: t.connection.exec_driver_sql("UPDATE headrace_job SET state = 'completed'")
        )
        ledger._database.run(lambda t: t.connection.exec_driver_sql("ANALYZE"))
    fill(ledger)
    for name in CLAIMS:
        check_claim_plan(ledger, name)


def test_maintenance_uses_the_partial_indices(ledger):
    fill(ledger)
    for statement, index in (
        ("lost_leases", "headrace_job_running"),
        ("past_time_to_live", "headrace_job_expiring"),
        ("past_deadline", "headrace_job_deadline"),
        ("wake_jobs", "headrace_job_asleep"),
    ):
        plan = plan_of(ledger, statement, {"row_limit": 100})
        assert index in plan
        assert "Seq Scan on headrace_job" not in plan
        assert "SCAN job" not in plan.replace(f"SCAN job USING INDEX {index}", "")


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
def test_counts_of_a_tenant_read_no_pending_jobs_of_others(ledger, analyzed):
    fill(ledger)
    ledger.submit([NewJob(tenant="t") for _ in range(3)])
    if analyzed:
        ledger._database.run(lambda t: t.connection.exec_driver_sql("ANALYZE"))
    plan = plan_of(ledger, "tenant_counts", {"tenant": "t"})
    for name in ("waiting_of", "publishing_of", "blocked_of"):
        assert plan.count(f"headrace_job_{name}") == 1
    assert set(re.findall(r"headrace_job_\w+", plan)) <= {
        "headrace_job_waiting_of",
        "headrace_job_publishing_of",
        "headrace_job_blocked_of",
        "headrace_job_running",
        "headrace_job_running_of",
    }
    assert "Seq Scan on headrace_job" not in plan
    assert len(re.findall(r"Index Cond: \(tenant = 't'|\(tenant=\?", plan)) == 3


def test_queue_in_use_is_found_by_the_partial_indices(ledger):
    fill(ledger)
    plan = plan_of(ledger, "queue_in_use", {"name": "x"})
    assert set(re.findall(r"headrace_job_\w+", plan)) >= {"headrace_job_awake", "headrace_job_asleep"}
    assert "Seq Scan on headrace_job" not in plan


def test_jobs_are_found_by_id(ledger):
    fill(ledger)
    for statement, values in (
        ("jobs_by_id", {"given": '[{"wanted_id":"a"}]'}),
        ("jobs_by_id_locked", {"given": '[{"wanted_id":"a"},{"wanted_id":"b"}]'}),
        ("heartbeat", {"given": '[{"beat_id":"a","beat_lease":1}]', "lease_ms": 1}),
        ("change_jobs", {"given": '[{"new_id":"a","old_lease":1,"old_state":"running"}]'}),
    ):
        plan = plan_of(ledger, statement, values)
        if ledger._database.open().dialect.name == "sqlite":
            assert "SCAN job" not in plan
            assert "SCAN headrace_job" not in plan
        else:
            lookups = [line for line in plan.splitlines() if "headrace_job_pkey" in line]
            assert lookups, plan
            assert plan.count("Index Cond: (id = ") >= len(lookups)


def test_empty_settle_and_claim_writes_nothing(ledger):
    # Otherwise waiting workers of one file would wake each other forever.
    ledger.submit([NewJob(model="m", delay_ms=5_000)])
    wakeup = ledger.watch()
    while wakeup.wait(0.1):
        pass
    ledger.settle_and_claim([], ClaimRequest("w", ("default",), 10, 1000))
    assert not wakeup.wait(0.1)
    wakeup.close()


def test_job_is_settled_once_in_one_transaction(ledger):
    ledger.submit([NewJob(model="m")])
    (job,) = ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, 1000)).claimed
    first = Settlement(job.id, job.lease, Completed(ResultRef("memory://a")))
    second = Settlement(job.id, job.lease, Completed(ResultRef("memory://b")))
    assert ledger.settle_and_claim([first, second]).accepted == (True, False)
    assert ledger.get(job.id).result.uri == "memory://a"


def work_of_claim(ledger) -> int:
    """Return the work of one claim: instructions of SQLite, or pages that PostgreSQL reads."""
    if ledger._database.open().dialect.name == "postgresql":
        plans = (plan_of(ledger, name, CLAIMS[name], "EXPLAIN (ANALYZE, BUFFERS)") for name in CLAIMS)
        buffers = (next(line for line in plan.splitlines() if "Buffers:" in line) for plan in plans)
        return sum(map(int, re.findall(r"(?:hit|read)=(\d+)", "".join(buffers))))
    steps = itertools.count()

    def set_handler(handler):
        ledger._database.run(
            lambda t: t.connection.connection.driver_connection.set_progress_handler(handler, 1)
        )

    set_handler(lambda: next(steps) and 0)
    assert len(ledger.settle_and_claim([], ClaimRequest("w", ("default",), 10, 1000)).claimed) == 10
    set_handler(None)
    return next(steps)


@pytest.mark.slow
def test_ended_jobs_do_not_slow_claims(ledger):
    fill(ledger, ended=0, pending=200, asleep=200)
    work_of_claim(ledger)
    work = work_of_claim(ledger)
    fill(ledger, prefix="more", ended=100_000, pending=20_000, asleep=20_000)
    work_of_claim(ledger)
    assert work_of_claim(ledger) < 2 * work + 20
