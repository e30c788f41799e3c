"""Fault 24: time: nothing grows that is not jobs."""

import statistics
import time
from pathlib import Path

import psutil
import pytest

from faults.bench import full, until

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(1500)]

SECONDS = 600 if full() else 15
ROUND = 40
GROWTH_MAX = 0.08


def _own_mb(process: psutil.Process) -> float:
    """What it has written to: pages of libraries are its own, too, while no other process has them, and then are not."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:")) / 1e3


def test_fault_24_soak_of_a_worker(postgres_bench, postgres, record_property):
    """Fault 24: memory, open files and connections of a worker stay as they were once it was warm; some jobs fail."""
    bench = postgres_bench
    worker = bench.worker(concurrency=8).wait_ready()
    process = psutil.Process(worker.pid)
    name = bench.ledger_url.rpartition("/")[2]
    expected = {}
    memory, files, connections, threads = [], [], [], []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or len(memory) < 10:
        numbers = bench.submit(ROUND)
        (bad,) = bench.submit(1, deed="leave", attempts_max=1)
        until(
            lambda numbers=numbers, bad=bad: all(j.state.ended for j in bench.jobs([*numbers, bad]).values())
        )
        expected[bad] = bench.job(bad).state
        memory.append(_own_mb(process))
        files.append(process.num_fds())
        threads.append(process.num_threads())
        with postgres.connect(name) as connection:
            count = (
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headrace' AND datname = %s"
            )
            connections.append(connection.execute(count, (name,)).fetchone()[0])
    fifth = max(2, len(memory) // 5)
    for what, seen in (("MB", memory), ("files", files), ("connections", connections), ("threads", threads)):
        warm, last = statistics.median(seen[fifth : 2 * fifth]), statistics.median(seen[-fifth:])
        record_property(what, (round(warm, 1), round(last, 1)))
        assert last <= warm * (1 + GROWTH_MAX) + 3, (what, seen)
    assert worker.end() == 0
    bench.tally(expected)
