"""Fault 21: very many queued and ended jobs, under a transaction that was left open."""

import time

import pytest

import levels
from faults.bench import Bench
from headrace.jobs.job import Completed, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers.database import read_statement, sa
from jobs.copied_jobs import copy_jobs

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(900)]

ENDED = levels.by_level(30_000, 30_000, 1_000_000)
PENDING = levels.by_level(10_000, 10_000, 100_000)
FIRST_PENDING = 2000
FIRST_CLAIMS = 100
CLAIMS = levels.by_level(200, 200, 2000)
CLAIMED_JOBS = 4

ENDED_LIKE = {"state": "'completed'", "attempt": "1", "lease": "1", "ended_at_ms": "created_at_ms"}


def _settle_and_claim_ms(bench: Bench, settle: list[Settlement]) -> tuple[float, list[Settlement]]:
    """Return the duration of one transaction, and the settlements of the jobs that it claimed."""
    begun_s = time.perf_counter()
    reply = bench.ledger.settle_and_claim(settle, ClaimRequest("w", ("default",), CLAIMED_JOBS, 60_000))
    duration_ms = 1000 * (time.perf_counter() - begun_s)
    assert all(reply.accepted)
    assert len(reply.claimed) == CLAIMED_JOBS
    done = Completed(ResultRef("memory://r"))
    return duration_ms, [Settlement(job.id, job.lease, done) for job in reply.claimed]


def _p99_ms(bench: Bench, count: int) -> float:
    settle: list[Settlement] = []
    durations_ms = []
    for _ in range(count):
        duration_ms, settle = _settle_and_claim_ms(bench, settle)
        durations_ms.append(duration_ms)
    return sorted(durations_ms)[int(len(durations_ms) * 0.99) - 1]


def test_fault_21_size_of_the_ledger_under_an_open_snapshot(postgres_bench, postgres, record_property):
    """Fault 21: claims use their partial index, and their duration stays within an order of magnitude."""
    bench = postgres_bench
    (first,) = bench.ledger.submit([NewJob("m")])
    copy_jobs(bench.ledger, first.job.id, FIRST_PENDING, id="'pending-' || n")
    like = "pending-999"  # its id is the last, so it is not claimed soon
    small_ms = _p99_ms(bench, FIRST_CLAIMS)
    copy_jobs(bench.ledger, like, ENDED, id="'completed-' || n", **ENDED_LIKE)
    name = bench.ledger_url.rpartition("/")[2]
    with postgres.connect(name) as open_transaction:
        open_transaction.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        open_transaction.execute("SELECT count(*) FROM headrace_queue").fetchone()
        copy_jobs(bench.ledger, like, PENDING, id="'more-' || n")
        large_ms = _p99_ms(bench, CLAIMS)
        plan = _plan(bench)
        open_transaction.execute("ROLLBACK")
    record_property("claims_p99_ms", (round(small_ms, 1), round(large_ms, 1)))
    assert "headrace_job_awake" in plan, plan
    assert "Seq Scan on headrace_job" not in plan, plan
    # Other programs use this machine too; a sequential scan would be slower by three orders.
    assert large_ms < 10 * small_ms + 100, (small_ms, large_ms)
    left = bench.ledger.counts("default")
    settled = CLAIMED_JOBS * (FIRST_CLAIMS - 1 + CLAIMS - 1)
    assert left.due + left.running + settled == FIRST_PENDING + 1 + PENDING


def _plan(bench: Bench) -> str:
    """Return PostgreSQL's plan of a claim on a connection of the ledger."""
    database = bench.ledger._database
    with database._engines.writing.connect() as connection:
        values = {
            "queue": "default",
            "row_limit": CLAIMED_JOBS,
            "crashes_together_max": 2,
            "worker": "w",
            "region": "",
            "lease_ms": 1,
        }
        claim = sa.text(f"EXPLAIN (ANALYZE, BUFFERS) {read_statement('claim_only_lane').postgresql}")
        rows = connection.execute(claim, values).all()
        connection.rollback()
    return "\n".join(row[0] for row in rows)
