"""Fault 13: clocks that are wrong, and that jump."""

import shutil
from pathlib import Path

import pytest

from faults.bench import QUICK, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TEN_MINUTES_S = 600


def _clock(shift_s: int) -> dict:
    """Options of a worker on a machine whose clock is so wrong: by faketime (Debian), else in the process itself."""
    if shutil.which("faketime") is None:
        return {"shift_s": float(shift_s)}
    # What only counts how long something takes is not told the time of day, by no clock's fault.
    return {
        "prefix": ["faketime", "-m", "-f", f"{shift_s:+d}s"],
        "environ": {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"},
    }


@pytest.mark.postgres
def test_fault_13_clock_of_one_worker_ten_minutes_wrong_either_way(postgres_bench):
    """Fault 13: the database's clock alone counts: no lease is taken early, and none is kept too long."""
    early = postgres_bench.worker(name="early", **_clock(-TEN_MINUTES_S))
    late = postgres_bench.worker(name="late", **_clock(TEN_MINUTES_S))
    right = postgres_bench.worker(name="right")
    for worker in (early, late, right):
        worker.wait_ready()
    # Longer than a lease, so that signs of life decide.
    slow = postgres_bench.submit(9, work_ms=3000)
    quick = postgres_bench.submit(30, work_ms=20)
    postgres_bench.wait_ended()
    workers = {postgres_bench.job(number).worker for number in (*slow, *quick)}
    assert len(workers) > 1
    assert {postgres_bench.job(number).lease for number in slow + quick} == {1}
    assert postgres_bench.tally().duplicate_executions == 0

    # And the dead are found, whoever looks.
    (number,) = postgres_bench.submit(1, deed="wait_once")
    until(lambda: postgres_bench.job(number).worker)
    holder = next(w for w in (early, late, right) if w.name == postgres_bench.job(number).worker)
    postgres_bench.wait_executing([number])
    postgres_bench.wreck(holder.name)
    holder.kill()
    postgres_bench.wait_ended()
    postgres_bench.tally()


@pytest.mark.skipif(
    shutil.which("faketime") is None, reason="needs faketime, for a clock that jumps under way"
)
@pytest.mark.parametrize("jump_s", [-TEN_MINUTES_S, TEN_MINUTES_S])
def test_fault_13_clock_of_the_machine_jumps_under_a_ledger_in_a_file(sqlite_bench, jump_s):
    """Fault 13: where the machine's clock is the ledger's, a jump may cost an attempt, or time; never a result."""
    rate = sqlite_bench.folder / "clock"
    rate.write_text("+0s")
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    environ = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(rate),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    workers = sqlite_bench.fleet(2, environ=environ)
    numbers = sqlite_bench.submit(60, work_ms=200)
    until(lambda: len(sqlite_bench.executions()) > 15)
    _write_whole(rate, f"{jump_s:+d}s")
    # The jobs that were there are due ten minutes ago, or in ten minutes at worst for what was given back meanwhile.
    sqlite_bench.wait_ended(numbers)
    assert all(worker.running for worker in workers)
    sqlite_bench.tally()
    assert sqlite_bench.steps_at.integrity() == "ok"
    assert QUICK["lease_s"] < abs(jump_s)


def _write_whole(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)
