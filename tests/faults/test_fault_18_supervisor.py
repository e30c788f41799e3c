"""Fault 18: the worker, which supervises its models, dies with all its jobs."""

import os
import signal
from pathlib import Path

import pytest

from faults.bench import SHORT_LEASE_S, Bench, has_ended, one_ledger
from headrace.engine.process.process_limits import own_groups
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MIB = 2**20


def _check_taken_over(bench: Bench, numbers: list[int], models: list[int]) -> None:
    heir = bench.worker().wait_ready()
    bench.wait_ended()
    assert {bench.job(n).worker for n in numbers} == {heir.name}
    wait_until(lambda: all(map(has_ended, models)), "the end of the dead worker's models")
    assert bench.costs().recovery_seconds is not None


@one_ledger()
def test_fault_18_supervisor_is_killed(bench):
    """Fault 18: another worker takes over all jobs, and the models of the dead one end."""
    worker = bench.worker(lease_s=SHORT_LEASE_S).wait_ready()
    numbers = bench.submit(8, action="wait_once")
    bench.wait_any_executing(numbers)
    models = worker.models
    bench.fault_happens(worker.name)
    worker.kill()
    # The dead worker has not called its models for all of the jobs: those would wait in the heir's.
    bench.release()
    _check_taken_over(bench, numbers, models)


def test_fault_18_supervisor_runs_out_of_memory(sqlite_bench, tmp_path):
    """Fault 18: the kernel kills the worker in a control group of its own, which its models belong to."""
    group = own_groups().get("memory")
    if group is None or not os.access(group.folder, os.W_OK):
        pytest.skip("no control group of memory can be made here")
    bench = sqlite_bench
    worker = bench.worker(lease_s=SHORT_LEASE_S).wait_ready()
    numbers = bench.submit(4, action="wait_once")
    bench.wait_any_executing(numbers)
    models = worker.models
    own = Path(group.folder) / f"headrace-fault-18-{os.getpid()}"
    own.mkdir()
    try:
        limit = "memory.limit_in_bytes" if (own / "memory.limit_in_bytes").exists() else "memory.max"
        (own / limit).write_text(str(512 * MIB))
        (own / "cgroup.procs").write_text(str(worker.pid))
        bench.fault_happens(worker.name)
        worker.signal(signal.SIGUSR1)
        assert worker.process.wait(60) == -signal.SIGKILL
        bench.release()
        _check_taken_over(bench, numbers, models)
    finally:
        for other in bench.workers:
            other.kill_tree()
        wait_until(lambda: not (own / "cgroup.procs").read_text(), "an empty control group")
        own.rmdir()
