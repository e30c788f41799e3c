"""Fault 19: cancellations that race with a claim, an end, or the death of a worker."""

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import levels
from faults.bench import SHORT_LEASE_S, Bench
from faults.costs import ENDED
from headrace.core.errors import JobStateError
from headrace.jobs.job import Cancelled, Completed, NewJob, ResultRef, Settlement
from headrace.jobs.kinds import Attempt, KindRunner
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.state import JobState
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.worker import Worker
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROUNDS = levels.by_level(50, 50, 1000)


def _race(*calls) -> list:
    """Make the calls at the same moment. Return the results, or the JobStateErrors that they raised."""
    barrier = threading.Barrier(len(calls))

    def run(call):
        barrier.wait()
        try:
            return call()
        except JobStateError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(run, call) for call in calls]]


def _claim(ledger, worker: str):
    reply = ledger.settle_and_claim([], ClaimRequest(worker, ("default",), 1, 30_000))
    return reply.claimed[0] if reply.claimed else None


def test_fault_19_cancel_against_claim(bench: Bench):
    """Fault 19: a job is either cancelled and not claimed, or it runs and its worker sees the request."""
    other = open_ledger(bench.ledger_url)
    other.start()
    try:
        for _ in range(ROUNDS):
            job = bench.ledger.submit([NewJob("m")])[0].job
            bench.add_job(job.id)
            _, claimed = _race(lambda job=job: other.cancel(job.id), lambda: _claim(bench.ledger, "w"))
            now = bench.ledger.get(job.id)
            if claimed is None:
                assert now.state is JobState.CANCELLED
                continue
            assert (now.state, now.cancel_requested) == (JobState.RUNNING, True)
            assert bench.ledger.worker_orders("w").cancelled == {job.id}
            cancelled = Settlement(job.id, claimed.lease, Cancelled())
            assert bench.ledger.settle_and_claim([cancelled]).accepted == (True,)
    finally:
        other.stop()
    _check_single_ends(bench)


def test_fault_19_cancel_against_finish(bench: Bench):
    """Fault 19: the first of the two stands, and the other is refused."""
    other = open_ledger(bench.ledger_url)
    other.start()
    try:
        for _ in range(ROUNDS):
            job = bench.ledger.submit([NewJob("m")])[0].job
            bench.add_job(job.id)
            lease = _claim(bench.ledger, "w").lease
            done = Settlement(job.id, lease, Completed(ResultRef("memory://r")))
            cancel, reply = _race(
                lambda job=job: other.cancel(job.id), lambda done=done: bench.ledger.settle_and_claim([done])
            )
            now = bench.ledger.get(job.id)
            # A job completes even if its cancellation was requested a moment before.
            assert reply.accepted == (True,)
            assert now.state is JobState.COMPLETED
            assert isinstance(cancel, JobStateError) or cancel.cancel_requested
            # A second settlement, of either kind, changes nothing.
            late = Settlement(job.id, lease, Cancelled())
            assert bench.ledger.settle_and_claim([late]).accepted == (False,)
            assert bench.ledger.settle_and_claim([done]).accepted == (False,)
            assert bench.ledger.get(job.id) == now
    finally:
        other.stop()
    _check_single_ends(bench)


class _Brief(KindRunner):
    """A runner whose attempts take a random moment, until they are stopped."""

    def run(self, attempt: Attempt) -> ResultRef:
        stopped = threading.Event()
        attempt.add_stop_callback(stopped.set)
        stopped.wait(random.random() / 50)
        attempt.raise_if_stopped()
        return ResultRef(f"memory://{attempt.job.id}/{attempt.job.lease}")

    def discard(self, attempt: Attempt) -> None:
        pass


def test_fault_19_cancel_at_any_moment(bench: Bench):
    """Fault 19: of many jobs of real workers, half are cancelled at some moment; each ends once."""
    ledgers = [open_ledger(bench.ledger_url) for _ in range(2)]
    workers = []
    for number, ledger in enumerate(ledgers):
        ledger.start()
        settings = WorkerSettings(name=f"w{number}", concurrency=4, poll_s=0.2, lease_s=30, heartbeat_s=5)
        workers.append(Worker(ledger, {"infer": _Brief()}, settings))
    for worker in workers:
        worker.start()
    choice = random.Random(19)
    try:
        for _ in range(ROUNDS):
            submitted = bench.ledger.submit([NewJob("m") for _ in range(4)])
            for each in submitted:
                bench.add_job(each.job.id)
            for each in choice.sample(submitted, 2):
                with contextlib.suppress(JobStateError):  # it has ended
                    bench.ledger.cancel(each.job.id)
        wait_until(lambda: bench.ended() == len(bench.ids), "the end of all jobs")
    finally:
        for worker in workers:
            worker.stop()
        for ledger in ledgers:
            ledger.stop()
    states = [job.state for job in bench.jobs().values()]
    assert set(states) == {JobState.COMPLETED, JobState.CANCELLED}
    assert states.count(JobState.COMPLETED) >= len(states) // 2
    _check_single_ends(bench)


def test_fault_19_cancel_against_the_death_of_the_worker(bench: Bench):
    """Fault 19: a job cancelled at its worker's death is cancelled once and not run again."""
    numbers = []
    for cancel_first in (True, False):
        worker = bench.worker(lease_s=SHORT_LEASE_S).wait_ready()
        (number,) = bench.submit(1, action="wait")
        numbers.append(number)
        bench.wait_executing([number])
        if cancel_first:
            bench.ledger.cancel(bench.ids[number])
        bench.fault_happens(worker.name)
        worker.kill()
        if not cancel_first:
            bench.ledger.cancel(bench.ids[number])
    bench.worker().wait_ready()
    bench.wait_ended()
    costs = bench.costs(dict.fromkeys(numbers, JobState.CANCELLED))
    assert costs.duplicate_executions == 0


def _check_single_ends(bench: Bench) -> None:
    """Check that each job has ended, and once."""
    expected = {number: job.state for number, job in bench.jobs().items()}
    assert {state.value for state in expected.values()} <= ENDED
    bench.unchecked_results |= {n for n, state in expected.items() if state is JobState.COMPLETED}
    bench.costs(expected)
