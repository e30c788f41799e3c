"""Live traffic on this machine: the share of background work that it leaves, in this process and others.

A server and a run on the same machine compete for its processors, although they are separate processes.
So each process publishes the share that its live requests leave, and background work asks for the
smallest one.

A process with live requests to limited models has one small file. Nothing else crosses processes:

| bytes | content |
| --- | --- |
| 0-7 | ``headrace`` |
| 8-11 | version of the layout, an unsigned integer |
| 16-23 | share of background work, a double |
| 24-31 | end of the last live request, a double: seconds of CLOCK_MONOTONIC |

Numbers have the byte order of the machine. All processes since a boot share CLOCK_MONOTONIC, so that a
reader knows for how long there was no live request. The file is mapped into memory: publication is no
system call, which would release Python's interpreter lock and wait for it again. Each number is valid
by itself, so a reader may see a new share with an old time.

The owner holds an exclusive `flock` on its file while it lives. A reader that gets a lock knows that the
owner is dead, and removes the file. Readers create nothing.

Limits:

- Files are in ``headrace`` in ``XDG_RUNTIME_DIR``, else in ``headrace-UID`` in the temporary folder.
  Processes with another value of this variable or of ``TMPDIR`` do not see each other, nor do users.
- Containers see each other only by a common volume for this folder, and only with one kernel.
- A process trusts its own user: any process of this user may publish a share.
- Readers learn of a new share within `READ_S` seconds, and ignore other versions of the layout.
- A file has one time for all models of its process. Beside a model that still has live requests, the share
  of an idle one may count for `IDLE_S` seconds more.
- A program that removes files from temporary folders hides the process. A process that is killed while
  it creates its file leaves 32 bytes behind, which no reader looks at.
- Without a folder of its own, or on a full disk, a process logs one warning and goes on alone.
"""

import fcntl
import logging
import mmap
import os
import stat
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from headrace.batching.background import SHARE_MIN, BackgroundShare, current_share
from headrace.core.clock import Clock, SystemClock

READ_S: Final = 0.25
"""Seconds between two readings of the files of other processes."""
SUFFIX: Final = ".live"
"""The end of the names of published files."""
_HEAD: Final = (b"headrace", 1)
_LAYOUT: Final = Struct("@8sIxxxxdd")
# Native numbers are copied as a whole; those of a declared byte order are written byte by byte.
_NUMBERS: Final = Struct("@dd")
_NUMBERS_OFFSET: Final = 16
_NEVER: Final = float("-inf")

_log = logging.getLogger("headrace.engine")


def shared_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of published shares: in the user's runtime folder, else in the temporary folder."""
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    # After `su` or `sudo`, the variable may still name the folder of another user.
    with suppress(OSError):
        if runtime.is_absolute() and runtime.stat().st_uid == os.geteuid():
            return runtime / "headrace"
    return Path(tempfile.gettempdir()) / f"headrace-{os.geteuid()}"


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that this user alone can write")


