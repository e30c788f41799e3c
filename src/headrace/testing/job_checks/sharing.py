"""Checks of shared queues: ageing, shares of tenants, and limits of running jobs."""

from collections import Counter
from math import inf
from typing import Final

from headrace.jobs.job import Failed, Job, Settlement
from headrace.jobs.lanes import AGEING_S_DEFAULT, ClaimLimit, LimitKind
from headrace.jobs.ledger import ClaimRequest, QueueSettings
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import (
    LEASE_MS,
    OOPS,
    THREADS,
    LedgerBench,
    done,
    ids,
    run_concurrently,
)

_RACE_JOBS: Final = 30
_RACE_LIMIT: Final = 3


def check_ageing(bench: LedgerBench) -> None:
    """Check that waiting makes up for priority: `ageing_s` for each step, at the time of submission."""
    old = bench.submit(priority=6)
    bench.advance(round(AGEING_S_DEFAULT * 1000) + 1)
    urgent, late = bench.submit(priority=4), bench.submit(priority=5)
    equal(ids(bench.claim(3)), [urgent.id, old.id, late.id], "the order of an older job of a low priority")
    bench.ledger.set_queue(QueueSettings("strict", ageing_s=inf))
    equal(bench.ledger.queue("strict").ageing_s, inf, "the ageing of a queue without ageing")
    old = bench.submit(queue="strict", priority=1)
    bench.advance(10**11)
    late = bench.submit(queue="strict", priority=0)
    equal(ids(bench.claim(2, queues=["strict"])), [late.id, old.id], "the order without ageing, after years")
    bench.ledger.set_queue(QueueSettings("fast", ageing_s=1.0))
    old = bench.submit(queue="fast", priority=9)
    bench.settle(bench.claim_one(queues=["fast"]), Failed(OOPS, retry_ms=500))
    bench.advance(7_400)
    late = bench.submit(queue="fast", priority=1)
    equal(ids(bench.claim(2, queues=["fast"])), [late.id, old.id], "the order of a retried job")


def check_tenants_share_a_queue(bench: LedgerBench) -> None:
    """Check that tenants share the slots of a queue, however many jobs each of them has waiting.

    A tenant's own jobs keep their order, and the priority of its jobs gives it no larger share.
    """
    many = bench.submit_many(30, tenant="many", priority=0)
    few = [bench.submit(tenant="few", priority=priority) for priority in (9, 6, 8, 7)]
    claimed = bench.claim(8)
    equal(Counter(job.spec.tenant for job in claimed), {"many": 4, "few": 4}, "the claimed jobs by tenant")
    own = [job.id for job in claimed if job.spec.tenant == "few"]
    equal(own, [few[n].id for n in (1, 3, 2, 0)], "the order of a tenant's jobs")
    late = bench.submit(tenant="late")
    equal(ids(bench.claim(1)), [late.id], "the next job, of a tenant without running jobs")
    equal(len(bench.claim(99)), len(many) - 4, "the rest of the jobs")


def check_tenants_take_turns_in_one_slot(bench: LedgerBench) -> None:
    """Check that the jobs of all tenants are run in turn if one runs at a time, in shares by weight."""
    bench.ledger.set_limits("tenant", [ClaimLimit("tenant", "b", weight=2.0)])
    for tenant in ("a", "b", "c"):
        # One tenant after the other, so that a ledger without shares never serves them so by chance.
        bench.advance(1)
        bench.submit_many(12, tenant=tenant)
    served: Counter[str] = Counter()
    job = bench.claim_one()
    for _ in range(12):
        served[job.spec.tenant] += 1
        claim = ClaimRequest("w", ("default",), 1, LEASE_MS)
        (job,) = bench.ledger.settle_and_claim([Settlement(job.id, job.lease, done())], claim).claimed
    equal(served, {"a": 3, "b": 6, "c": 3}, "the jobs of each tenant, with twice the weight for b")


def check_weight_of_a_tenant(bench: LedgerBench) -> None:
    """Check that a tenant of three times the weight gets three times the slots."""
    bench.ledger.set_limits("tenant", [ClaimLimit("tenant", "heavy", weight=3.0)])
    for tenant in ("light", "heavy"):
        bench.submit_many(20, tenant=tenant)
    equal(Counter(job.spec.tenant for job in bench.claim(8)), {"heavy": 6, "light": 2}, "eight claimed jobs")
    bench.ledger.set_limits("tenant", [])
    equal(Counter(job.spec.tenant for job in bench.claim(4)), {"light": 4}, "four more, with equal weights")


