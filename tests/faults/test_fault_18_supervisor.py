"""Fault 18: the worker, which supervises the models, dies with all that it has in hand."""

import os
import signal
from pathlib import Path

import pytest

from faults.bench import Bench, gone, one_ledger, until
from headrace.engine.cgroup import own_groups

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MIB = 2**20


def _taken_over(bench: Bench, numbers: list[int], models: list[int]) -> None:
    heir = bench.worker().wait_ready()
    bench.wait_ended()
    assert {bench.job(n).worker for n in numbers} == {heir.name}
    until(lambda: all(map(gone, models)), what="the end of the dead worker's models")
    tally = bench.tally()
    assert tally.recovery_seconds is not None


@one_ledger()
def test_fault_18_supervisor_is_killed(bench):
    """Fault 18: another takes all its jobs over; its models end too."""
    worker = bench.worker().wait_ready()
    numbers = bench.submit(8, deed="wait_once")
    bench.wait_any_executing(numbers)
    models = worker.models
    bench.wreck(worker.name)
    worker.kill()
    # Those that it had not begun are not held by its models any more, whoever reads their marks.
    bench.go()
    _taken_over(bench, numbers, models)


def test_fault_18_supervisor_runs_out_of_memory(sqlite_bench, tmp_path):
    """Fault 18: killed by the kernel, in a control group of its own; the models are in it too."""
    group = own_groups().get("memory")
    if group is None or not os.access(group.folder, os.W_OK):
        pytest.skip("no control group of memory can be made here")
    bench = sqlite_bench
    worker = bench.worker().wait_ready()
    numbers = bench.submit(4, deed="wait_once")
    bench.wait_any_executing(numbers)
    models = worker.models
    own = Path(group.folder) / f"headrace-fault-18-{os.getpid()}"
    own.mkdir()
    try:
        limit = "memory.limit_in_bytes" if (own / "memory.limit_in_bytes").exists() else "memory.max"
        (own / limit).write_text(str(512 * MIB))
        (own / "cgroup.procs").write_text(str(worker.pid))
        bench.wreck(worker.name)
        worker.signal(signal.SIGUSR1)
        assert worker.process.wait(60) == -signal.SIGKILL
        bench.go()
        _taken_over(bench, numbers, models)
    finally:
        for other in bench.workers:
            other.destroy()
        until(lambda: not (own / "cgroup.procs").read_text())
        own.rmdir()
