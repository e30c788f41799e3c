"""CPU time and peak memory of a command and all its descendants."""

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

SAMPLE_S = 0.1


@dataclass(frozen=True)
class CommandUsage:
    """One command from start to end, including interpreter and imports."""

    output: str
    errors: str
    exit_code: int
    wall_s: float
    cpu_s: float
    """User and system time of the whole tree."""
    peak_mb: float
    """The highest sum of proportional set sizes (PSS: shared pages count once), sampled every 100 ms."""


def tree_cpu_s(pid: int | None = None) -> float:
    """Return the CPU time of a process (default: this one) and its descendants, including ended
    ones.
    """
    return sum(sum(times[:4]) for times in _each(pid, lambda process: process.cpu_times()))


def tree_memory_mb(pid: int | None = None) -> float:
    """Return the sum of the proportional set sizes of the tree now, in MiB."""
    return sum(_each(pid, lambda process: process.memory_full_info().pss)) / (1 << 20)


def _each(pid, figure) -> list:
    """Return a figure of each process of the tree; processes that ended meanwhile are left out."""
    found = []
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for process in processes:
        try:
            found.append(figure(process))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


class _Sampler(threading.Thread):
    """A thread that samples a tree until it is stopped: the last CPU time and the peak memory."""

    def __init__(self, pid: int, every_s: float, *, memory: bool) -> None:
        super().__init__(daemon=True)
        self._pid, self._every_s, self._memory = pid, every_s, memory
        self._over = threading.Event()
        self.cpu_s = 0.0
        self.peak_mb = 0.0

    def run(self) -> None:
        while not self._over.is_set():
            self.cpu_s = max(self.cpu_s, tree_cpu_s(self._pid))
            if self._memory:
                self.peak_mb = max(self.peak_mb, tree_memory_mb(self._pid))
            self._over.wait(self._every_s)

    def stop(self) -> None:
        self._over.set()
        self.join()


def run_command(
    command: Sequence[str],
    environment: dict[str, str] | None = None,
    *,
    every_s: float = SAMPLE_S,
    memory: bool = True,
) -> CommandUsage:
    """Run a command to its end. The caller checks whether it succeeded.

    Sampling the memory of many processes is expensive: half a core for a Ray cluster, which the
    command then lacks.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment
        )
        sampler = _Sampler(process.pid, every_s, memory=memory)
        sampler.start()
        # wait4 returns the usage of the process and of all descendants that were waited for.
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        sampler.stop()
        output.seek(0)
        errors.seek(0)
        return CommandUsage(
            output=output.read(),
            errors=errors.read(),
            exit_code=process.returncode,
            wall_s=wall_s,
            cpu_s=max(used.ru_utime + used.ru_stime, sampler.cpu_s),
            peak_mb=sampler.peak_mb,
        )
