"""The resource usage of this process."""

import re
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_PEAK_KIB = re.compile(rb"^VmHWM:\s*(\d+) kB$", re.MULTILINE)


def cpu_s() -> float:
    """Return the processor seconds of all threads, in user and system mode."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_memory_mb() -> float:
    """Return the peak memory of the process in MiB, accurate to about 1 MiB."""
    try:
        # On Linux, a new process inherits the maximum of its parent everywhere but in this file.
        found = _PEAK_KIB.search(_STATUS.read_bytes())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) / 1024
    # The BSDs and macOS report bytes, Linux reports KiB.
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
