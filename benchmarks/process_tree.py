"""What a command and all that it starts used: its processor time, and its memory at the highest."""

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
class Watched:
    """One command from its start to its end, interpreter and imports included."""

    output: str
    errors: str
    exit_code: int
    wall_s: float
    cpu_s: float
    """User and system, of the whole tree."""
    peak_mb: float
    """The highest sum of proportional set sizes (PSS: a page that is shared counts once), seen every 100 ms."""


def tree_cpu_s(pid: int | None = None) -> float:
    """Processor time of a process (this one) and its descendants, those included that they waited for."""
    return sum(sum(times[:4]) for times in _each(pid, lambda process: process.cpu_times()))


def tree_memory_mb(pid: int | None = None) -> float:
    """The sum of their proportional set sizes now, in MiB."""
    return sum(_each(pid, lambda process: process.memory_full_info().pss)) / (1 << 20)


def _each(pid, figure) -> list:
    """A figure of each process of the tree; who has gone meanwhile is left out."""
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
    """Looks at a tree until told to stop; what it saw last and at the highest."""

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


def watch(
    command: Sequence[str],
    environment: dict[str, str] | None = None,
    *,
    every_s: float = SAMPLE_S,
    memory: bool = True,
) -> Watched:
    """Run a command to its end. Whether it succeeded is for the caller to see.

    Of many processes memory is dear to look at: half a core's time for a Ray cluster, which is then not the command's.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment
        )
        sampler = _Sampler(process.pid, every_s, memory=memory)
        sampler.start()
        # wait4 says what the process and all descendants that were waited for used, to the end.
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        sampler.stop()
        output.seek(0)
        errors.seek(0)
        return Watched(
            output=output.read(),
            errors=errors.read(),
            exit_code=process.returncode,
            wall_s=wall_s,
            cpu_s=max(used.ru_utime + used.ru_stime, sampler.cpu_s),
            peak_mb=sampler.peak_mb,
        )
