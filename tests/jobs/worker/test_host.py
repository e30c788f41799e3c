"""Figures of a worker's host: GPUs from the text of their program, and memory from a folder like /proc."""

import os
import subprocess
import sys
import threading

import pytest

from cases import for_each
from headrace.jobs.worker.host import (
    GPUS_S,
    GpuReading,
    HostFigures,
    parse_gpus,
    tree_memory_bytes,
    visible_gpus,
)
from headrace.jobs.worker_registry import GpuMemory
from headrace.testing import ManualClock

MIB = 1 << 20
TEXT = """\
0, GPU-5a1b, NVIDIA H100 80GB HBM3, 1234, 81559
1, GPU-6c2d, NVIDIA H100 80GB HBM3, 0, 81559
"""
FIRST = GpuMemory(0, "NVIDIA H100 80GB HBM3", 1234 * MIB, 81559 * MIB)
SECOND = GpuMemory(1, "NVIDIA H100 80GB HBM3", 0, 81559 * MIB)
GPUS = [GpuReading("GPU-5a1b", FIRST), GpuReading("GPU-6c2d", SECOND)]
PAGE = os.sysconf("SC_PAGE_SIZE")


def test_gpus_are_parsed():
    assert parse_gpus(TEXT) == GPUS


@for_each(
    "text",
    [
        "",
        "No devices were found\n",
        "0, GPU-5a1b, NVIDIA GB10, [N/A], [N/A]\n",
        "0, GPU-5a1b, NVIDIA A100, [Insufficient Permissions], 40960\n",
        "index, uuid\n\n, , , , \n",
    ],
)
def test_gpus_without_figures_are_left_out(text):
    assert parse_gpus(text) == []


@for_each(
    ("listed", "visible"),
    [
        (None, (FIRST, SECOND)),
        ("1", (SECOND,)),
        ("1, 0", (SECOND, FIRST)),
        ("GPU-6c", (SECOND,)),
        ("0,7,1", (FIRST,)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
    ],
)
def test_visible_devices_limit_the_gpus(listed, visible):
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert visible_gpus(GPUS, environ) == visible


def add_process(proc, pid, pages, *children):
    """Write the files of a process whose second thread started the children."""
    for number, text in ((pid, ""), (pid + 1, " ".join(map(str, children)))):
        task = proc / str(pid) / "task" / str(number)
        task.mkdir(parents=True)
        (task / "children").write_text(text)
    (proc / str(pid) / "statm").write_text(f"9999 {pages} 1 1 0 1 0\n")


def test_memory_counts_all_processes_below(tmp_path):
    add_process(tmp_path, 10, 5, 20, 30)
    add_process(tmp_path, 20, 7, 40)
    add_process(tmp_path, 40, 100, 10)
    add_process(tmp_path, 50, 1000)
    assert tree_memory_bytes(10, tmp_path) == 112 * PAGE, "30 has ended meanwhile"
    assert tree_memory_bytes(30, tmp_path) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_memory_of_real_processes_grows_with_a_child():
    before = tree_memory_bytes(os.getpid())
    code = "import sys; x = bytearray(64 << 20); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as child:
        child.stdout.readline()
        grown = tree_memory_bytes(os.getpid())
        child.stdin.close()
    assert grown - before > 60 << 20


def test_gpus_are_read_in_the_background_once_a_minute():
    clock, gate, reads = ManualClock(), threading.Event(), []

    def read():
        assert gate.wait(20)
        reads.append(clock.now())
        return [FIRST]

    figures = HostFigures(read=read, clock=clock)
    assert figures.gpus() == ()
    clock.advance(GPUS_S)
    assert figures.gpus() == ()
    gate.set()
    figures.join()
    assert figures.gpus() == (FIRST,)
    figures.join()
    assert len(reads) == 2, "one at the start, and one when the first had ended a minute later"
    clock.advance(GPUS_S - 1)
    figures.gpus()
    figures.join()
    assert len(reads) == 2


@for_each("error", [OSError("no such program"), subprocess.TimeoutExpired("nvidia-smi", 20)])
def test_failed_reading_shows_no_gpus(error, caplog):
    def read():
        raise error

    figures = HostFigures(read=read, clock=ManualClock())
    figures.gpus()
    figures.join()
    assert figures.gpus() == ()
    assert "the memory of GPUs could not be read" in caplog.text
