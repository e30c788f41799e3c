"""Files in memory without a name, for two processes to map.

The kernel frees such a file with its last mapping, so that nothing is left of it however the
processes end.
"""

import os
import secrets
from importlib import import_module
from typing import Any


def open_unnamed_memory(purpose: str, size: int) -> int:
    """Return a new file of `size` bytes. The caller closes it. Raises OSError if memory is short."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(f"headrace-{purpose}", os.MFD_CLOEXEC)
    else:
        fd = _open_without_memfd()
    try:
        if hasattr(os, "posix_fallocate"):
            # Allocated now, where failure is an error. A page missing later would be a fatal
            # signal.
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_without_memfd() -> int:
    """Return an empty object of POSIX shared memory whose name is already removed.

    It makes the system calls of `multiprocessing.shared_memory` directly. That module keeps the
    name, and needs a process that removes the names which killed processes leave.
    """
    posix: Any = import_module("_posixshmem")  # has no types
    name = f"/headrace-{secrets.token_hex(8)}"  # macOS allows 31 characters
    fd: int = posix.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
    posix.shm_unlink(name)
    return fd
