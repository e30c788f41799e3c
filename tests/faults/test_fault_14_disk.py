"""Fault 14: disks that are full."""

import contextlib
import subprocess
from pathlib import Path

import pytest

from faults.bench import Bench, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@contextlib.contextmanager
def _small_disk(folder: Path, size: str = "2m"):
    """A file system of its own."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False, capture_output=True
    )
    if made.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _fill(folder: Path) -> Path:
    """Leave not a byte."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with contextlib.suppress(OSError), (folder / "filler-2").open("wb", buffering=0) as file:
        while True:
            file.write(b"0")
    return filler


def _empty(folder: Path) -> None:
    for path in folder.glob("filler*"):
        path.unlink()


def _says(bench: Bench, text: str) -> None:
    until(lambda: any(text in worker.said() for worker in bench.workers), what=text)


def test_fault_14_disk_of_the_store_is_full(tmp_path, record):
    """Fault 14: jobs fail with a cause, and are tried again; the worker lives, and all is done once there is room."""
    with (
        _small_disk(tmp_path / "disk") as disk,
        Bench(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}", f"{disk}/objects/", record=record) as bench,
    ):
        worker = bench.worker().wait_ready()
        numbers = bench.submit(6, delay_ms=500)
        _fill(disk)
        until(lambda: any(job.failure for job in bench.jobs(numbers).values()), what="a failure that is told")
        failures = [job.failure for job in bench.jobs(numbers).values() if job.failure]
        assert {failure.cause.value for failure in failures} == {"storage"}
        assert worker.running
        bench.wreck()
        _empty(disk)
        bench.wait_ended()
        bench.tally()


def test_fault_14_disk_of_the_ledger_is_full(tmp_path, record):
    """Fault 14: the file stays whole, nobody exits, and it goes on once there is room."""
    with (
        _small_disk(tmp_path / "disk", "3m") as disk,
        Bench(tmp_path, f"sqlite:///{disk / 'jobs.db'}", f"{tmp_path / 'objects'}/", record=record) as bench,
    ):
        workers = bench.fleet(2)
        numbers = bench.submit(60, work_ms=100)
        until(lambda: len(bench.executions()) > 10)
        _fill(disk)
        _says(bench, "does not answer")
        bench.wreck()
        _empty(disk)
        bench.wait_ended(numbers)
        assert all(worker.running for worker in workers)
        assert [worker.end() for worker in workers] == [0, 0]
        assert bench.steps_at.integrity() == "ok"
        bench.tally()


def test_fault_14_disk_of_the_log_is_full(tmp_path, record):
    """Fault 14: what cannot be logged is not; jobs are done all the same."""
    with (
        _small_disk(tmp_path / "disk", "64k") as disk,
        Bench(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}", record=record) as bench,
    ):
        worker = bench.worker(log=disk / "log").wait_ready()
        _fill(disk)
        # Failures are logged; they go nowhere.
        bench.submit(4, deed="leave", attempts_max=1, queue="default")
        until(lambda: all(job.state.ended for job in bench.jobs().values()))
        poison = {number: job.state for number, job in bench.jobs().items()}
        bench.submit(20)
        bench.wait_ended()
        assert worker.end() == 0
        bench.tally(poison)


def test_fault_14_disk_gives_files_no_more_than_a_limit(sqlite_bench):
    """Fault 14: RLIMIT_FSIZE: a write that is refused half way leaves no half object, and no broken ledger."""
    bench = sqlite_bench
    limit_kib = max(Path(bench.steps_at.path).stat().st_size // 1024, 256) + 256
    worker = bench.worker(prefix=["bash", "-c", f'ulimit -f {limit_kib}; exec "$@"', "bash"]).wait_ready()
    numbers = bench.submit(300)
    until(
        lambda: (
            all(job.state.ended for job in bench.jobs(numbers).values()) or "does not answer" in worker.said()
        )
    )
    worker.kill()
    bench.worker().wait_ready()
    bench.wait_ended()
    assert bench.steps_at.integrity() == "ok"
    bench.tally()
