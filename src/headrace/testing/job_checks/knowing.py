"""What a ledger promises to a worker that does not know, or did not come to the end of what it had to do."""

from collections.abc import Callable
from typing import Any

from headrace.jobs.job import Failed, Job, Progress, Settlement
from headrace.jobs.state import JobState
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import OOPS, LedgerBench, done, ids


def check_running_of(bench: LedgerBench) -> None:
    """A worker is told what runs under its leases, all of it, and nothing else."""
    mine, ended, others = (_one(bench, worker) for worker in ("w", "w", "w-2"))
    bench.settle(ended, done("memory://box/1"))
    bench.submit()
    equal(ids(bench.ledger.running_of("w")), [mine.id], "what runs under the worker's leases")
    equal(ids(bench.ledger.running_of("w-2")), [others.id], "what runs under another's")
    equal(bench.ledger.running_of("w-3"), [], "what runs under the leases of a worker that has none")


def check_cancel_requests(bench: LedgerBench) -> None:
    """A worker is told which of its running jobs somebody has cancelled."""
    first, second, other = (_one(bench, worker) for worker in ("w", "w", "w-2"))
    nobody = frozenset[str]()
    equal(bench.ledger.cancel_requests("w"), nobody, "cancellations before there are any")
    for job in (second, other):
        bench.ledger.cancel(job.id)
    equal(bench.ledger.cancel_requests("w"), frozenset({second.id}), "the worker's own cancellations")
    bench.settle(bench.now(second), done("memory://box/1"))
    equal(bench.ledger.cancel_requests("w"), nobody, "cancellations of what has ended")
    equal(bench.now(first).state, JobState.RUNNING, "the job that nobody cancelled")


def check_unpublished(bench: LedgerBench) -> None:
    """Ends that were asked for somewhere are listed, oldest first, until they are published; and again after a requeue."""
    wanted: list[Job] = []
    for outcome in (done("memory://box/1"), Failed(OOPS), done("memory://box/3")):
        wanted.append(_one(bench, output_uri="memory://out/"))
        bench.settle(wanted[-1], outcome)
        bench.later(1_000)
    bench.settle(_one(bench), done("memory://box/x"))
    bench.settle(_one(bench, output_uri="memory://out/", kind="transform"), done("memory://out/_report.json"))
    bench.settle(_one(bench, output_uri="memory://out/", kind="stream"), Failed(OOPS))
    last = bench.submit(output_uri="memory://out/")
    bench.ledger.cancel(last.id)
    bench.later(1_000)
    now_ms = bench.clock.now_ms()
    found = bench.ledger.unpublished(ended_before_ms=now_ms, limit=100)
    equal(ids(found[:3]), ids(wanted), "unpublished ends, oldest first")
    equal(len(found), 5, "how many ends are unpublished (with a stream that failed, and one cancelled)")
    equal(ids(bench.ledger.unpublished(ended_before_ms=now_ms, limit=2)), ids(wanted[:2]), "the first two")
    earlier = bench.now(wanted[1]).ended_at_ms
    assert earlier is not None, "it has ended"
    equal(
        ids(bench.ledger.unpublished(ended_before_ms=earlier, limit=9)),
        [wanted[0].id],
        "those that ended before",
    )
    for job in found:
        true(bench.ledger.published(job.id, job.lease, "memory://out/x"), "an end could not be published")
    equal(bench.ledger.unpublished(ended_before_ms=now_ms, limit=9), [], "unpublished ends after publishing")
    bench.ledger.requeue(wanted[0].id)
    bench.settle(bench.claim_one(), done("memory://box/again"))
    bench.later(1_000)
    again = bench.ledger.unpublished(ended_before_ms=bench.clock.now_ms(), limit=9)
    equal(ids(again), [wanted[0].id], "unpublished ends after one was put back and ended again")


def _one(bench: LedgerBench, worker: str = "w", **spec: Any) -> Job:
    """A job that was submitted just now, in a worker's hands; nothing else is due."""
    bench.submit(**spec)
    return bench.claim_one(worker=worker)


def check_retries_that_do_not_count(bench: LedgerBench) -> None:
    """An attempt that failed by nobody's fault is given back: so it may fail for ever, and never is the last."""
    job = bench.submit(attempts_max=2)
    for lease in range(1, 6):
        running = bench.claim_one()
        equal((running.attempt, running.lease), (1, lease), "attempt and lease")
        true(bench.settle(running, Failed(OOPS, 1_000, counted=False)), "a failure was refused")
        after = bench.now(job)
        equal((after.state, after.attempt, after.failure), (JobState.PENDING, 0, OOPS), "the job after that")
        bench.until_due(job)


def check_settlements_tell_progress(bench: LedgerBench) -> None:
    """What a settlement tells of progress stands; without, what the last beat told."""
    told, kept = bench.running(), bench.running(queue="other")
    far = Progress(7, 7, "records", "2 records failed")
    bench.beat(kept, progress=Progress(1, 7))
    result = done("memory://box/1")
    turn = bench.ledger.turn(
        [Settlement(told.id, told.lease, result, far), Settlement(kept.id, kept.lease, result)]
    )
    equal(turn.accepted, (True, True), "which settlements counted")
    equal(bench.now(told).progress, far, "the progress that the settlement told")
    equal(bench.now(kept).progress, Progress(1, 7), "the progress that the last beat told")


KNOWING_CHECKS: tuple[Callable[[LedgerBench], None], ...] = (
    check_running_of,
    check_cancel_requests,
    check_unpublished,
    check_retries_that_do_not_count,
    check_settlements_tell_progress,
)
