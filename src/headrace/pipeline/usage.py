"""What this process has used so far, as the system counts it."""

import resource
import sys


def cpu_s() -> float:
    """Seconds of processor time, in user and system mode, of all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_memory_mb() -> float:
    """The most memory that it ever had in use, in MiB."""
    # The BSDs and macOS count bytes, Linux KiB.
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
