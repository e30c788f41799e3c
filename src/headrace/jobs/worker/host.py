"""Figures of the worker's host for its reports: the memory of its processes, and the memory of GPUs."""

import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.jobs.worker_registry import GpuMemory

_log = logging.getLogger("headrace.jobs")

GPUS_S: Final = 60.0
"""Seconds between two readings of GPUs: each starts a program that takes up to a second."""
_PROGRAM: Final = "nvidia-smi"
_QUERY: Final = ("--query-gpu=index,uuid,name,memory.used,memory.total", "--format=csv,noheader,nounits")
_TIMEOUT_S: Final = 20.0
_COLUMNS: Final = 5
_PROCESSES_MAX: Final = 10_000
_MIB: Final = 1 << 20
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU as the driver's program lists it."""

    uuid: str
    memory: GpuMemory


def parse_gpus(text: str) -> list[GpuReading]:
    """Return the GPUs in the output of ``nvidia-smi``. GPUs without figures are left out."""
    found: list[GpuReading] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != _COLUMNS:
            continue
        index, uuid, name, used, total = cells
        if index.isdecimal() and used.isdecimal() and total.isdecimal():
            memory = GpuMemory(int(index), name, int(used) * _MIB, int(total) * _MIB)
            found.append(GpuReading(uuid, memory))
    return found


def visible_gpus(gpus: Sequence[GpuReading], environ: Mapping[str, str]) -> tuple[GpuMemory, ...]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves to the models of this process.

    Without the variable these are all. It names indexes or the beginnings of UUIDs, and the first name
    without a GPU ends the list.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(gpu.memory for gpu in gpus)
    visible: list[GpuMemory] = []
    for name in map(str.strip, listed.split(",")):
        gpu = next((gpu for gpu in gpus if _is_named(gpu, name)), None)
        if gpu is None:
            break
        visible.append(gpu.memory)
    return tuple(visible)


def _is_named(gpu: GpuReading, name: str) -> bool:
    return name == str(gpu.memory.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))


def tree_memory_bytes(pid: int, proc: Path = _PROC) -> int | None:
    """Return the resident memory of a process and of all processes below it.

    Pages that several of them share count for each. Return None where there is no ``/proc``.
    """
    total, left, seen = None, [pid], set[int]()
    while left and len(seen) < _PROCESSES_MAX:
        one = left.pop()
        seen.add(one)
        pages = _resident_pages(proc / str(one))
        if pages is not None:
            total = (total or 0) + pages
            left += _children(proc / str(one)) - seen
    return None if total is None else total * os.sysconf("SC_PAGE_SIZE")


def _resident_pages(process: Path) -> int | None:
    try:
        return int((process / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):  # it has ended meanwhile
        return None


def _children(process: Path) -> set[int]:
    """Return the processes that the threads of a process have started."""
    found: set[int] = set()
    try:
        for thread in (process / "task").iterdir():
            found.update(map(int, (thread / "children").read_text().split()))
    except (OSError, ValueError):
        pass  # It has ended meanwhile, or the kernel has no such file.
    return found


def read_gpus() -> tuple[GpuMemory, ...]:
    """Return the visible GPUs; none without the driver's program. Raises OSError and SubprocessError."""
    program = shutil.which(_PROGRAM)
    if program is None:
        return ()
    done = subprocess.run(  # noqa: S603 - a program of the path, with our arguments
        [program, *_QUERY], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
    return visible_gpus(parse_gpus(done.stdout), os.environ)


class HostFigures:
    """The figures of this process's host. Reads never wait: GPUs are read in the background."""

    def __init__(
        self, *, read: Callable[[], Iterable[GpuMemory]] = read_gpus, clock: Clock | None = None
    ) -> None:
        self._read = read
        self._clock = clock or SystemClock()
        self._gpus: tuple[GpuMemory, ...] = ()
        self._next_s = self._clock.now()
        self._reader: threading.Thread | None = None

    def memory_bytes(self) -> int | None:
        """Return the memory of this process and those below it, as `tree_memory_bytes` does."""
        return tree_memory_bytes(os.getpid())

    def gpus(self) -> tuple[GpuMemory, ...]:
        """Return the GPUs as they were read last, and read them again if that was `GPUS_S` ago."""
        now_s = self._clock.now()
        if now_s >= self._next_s and (self._reader is None or not self._reader.is_alive()):
            self._next_s = now_s + GPUS_S
            self._reader = threading.Thread(target=self._refresh, name="headrace-gpus", daemon=True)
            self._reader.start()
        return self._gpus

    def join(self) -> None:
        """Wait for a reading under way."""
        if self._reader is not None:
            self._reader.join()

    def _refresh(self) -> None:
        try:
            self._gpus = tuple(self._read())
        except (OSError, subprocess.SubprocessError) as error:
            self._gpus = ()
            _log.warning("the memory of GPUs could not be read: %s", error)
