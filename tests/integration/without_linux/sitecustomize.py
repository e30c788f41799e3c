"""Removes from the standard library what it has on Linux alone, as if this were macOS."""

import builtins
import ctypes
import io
import mmap
import os
import resource
import select
import signal
import socket

_MISSING = {
    os: (
        "memfd_create pidfd_open eventfd eventfd_read eventfd_write posix_fallocate posix_fadvise fdatasync "
        "pipe2 copy_file_range sched_getaffinity sched_setaffinity waitid getxattr splice O_TMPFILE"
    ),
    mmap: "MAP_POPULATE",
    resource: "prlimit",
    select: "epoll",
    signal: "pidfd_send_signal",
    socket: "MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED",
}
for module, names in _MISSING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


def _without_proc(function):
    def call(path, *arguments, **others):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(2, "there is no /proc", path)
        return function(path, *arguments, **others)

    return call


builtins.open = io.open = _without_proc(io.open)
os.stat = _without_proc(os.stat)
_get_symbol = ctypes.CDLL.__getattr__


def _without_linux(library, name):
    if name in ("prctl", "syncfs"):
        raise AttributeError(name)
    return _get_symbol(library, name)


ctypes.CDLL.__getattr__ = _without_linux
