"""Fault 28: the controller of a pool dies, and so do its workers, while the pool grows and shrinks."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from faults.bench import HERE, Bench, one_ledger
from faults.work_model import FOLDER
from headrace.jobs.worker_registry import WorkerState
from integration.jobs_process import CommandProcess
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WORKERS = 4
POOL = """
[pools.local]
interval_s = 0.5
scale_in_window_s = 2
"""


def _controller(bench: Bench, folder: Path) -> CommandProcess:
    """Start worker processes, as many as the jobs need, with short leases."""
    config = folder / "jobs.toml"
    config.write_text(POOL)
    model = f"work_model={HERE / 'work_model.py'}"
    places = ("--ledger", bench.ledger_url, "--store", bench.store_uri, "--config", str(config))
    sizes = ("--workers", f"0..{WORKERS}", "--concurrency", "1")
    leases = ("--lease-s", "2", "--heartbeat-s", "0.5")
    return CommandProcess(
        folder, "work", model, *places, *sizes, *leases, environ={FOLDER: str(bench.folder)}
    )


def _workers(controller: CommandProcess) -> list[int]:
    """Return the worker processes of a controller."""
    return [child.pid for child in psutil.Process(controller.pid).children()]


def _living(bench: Bench) -> int:
    living = (WorkerState.RUNNING, WorkerState.DRAINING, WorkerState.DRAINED)
    return sum(record.state in living for record in bench.ledger.workers())


def _wait_for_growth(bench: Bench, controller: CommandProcess) -> None:
    wait_until(lambda: len(_workers(controller)) == WORKERS, f"{WORKERS} workers")
    wait_until(lambda: _living(bench) >= WORKERS, "their registration")


@one_ledger()
def test_fault_28_pool_goes_from_zero_to_four_workers_and_back_under_kills(bench, tmp_path):
    """Fault 28: another controller takes over; no job is lost, and no worker is left."""
    with _controller(bench, tmp_path).wait_until_ready() as first:
        assert _workers(first) == []
        numbers = bench.submit(60, work_ms=300)
        _wait_for_growth(bench, first)
        with _controller(bench, tmp_path).wait_until_ready() as second:
            assert _workers(second) == [], "a second controller stands by"
            bench.wait_any_executing(numbers)
            bench.fault_happens()
            victim = _workers(first)[0]
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: victim not in _workers(first), "the end of the worker")
            _wait_for_growth(bench, first)
            orphans = _workers(first)
            os.kill(first.pid, signal.SIGKILL)
            wait_until(lambda: not any(map(psutil.pid_exists, orphans)), "the end of its workers")
            wait_until(lambda: _workers(second), "workers of the second controller")
            with suppress(IndexError):
                os.kill(_workers(second)[0], signal.SIGKILL)
            bench.wait_ended()
            wait_until(lambda: not _workers(second), "no workers")
            assert second.terminate() == 0
    bench.costs()
    wanted = [decision.wanted for decision in bench.ledger.decisions().decisions]
    assert (max(wanted), wanted[0]) == (WORKERS, 0)
