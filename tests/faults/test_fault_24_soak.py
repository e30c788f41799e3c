"""Fault 24: time: a worker's memory, files, connections and threads do not grow."""

import statistics
from pathlib import Path

import psutil
import pytest

import levels
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(1500)]

ROUNDS = levels.by_level(12, 12, 600)
ROUND_JOBS = 20
GROWTH_MAX = 0.08


def _anonymous_mb(process: psutil.Process) -> float:
    """Return the memory that the process has written to.

    Pages of libraries count as its own only while no other process uses them, so they are left out.
    """
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:")) / 1e3


def test_fault_24_soak_of_a_worker(postgres_bench, postgres, record_property):
    """Fault 24: memory, open files, connections and threads stay as they were once the worker was warm."""
    bench = postgres_bench
    worker = bench.worker(concurrency=8).wait_ready()
    process = psutil.Process(worker.pid)
    name = bench.ledger_url.rpartition("/")[2]
    expected = {}
    samples: dict[str, list[float]] = {"MB": [], "files": [], "connections": [], "threads": []}
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headrace' AND datname = %s"
    for _ in range(ROUNDS):
        numbers = [*bench.submit(ROUND_JOBS), *bench.submit(1, action="leave", attempts_max=1)]
        wait_until(lambda numbers=numbers: bench.ended(numbers) == len(numbers), "the end of a round")
        expected[numbers[-1]] = bench.job(numbers[-1]).state
        samples["MB"].append(_anonymous_mb(process))
        samples["files"].append(process.num_fds())
        samples["threads"].append(process.num_threads())
        with postgres.connect(name) as connection:
            samples["connections"].append(connection.execute(count, (name,)).fetchone()[0])
    fifth = max(2, ROUNDS // 5)
    for unit, values in samples.items():
        warm, last = statistics.median(values[fifth : 2 * fifth]), statistics.median(values[-fifth:])
        record_property(unit, (round(warm, 1), round(last, 1)))
        assert last <= warm * (1 + GROWTH_MAX) + 3, (unit, values)
    assert worker.terminate() == 0
    bench.costs(expected)
