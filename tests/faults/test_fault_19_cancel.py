"""Fault 19: cancellations that come at the same moment as something else."""

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from faults.bench import Bench, full, until
from faults.tally import ENDED
from headrace.core.errors import JobStateError
from headrace.jobs.attempt import Attempt
from headrace.jobs.job import Cancelled, Completed, NewJob, ResultRef, Settlement
from headrace.jobs.kind import KindRunner
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers.open import open_ledger
from headrace.jobs.state import JobState
from headrace.jobs.worker.settings import WorkerSettings
from headrace.jobs.worker.worker import Worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROUNDS = 1000 if full() else 100


def _race(*deeds) -> list:
    """Do them at the same moment; what each returned or raised."""
    gate = threading.Barrier(len(deeds))

    def do(deed):
        gate.wait()
        try:
            return deed()
        except JobStateError as error:
            return error

    with ThreadPoolExecutor(len(deeds)) as pool:
        return [future.result() for future in [pool.submit(do, deed) for deed in deeds]]


def _claim(ledger, worker: str):
    turn = ledger.turn([], ClaimRequest(worker, ("default",), 1, 30_000))
    return turn.claimed[0] if turn.claimed else None


def test_fault_19_cancel_against_claim(bench: Bench):
    """Fault 19: either it is cancelled and nobody has it, or it runs and its worker is told; never both."""
    other = open_ledger(bench.ledger_url)
    other.start()
    came_to = set()
    try:
        for _ in range(ROUNDS):
            job = bench.ledger.submit([NewJob("m")])[0].job
            bench.ids[len(bench.ids)] = job.id
            _, claimed = _race(lambda job=job: other.cancel(job.id), lambda: _claim(bench.ledger, "w"))
            now = bench.ledger.get(job.id)
            came_to.add(claimed is not None)
            if claimed is None:
                assert now.state is JobState.CANCELLED
                continue
            assert (now.state, now.cancel_requested) == (JobState.RUNNING, True)
            assert bench.ledger.cancel_requests("w") == {job.id}
            assert bench.ledger.turn([Settlement(job.id, claimed.lease, Cancelled())]).accepted == (True,)
    finally:
        other.stop()
    _single_ends(bench)


def test_fault_19_cancel_against_finish(bench: Bench):
    """Fault 19: the one that is written first stands, and the other is told so."""
    other = open_ledger(bench.ledger_url)
    other.start()
    try:
        for _ in range(ROUNDS):
            job = bench.ledger.submit([NewJob("m")])[0].job
            bench.ids[len(bench.ids)] = job.id
            lease = _claim(bench.ledger, "w").lease
            done = Settlement(job.id, lease, Completed(ResultRef("memory://r")))
            told, turn = _race(
                lambda job=job: other.cancel(job.id), lambda done=done: bench.ledger.turn([done])
            )
            now = bench.ledger.get(job.id)
            # What is done is done, also where somebody asked for its cancellation a moment before.
            assert turn.accepted == (True,)
            assert now.state is JobState.COMPLETED
            assert isinstance(told, JobStateError) or told.cancel_requested
            # Whoever settles a second time, as cancelled or as done, changes nothing.
            late = Settlement(job.id, lease, Cancelled())
            assert bench.ledger.turn([late]).accepted == (False,)
            assert bench.ledger.turn([done]).accepted == (False,)
            assert bench.ledger.get(job.id) == now
    finally:
        other.stop()
    _single_ends(bench)


class _Quick(KindRunner):
    """Takes a moment, and leaves it to the attempt's signals."""

    def __init__(self) -> None:
        self.pause = threading.Event()

    def run(self, attempt: Attempt) -> ResultRef:
        self.pause.wait(random.random() / 50)
        attempt.check()
        return ResultRef(f"memory://{attempt.job.id}/{attempt.job.lease}")

    def discard(self, attempt: Attempt) -> None:
        pass


def test_fault_19_cancel_of_everything_at_any_moment(bench: Bench):
    """Fault 19: many jobs, real workers, a cancellation for each at some moment of its life: each ends once."""
    ledgers = [open_ledger(bench.ledger_url) for _ in range(2)]
    workers = []
    for number, ledger in enumerate(ledgers):
        ledger.start()
        settings = WorkerSettings(name=f"w{number}", concurrency=4, poll_s=0.2, lease_s=30, beat_s=5)
        workers.append(Worker(ledger, {"infer": _Quick()}, settings))
    for worker in workers:
        worker.start()
    choice = random.Random(19)
    try:
        for _ in range(ROUNDS):
            told = bench.ledger.submit([NewJob("m") for _ in range(4)])
            for submitted in told:
                bench.ids[len(bench.ids)] = submitted.job.id
            for submitted in choice.sample(told, 2):
                with contextlib.suppress(JobStateError):  # it has ended
                    bench.ledger.cancel(submitted.job.id)
        until(lambda: all(job.state.ended for job in bench.jobs().values()))
    finally:
        for worker in workers:
            worker.stop()
        for ledger in ledgers:
            ledger.stop()
    states = [job.state for job in bench.jobs().values()]
    assert set(states) == {JobState.COMPLETED, JobState.CANCELLED}
    assert states.count(JobState.COMPLETED) >= len(states) // 2
    _single_ends(bench)


def test_fault_19_cancel_against_the_death_of_the_worker(bench: Bench):
    """Fault 19: cancelled just before, or just after, its worker is killed: it ends cancelled, once, and is not run again."""
    numbers = []
    for first in (True, False):
        worker = bench.worker().wait_ready()
        (number,) = bench.submit(1, deed="wait")
        numbers.append(number)
        bench.wait_executing([number])
        if first:
            bench.ledger.cancel(bench.ids[number])
        bench.wreck(worker.name)
        worker.kill()
        if not first:
            bench.ledger.cancel(bench.ids[number])
    bench.worker().wait_ready()
    bench.wait_ended()
    tally = bench.tally(dict.fromkeys(numbers, JobState.CANCELLED))
    assert tally.duplicate_executions == 0


def _single_ends(bench: Bench) -> None:
    """Each has ended, and once. The results are of no interest here."""
    expected = {number: job.state for number, job in bench.jobs().items()}
    assert {state.value for state in expected.values()} <= ENDED
    done = {number for number, state in expected.items() if state is JobState.COMPLETED}
    bench.without_result |= done
    bench.tally(expected)