def check_limits_of_running_jobs(bench: LedgerBench) -> None:
    """Check that no more jobs of a key, an endpoint or a model run than its limit permits.

    The jobs behind them are claimed, and the reply says that jobs wait for the end of others.
    """
    limits: tuple[tuple[LimitKind, str, str], ...] = (
        ("key", "web", "submitted_by"),
        ("endpoint", "e", "endpoint"),
        ("model", "big", "model"),
    )
    for kind, name, field in limits:
        queue = f"q-{kind}"
        bench.ledger.set_limits(kind, [ClaimLimit(kind, name, 2)])
        limited = bench.submit_many(3, queue=queue, **{field: name})
        other = bench.submit(queue=queue, model="small")
        claim = ClaimRequest("w", (queue,), 5, LEASE_MS)
        reply = bench.ledger.settle_and_claim([], claim)
        equal(len(reply.claimed), 3, f"the jobs below the limit of a {kind}, and the one behind them")
        true(other.id in ids(reply.claimed), f"the job behind those of a limited {kind} was not claimed")
        equal((reply.limited, reply.due_in_ms), (True, None), "the reply while a job waits for its limit")
        first = next(job for job in reply.claimed if job.id in ids(limited))
        reply = bench.ledger.settle_and_claim([Settlement(first.id, first.lease, done())], claim)
        equal(len(reply.claimed), 1, f"the jobs of a {kind} after the end of another")
        equal((reply.limited, reply.due_in_ms), (False, None), "the reply without waiting jobs")


def check_closed_lanes_leave_their_slots_to_others(bench: LedgerBench) -> None:
    """Check that a claim fills its slots with later jobs if a limit closes the lanes of the first ones."""
    bench.ledger.set_limits("model", [ClaimLimit("model", "big", 1)])
    first = bench.submit(model="big", submitted_by="a")
    bench.advance(1)
    bench.submit(model="big", submitted_by="b")
    bench.advance(1)
    later = bench.submit(model="small")
    equal(ids(bench.claim(2)), [first.id, later.id], "the jobs of two slots, with a limit of one")


def check_limit_of_a_model_counts_its_versions(bench: LedgerBench) -> None:
    """Check that the versions of a model share its limit, in all queues; without limit all are claimed."""
    bench.ledger.set_limits("model", [ClaimLimit("model", "m", 2)])
    for model, queue in (("m@1", "a"), ("m@2", "b"), ("m", "b"), ("mm", "b")):
        bench.submit(model=model, queue=queue)
        bench.advance(1)
    claimed = bench.claim(9, queues=["a", "b"])
    equal([job.spec.model for job in claimed], ["m@1", "m@2", "mm"], "the claimed models")
    bench.ledger.set_limits("key", [])
    equal(bench.claim(9, queues=["a", "b"]), (), "the claimed jobs after other limits were set")
    bench.ledger.set_limits("model", [ClaimLimit("model", "other", 0)])
    equal([job.spec.model for job in bench.claim(9, queues=["b"])], ["m"], "the models without a limit")


def check_limit_race(bench: LedgerBench) -> None:
    """Check that concurrent workers on two ledgers never exceed a limit together, and run all jobs."""
    bench.ledger.set_limits("model", [ClaimLimit("model", "m", _RACE_LIMIT)])
    bench.submit_many(_RACE_JOBS)
    ledgers = (bench.ledger, bench.start_ledger())

    def claim(number: int) -> tuple[Job, ...]:
        request = ClaimRequest(f"w-{number}", ("default",), 2, LEASE_MS)
        return ledgers[number % 2].settle_and_claim([], request).claimed

    finished: list[str] = []
    for _ in range(_RACE_JOBS):
        replies = run_concurrently((lambda number=number: claim(number)) for number in range(THREADS))
        claimed = [job for jobs in replies for job in jobs]
        true(len(claimed) <= _RACE_LIMIT, f"{len(claimed)} jobs run, and the limit is {_RACE_LIMIT}")
        bench.ledger.settle_and_claim([Settlement(job.id, job.lease, done()) for job in claimed])
        finished += ids(claimed)
        if len(finished) == _RACE_JOBS:
            break
    equal((len(finished), len(set(finished))), (_RACE_JOBS, _RACE_JOBS), "the claims, and the different jobs")


def check_requeued_job_returns_to_its_lane(bench: LedgerBench) -> None:
    """Check that a requeued job counts for the limits and the share that it had."""
    job = bench.submit_running(model="m", tenant="t")
    bench.settle(job, Failed(OOPS))
    bench.ledger.requeue(job.id)
    bench.ledger.set_limits("model", [ClaimLimit("model", "m", 0)])
    equal(bench.claim(3), (), "the claim of a requeued job of a closed model")
    bench.ledger.set_limits("model", [])
    equal(ids(bench.claim(3)), [job.id], "the claim of a requeued job")
