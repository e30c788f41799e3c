import subprocess
import sys

from headrace.runs import work as usage
from headrace.runs.work import cpu_s, peak_memory_mb


def test_work_takes_processor_time():
    before = cpu_s()
    while cpu_s() == before:
        sum(range(10_000))
    assert cpu_s() > before


def test_peak_memory_is_in_mebibytes_and_does_not_fall():
    before = peak_memory_mb()
    held = bytearray(64 << 20)
    held[:: 1 << 12] = bytes(len(held) >> 12)
    after = peak_memory_mb()
    del held
    assert after > 64
    # Linux updates the counters of its processors late, so a little may be missing.
    assert peak_memory_mb() + 1 > after > before - 1


def test_peak_memory_excludes_the_parent_process():
    """Processes inherit the maximum of `getrusage` from their parent."""
    held = bytearray(300 << 20)
    held[:: 1 << 12] = bytes(len(held) >> 12)
    script = "from headrace.runs.work import peak_memory_mb; print(peak_memory_mb())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    del held
    assert 5 < float(done.stdout) < 200


def test_without_status_file_the_rusage_maximum_is_used(monkeypatch, tmp_path):
    monkeypatch.setattr(usage, "_STATUS", tmp_path / "none")
    assert peak_memory_mb() > 5
