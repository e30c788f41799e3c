"""Fault 14: disks that are full."""

import contextlib
import subprocess
from pathlib import Path

import pytest

import levels
from faults.bench import SHORT_LEASE_S, Bench
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

JOBS = levels.by_level(40, 40, 400)
LEDGER_DISK = levels.by_level("3m", "3m", "12m")
"""The size of the ledger's disk, which has space for all jobs."""


@contextlib.contextmanager
def _small_disk(folder: Path, size: str = "2m"):
    """Mount a file system of its own."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _fill(folder: Path) -> None:
    """Leave no byte free."""
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with contextlib.suppress(OSError), (folder / "filler-2").open("wb", buffering=0) as file:
        while True:
            file.write(b"0")


def _free(folder: Path) -> None:
    for path in folder.glob("filler*"):
        path.unlink()


def test_fault_14_disk_of_the_store_is_full(tmp_path, record):
    """Fault 14: jobs fail with a cause; once there is space, the same worker completes them."""
    with (
        _small_disk(tmp_path / "disk") as disk,
        Bench(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}", f"{disk}/objects/", record=record) as bench,
    ):
        worker = bench.worker().wait_ready()
        numbers = bench.submit(6, delay_ms=500)
        _fill(disk)
        wait_until(lambda: any(job.failure for job in bench.jobs(numbers).values()), "a recorded failure")
        failures = [job.failure for job in bench.jobs(numbers).values() if job.failure]
        assert {failure.cause.value for failure in failures} == {"storage"}
        assert worker.running
        bench.fault_happens()
        _free(disk)
        bench.wait_ended()
        bench.costs()


def test_fault_14_disk_of_the_ledger_is_full(tmp_path, record):
    """Fault 14: the file stays intact, no worker exits, and jobs continue once there is space."""
    with (
        _small_disk(tmp_path / "disk", LEDGER_DISK) as disk,
        Bench(tmp_path, f"sqlite:///{disk / 'jobs.db'}", f"{tmp_path / 'objects'}/", record=record) as bench,
    ):
        workers = bench.start_workers(2)
        numbers = bench.submit(JOBS, work_ms=100)
        bench.wait_executions(JOBS // 5)
        _fill(disk)
        wait_until(lambda: any(worker.warnings() for worker in workers), "a warning of a worker")
        bench.fault_happens()
        _free(disk)
        bench.wait_ended(numbers)
        assert all(worker.running for worker in workers)
        assert [worker.terminate() for worker in workers] == [0, 0]
        assert bench.change_log.integrity() == "ok"
        bench.costs()


def test_fault_14_disk_of_the_log_is_full(tmp_path, record):
    """Fault 14: log lines are lost; jobs are not."""
    with (
        _small_disk(tmp_path / "disk", "64k") as disk,
        Bench(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}", record=record) as bench,
    ):
        worker = bench.worker(log=disk / "log").wait_ready()
        _fill(disk)
        # Each failure is logged.
        bench.submit(4, action="leave", attempts_max=1, queue="default")
        bench.wait_ended()
        failed = {number: job.state for number, job in bench.jobs().items()}
        bench.submit(20)
        bench.wait_ended()
        assert worker.terminate() == 0
        bench.costs(failed)


def test_fault_14_disk_limits_the_size_of_files(sqlite_bench):
    """Fault 14: a write that RLIMIT_FSIZE cuts leaves no half object and no damaged ledger."""
    bench = sqlite_bench
    limit_kib = max(Path(bench.change_log.path).stat().st_size // 1024, 256) + 256
    worker = bench.worker(
        lease_s=SHORT_LEASE_S, prefix=["bash", "-c", f'ulimit -f {limit_kib}; exec "$@"', "bash"]
    ).wait_ready()
    numbers = bench.submit(300)
    wait_until(lambda: worker.warnings() or bench.ended(numbers) == len(numbers), "a refused write")
    worker.kill()
    bench.worker().wait_ready()
    bench.wait_ended()
    assert bench.change_log.integrity() == "ok"
    bench.costs()
