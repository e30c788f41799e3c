"""Fault 2: a worker is stopped for longer than its lease, and continues."""

import os
import signal

import psutil
import pytest

from faults.bench import SHORT_LEASE_S, Bench, WorkerProcess, has_ended, one_ledger
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def _freeze(bench: Bench, worker: WorkerProcess) -> None:
    """Stop the worker, but not within a write to SQLite, which would block all other writers."""

    def frozen() -> bool:
        worker.signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED, "a stopped worker")
        if bench.change_log.writable():
            return True
        worker.signal(signal.SIGCONT)
        return False

    bench.fault_happens(worker.name)
    wait_until(frozen, "a worker that is stopped between two writes")


def _objects(bench: Bench, number: int) -> list[str]:
    folder = bench.paths.attempts(bench.ids[number])
    return [info.uri for info in bench.stores.for_uri(folder).list(folder)]


def test_fault_02_sigstop_past_the_lease_during_a_call(bench):
    """Fault 2: the stopped worker's settlement is refused, its model's call is ended, and it works again."""
    zombie = bench.worker(lease_s=SHORT_LEASE_S).wait_ready()
    numbers = bench.submit(1, action="wait_once")
    bench.wait_executing(numbers)
    models = zombie.models
    _freeze(bench, zombie)
    heir = bench.worker().wait_ready()
    bench.wait_ended(numbers)
    ends = {n: (job.lease, job.worker, job.result) for n, job in bench.jobs(numbers).items()}
    assert {worker for _, worker, _ in ends.values()} == {heir.name}

    zombie.signal(signal.SIGCONT)
    wait_until(lambda: all(map(has_ended, models)), "the end of the call under the lost lease")
    assert heir.terminate() == 0
    after = bench.submit(4)
    bench.wait_ended(after)
    assert {bench.job(number).worker for number in after} == {zombie.name}
    assert {n: (job.lease, job.worker, job.result) for n, job in bench.jobs(numbers).items()} == ends
    assert zombie.terminate() == 0
    bench.costs()
    assert all(len(_objects(bench, number)) == 1 for number in numbers)


def test_fault_02_sigstop_past_the_lease_with_a_ready_result(bench):
    """Fault 2: a late settlement is refused, and its result is removed."""
    zombie = bench.worker(lease_s=SHORT_LEASE_S).wait_ready()
    (number,) = bench.submit(1, action="wait_once")
    bench.wait_executing([number])
    _freeze(bench, zombie)
    # The model's process returns its outputs while the worker's process is stopped.
    bench.release()
    heir = bench.worker().wait_ready()
    bench.wait_ended()
    done = bench.job(number)
    assert (done.worker, done.lease) == (heir.name, 2)
    assert heir.terminate() == 0

    zombie.signal(signal.SIGCONT)
    (after,) = bench.submit(1)
    bench.wait_ended([after])
    assert zombie.terminate() == 0
    assert bench.job(number) == done
    costs = bench.costs()
    assert costs.duplicate_executions == 1
    wait_until(lambda: _objects(bench, number) == [done.result.uri], "the late result's removal")


@one_ledger()
def test_fault_02_sigstop_of_the_model_alone(bench):
    """Fault 2: a model stopped for longer than the lease costs nothing: its worker sends heartbeats."""
    worker = bench.worker(lease_s=2 * SHORT_LEASE_S).wait_ready()
    (number,) = bench.submit(1, action="wait_once")
    bench.wait_executing([number])
    (model,) = worker.models
    os.kill(model, signal.SIGSTOP)
    stopped_until_ms = bench.job(number).lease_until_ms
    # The lease that was valid when the model stopped has expired, and so has a whole one after it.
    prolonged_ms = stopped_until_ms + 2000 * SHORT_LEASE_S
    wait_until(lambda: bench.job(number).lease_until_ms > prolonged_ms, "heartbeats of a whole lease")
    os.kill(model, signal.SIGCONT)
    bench.release()
    bench.wait_ended()
    assert bench.job(number).lease == 1
    bench.check_single_executions()
