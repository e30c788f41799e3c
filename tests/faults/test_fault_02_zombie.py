"""Fault 2: a worker that was stopped for longer than its lease, and goes on."""

import os
import signal

import psutil
import pytest

from faults.bench import Bench, WorkerProcess, gone, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def _freeze(bench: Bench, worker: WorkerProcess) -> None:
    """Stop it, though not in the midst of a write to SQLite: then nobody else could write, however long it is stopped."""

    def frozen() -> bool:
        worker.signal(signal.SIGSTOP)
        until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
        if bench.steps_at.writable():
            return True
        worker.signal(signal.SIGCONT)
        return False

    bench.wreck(worker.name)
    until(frozen)


def _objects(bench: Bench, number: int) -> list[str]:
    folder = bench.places.attempts(bench.ids[number])
    return [info.uri for info in bench.stores.for_uri(folder).list(folder)]


def test_fault_02_sigstop_past_the_lease_while_the_model_works(bench):
    """Fault 2: what the stopped one says afterwards is refused, its model's call is ended, and it goes on to work."""
    zombie = bench.worker().wait_ready()
    numbers = bench.submit(1, deed="wait_once")
    bench.wait_executing(numbers)
    models = zombie.models
    _freeze(bench, zombie)
    heir = bench.worker().wait_ready()
    bench.wait_ended(numbers)
    ends = {n: (job.lease, job.worker, job.result) for n, job in bench.jobs(numbers).items()}
    assert {worker for _, worker, _ in ends.values()} == {heir.name}

    zombie.signal(signal.SIGCONT)
    until(lambda: all(map(gone, models)), what="the end of the call that nobody wants")
    assert heir.end() == 0
    after = bench.submit(4)
    bench.wait_ended(after)
    assert {bench.job(number).worker for number in after} == {zombie.name}
    assert {n: (job.lease, job.worker, job.result) for n, job in bench.jobs(numbers).items()} == ends
    assert zombie.end() == 0
    bench.tally()
    assert all(len(_objects(bench, number)) == 1 for number in numbers)


def test_fault_02_sigstop_past_the_lease_while_the_result_is_ready(bench):
    """Fault 2: a late finish does not count, and what it wrote is not what the ledger names."""
    zombie = bench.worker().wait_ready()
    (number,) = bench.submit(1, deed="wait_once")
    bench.wait_executing([number])
    _freeze(bench, zombie)
    # Its model is another process, and comes to its answer while the worker that waits for it is stopped.
    bench.go()
    heir = bench.worker().wait_ready()
    bench.wait_ended()
    done = bench.job(number)
    assert (done.worker, done.lease) == (heir.name, 2)
    assert heir.end() == 0

    zombie.signal(signal.SIGCONT)
    (after,) = bench.submit(1)
    bench.wait_ended([after])
    assert zombie.end() == 0
    assert bench.job(number) == done
    tally = bench.tally()
    assert tally.duplicate_executions == 1
    # What the late one wrote, if it came to that, is removed.
    until(lambda: _objects(bench, number) == [done.result.uri], what="the late result's removal")


def test_fault_02_sigstop_of_the_model_alone(bench):
    """Fault 2: a model that was stopped for longer than the lease costs nothing: its worker lives and says so."""
    worker = bench.worker().wait_ready()
    (number,) = bench.submit(1, deed="wait_once")
    bench.wait_executing([number])
    (model,) = worker.models
    os.kill(model, signal.SIGSTOP)
    leases = []

    def prolonged() -> bool:
        until_ms = bench.job(number).lease_until_ms
        if until_ms not in leases:
            leases.append(until_ms)
        return len(leases) > 6  # signs of life, half a second apart: longer than the lease

    until(prolonged)
    os.kill(model, signal.SIGCONT)
    bench.go()
    bench.wait_ended()
    assert bench.job(number).lease == 1
    assert bench.tally().duplicate_executions == 0
