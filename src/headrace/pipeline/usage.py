"""What this process has used so far, as the system counts it."""

import re
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_PEAK_KIB = re.compile(rb"^VmHWM:\s*(\d+) kB$", re.MULTILINE)


def cpu_s() -> float:
    """Seconds of processor time, in user and system mode, of all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_memory_mb() -> float:
    """The most memory that it ever had in use, in MiB; right to about one."""
    try:
        # Linux lets a new program inherit the maximum of the process that started it, everywhere but here.
        found = _PEAK_KIB.search(_STATUS.read_bytes())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) / 1024
    # The BSDs and macOS count bytes, Linux KiB.
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
