"""Fault 13: clocks that are wrong, and clocks that jump."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import levels
from faults.bench import HERE, WORKER_SETTINGS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("faketime") is None, reason="needs faketime (Debian: faketime)"),
]

TEN_MINUTES_S = 600
LEASE_S = 5.0
JOBS = levels.by_level(30, 30, 300)
FAKETIME_ENVIRON = {
    # Durations do not depend on the time of day.
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    "DONT_FAKE_MONOTONIC": "1",
    "PYTHONPATH": str(HERE / "under_faketime"),
}


def _clock(shift_s: int) -> dict:
    """Return the options of a worker on a machine whose clock is wrong by `shift_s`."""
    return {"prefix": ["faketime", "-m", "-f", f"{shift_s:+d}s"], "environ": FAKETIME_ENVIRON}


def test_fault_13_clock_is_faked_and_time_sleep_works():
    """The other tests' tool works: libfaketime 0.9.10 breaks `time.sleep` without under_faketime."""
    options = _clock(TEN_MINUTES_S)
    script = "import time; time.sleep(0.01); print(time.time())"
    printed = subprocess.run(
        [*options["prefix"], sys.executable, "-c", script],
        env={**os.environ, **options["environ"]},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert float(printed) - time.time() > TEN_MINUTES_S / 2


@pytest.mark.postgres
def test_fault_13_clock_of_one_worker_is_ten_minutes_wrong(postgres_bench):
    """Fault 13: only the database's clock counts: no lease is taken early, and none is kept too long."""
    bench = postgres_bench
    early = bench.worker(name="early", lease_s=LEASE_S, **_clock(-TEN_MINUTES_S))
    late = bench.worker(name="late", lease_s=LEASE_S, **_clock(TEN_MINUTES_S))
    right = bench.worker(name="right", lease_s=LEASE_S)
    for worker in (early, late, right):
        worker.wait_ready()
    # Several heartbeats long, so that heartbeats decide about the leases.
    slow = bench.submit(9, work_ms=1500)
    quick = bench.submit(JOBS, work_ms=20)
    bench.wait_ended()
    assert len({bench.job(number).worker for number in (*slow, *quick)}) > 1
    assert bench.lost_leases() == []
    bench.check_single_executions()

    # Dead workers are found, by whichever clock.
    (number,) = bench.submit(1, action="wait_once")
    bench.wait_executing([number])
    holder = next(w for w in (early, late, right) if w.name == bench.job(number).worker)
    bench.fault_happens(holder.name)
    holder.kill()
    bench.wait_ended()
    bench.costs()


@pytest.mark.parametrize("jump_s", [-TEN_MINUTES_S, TEN_MINUTES_S])
def test_fault_13_clock_of_the_machine_jumps_under_a_ledger_in_a_file(sqlite_bench, jump_s):
    """Fault 13: if the machine's clock is the ledger's, a jump may cost attempts or time, but no result."""
    clock = sqlite_bench.folder / "clock"
    clock.write_text("+0s")
    environ = {
        **FAKETIME_ENVIRON,
        "LD_PRELOAD": str(next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
    }
    workers = sqlite_bench.start_workers(2, environ=environ)
    numbers = sqlite_bench.submit(JOBS, work_ms=200)
    sqlite_bench.wait_executions(JOBS // 4)
    _replace(clock, f"{jump_s:+d}s")
    # Queued jobs have been due for ten minutes, or are due in ten if they were given back meanwhile.
    sqlite_bench.wait_ended(numbers)
    assert all(worker.running for worker in workers)
    sqlite_bench.costs()
    assert sqlite_bench.change_log.integrity() == "ok"
    assert WORKER_SETTINGS["lease_s"] < abs(jump_s)


def _replace(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)