class _ShareFile:
    """The published share of this process. Raises OSError if it cannot be published."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_private(folder)
        self._fd, name = tempfile.mkstemp(prefix=f"{os.getpid()}-", dir=folder)
        hidden = Path(name)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Written before it is mapped: on a full disk, the first access to a hole is a fatal signal.
            os.write(self._fd, _LAYOUT.pack(*_HEAD, 1.0, _NEVER))
            self._mapping = mmap.mmap(self._fd, _LAYOUT.size)
            # Readers take a file without a lock for that of a dead process, so they see it only now.
            self.path = hidden.rename(name + SUFFIX)
        except BaseException:
            os.close(self._fd)
            hidden.unlink()
            raise

    def write(self, share: float, live_s: float) -> None:
        """Publish a share, and the time of the last live request."""
        _NUMBERS.pack_into(self._mapping, _NUMBERS_OFFSET, share, live_s)

    def leave(self) -> None:
        """Close this process's copies of the descriptor, which hold the lock, and keep the file."""
        self._mapping.close()
        os.close(self._fd)

    def withdraw(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self.path.unlink()
        self.leave()


def _read_share(path: Path, now: float) -> float:
    """Return the share in a file, or 1.0 if the file has no living owner or another format.

    Remove the file of a dead owner.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # withdrawn a moment ago, or no plain file
        return 1.0
    try:
        # Readers share their lock, so that two at once do not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        content = os.read(fd, _LAYOUT.size)
    else:
        with suppress(OSError):  # another reader was faster, or the file system is read-only
            path.unlink()
        return 1.0
    finally:
        os.close(fd)
    if len(content) < _LAYOUT.size:
        return 1.0
    *head, share, live_s = _LAYOUT.unpack(content)
    if tuple(head) != _HEAD or not SHARE_MIN <= share <= 1.0:
        return 1.0
    return current_share(share, live_s, now)


class LatencyMonitor:
    """The latencies of the live requests of one model, with their limit. Thread-safe; raises nothing."""

    def __init__(self, traffic: "LiveTraffic", share: BackgroundShare) -> None:
        self._traffic = traffic
        self._share = share

    def record(self, latency_s: float) -> None:
        """Record a live request that has ended."""
        self._traffic.record(self._share, latency_s)

    def close(self) -> None:
        """Withdraw the limit, since the model is unloaded. Later requests do not count."""
        self._traffic.remove(self._share)


class LiveTraffic:
    """The live traffic of this process and of other processes of the user on this machine.

    Thread-safe. Opens nothing before the first use, and raises nothing: a process that cannot publish or
    read logs one warning, and goes on alone. A forked process publishes for itself.

    `folder` is by default that of `shared_folder`.
    """

    def __init__(self, folder: Path | None = None, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._shares: list[BackgroundShare] = []
        self._file: _ShareFile | None = None
        self._publishes = True
        """False once this process could not publish."""
        self._warned = False
        self._follows_forks = False
        self._own = 1.0
        self._own_live_s = _NEVER
        self._reading = threading.Lock()
        self._others = 1.0
        self._next_read_s = _NEVER

    def limit(self, limit_s: float) -> LatencyMonitor:
        """Return a monitor for the live requests of one model, whose p99 must not exceed the limit."""
        share = BackgroundShare(limit_s)
        with self._lock:
            self._shares.append(share)
        return LatencyMonitor(self, share)

    def record(self, share: BackgroundShare, latency_s: float) -> None:
        """Record a live request for a monitor. The first one creates the file."""
        with self._lock:
            if share not in self._shares:
                return
            now = self._clock.now()
            share.record(latency_s, now)
            if self._file is None and self._publishes:
                self._file = self._publish()
            self._update(now)

    def remove(self, share: BackgroundShare) -> None:
        """Withdraw the share of a monitor. The last one takes the file with it."""
        with self._lock:
            if share not in self._shares:
                return
            self._shares.remove(share)
            if not self._shares and self._file is not None:
                self._file.withdraw()
                self._file = None
            self._update(self._clock.now())

    def share(self) -> float:
        """Return the share of its time that background work of this process may use.

        It is the smallest one of this process's monitors and of all other living processes.
        """
        now = self._clock.now()
        if now >= self._next_read_s:
            with self._reading:
                if now >= self._next_read_s:
                    self._others = self._read_others(now)
                    self._next_read_s = now + READ_S
        return min(self._others, current_share(self._own, self._own_live_s, now))

    def _update(self, now: float) -> None:
        self._own = min((share.value(now) for share in self._shares), default=1.0)
        self._own_live_s = max((share.live_s for share in self._shares), default=_NEVER)
        if self._file is not None:
            self._file.write(self._own, self._own_live_s)

    def _publish(self) -> _ShareFile | None:
        try:
            file = _ShareFile(self._folder or shared_folder(os.environ))
        except OSError as error:
            self._publishes = False
            self._warn(error)
            return None
        if not self._follows_forks:
            # The system keeps the callback for ever, so it must not keep this object.
            method = weakref.WeakMethod(self._start_anew)
            os.register_at_fork(after_in_child=lambda: (call := method()) and call())
            self._follows_forks = True
        return file

    def _start_anew(self) -> None:
        """Leave the file to the parent, in a forked child: its lock must end with the parent."""
        self._lock, self._reading = threading.Lock(), threading.Lock()
        if self._file is not None:
            self._file.leave()
            self._file = None

    def _read_others(self, now: float) -> float:
        try:
            folder = self._folder or shared_folder(os.environ)
            _check_private(folder)
            own = self._file
            paths = [
                path for path in folder.iterdir() if path.suffix == SUFFIX and not (own and path == own.path)
            ]
            return min((_read_share(path, now) for path in paths), default=1.0)
        except FileNotFoundError:
            return 1.0
        except OSError as error:
            self._warn(error)
            return 1.0

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("Live traffic is not shared with other processes of this machine: %s", error)
