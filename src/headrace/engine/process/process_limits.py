"""Limits of the process of an instance and all that it starts: memory, processes, and its clean-up.

Limits are enforced by a control group of its own, if one can be made, else by resource limits.
"""

import logging
import os
import resource
import select
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.core.errors import ConfigError
from headrace.engine.process.control_group import ControlGroup, count_oom_kills, create_group, own_groups
from headrace.engine.process.process_exit import OutOfMemory
from headrace.engine.settings import ServeSettings

_NEAR_LIMIT_SHARE: Final = 0.95
"""Share of the memory limit from which a killed process was probably out of memory."""
_PROC: Final = Path("/proc")
_KILL_ATTEMPTS_MAX: Final = 100
_KILL_WAIT_S: Final = 1.0
"""Seconds to wait for a killed process in each attempt."""

_log = logging.getLogger("headrace.engine")


class ProcessLimits:
    """The limits of one process.

    Made before it starts; `apply` them, and `remove` them after its exit.

    Raises ConfigError for a limit that cannot be enforced here.
    """

    def __init__(self, model: str, settings: ServeSettings) -> None:
        self._model = model
        self._memory_bytes_max = settings.memory_bytes_max
        self._processes_max = settings.processes_max
        self._inherited = own_groups()
        self._oom_kills = count_oom_kills(self._inherited)
        bounds = {"memory": settings.memory_bytes_max, "pids": settings.processes_max}
        self._groups = self._make_groups({name: limit for name, limit in bounds.items() if limit is not None})
        """Control groups by the controller that they limit."""
        self._check_effective()

    def _make_groups(self, bounds: Mapping[str, int]) -> dict[str, ControlGroup]:
        """Return groups that enforce these limits, as far as possible, one group per parent group."""
        groups: dict[str, ControlGroup] = {}
        controllers_by_group = {
            own: [c for c in bounds if self._inherited.get(c) == own] for own in self._inherited.values()
        }
        for own, controllers in controllers_by_group.items():
            if controllers and (group := self._make_group(own, {c: bounds[c] for c in controllers})):
                groups |= dict.fromkeys(controllers, group)
        return groups

    def _make_group(self, own: ControlGroup, bounds: Mapping[str, int]) -> ControlGroup | None:
        group: ControlGroup | None = None
        try:
            group = create_group(own, bounds)
            if "memory" in bounds:
                group.limit_memory(bounds["memory"])
            if "pids" in bounds:
                group.limit_processes(bounds["pids"])
        except OSError as error:
            _log.debug("no control group: %s", error, extra={"model": self._model})
            if group is not None:
                group.remove()
            return None
        return group

    def _check_effective(self) -> None:
        limited = (self._memory_bytes_max, self._processes_max) != (None, None)
        if limited and not self._groups and not hasattr(resource, "prlimit"):
            raise ConfigError(
                f"model {self._model}: memory_bytes_max and processes_max need Linux: leave them out"
            )
        if self._processes_max is not None and "pids" not in self._groups and os.geteuid() == 0:
            self.remove()
            raise ConfigError(
                f"model {self._model}: processes_max cannot be enforced here: no control group can be made "
                "for it, and no other limit binds root; run as another user, give headrace a pids control "
                "group, or leave it out"
            )

    def apply(self, pid: int) -> None:
        """Apply the limits to a process.

        Raises ConfigError for a limit that cannot be enforced, ProcessLookupError if the process is
        gone.
        """
        for group in set(self._groups.values()):
            try:
                group.add(pid)
            except ProcessLookupError:
                raise
            except OSError as error:
                _log.debug("a control group cannot take the process: %s", error, extra={"model": self._model})
                group.remove()
                self._groups = {c: g for c, g in self._groups.items() if g != group}
        self._check_effective()
        if self._memory_bytes_max is not None and "memory" not in self._groups:
            _set_rlimit(pid, resource.RLIMIT_DATA, self._memory_bytes_max)
        if self._processes_max is not None and "pids" not in self._groups:
            # RLIMIT_NPROC counts all processes of the user.
            _set_rlimit(pid, resource.RLIMIT_NPROC, count_threads(os.geteuid()) + self._processes_max)

    def out_of_memory(self) -> OutOfMemory:
        """Return whether the kernel killed the process for lack of memory. Called after its death."""
        group = self._groups.get("memory")
        if group is not None:
            if group.oom_kills():
                return OutOfMemory.YES
            peak = group.memory_peak_bytes()
            near = peak is not None and peak >= _NEAR_LIMIT_SHARE * (self._memory_bytes_max or 0)
            return OutOfMemory.PROBABLY if near else OutOfMemory.NO
        now = count_oom_kills(self._inherited)
        if now is None or self._oom_kills is None:
            return OutOfMemory.UNKNOWN
        # The kernel counts other processes there too.
        return OutOfMemory.PROBABLY if now > self._oom_kills else OutOfMemory.NO

    def kill(self) -> None:
        """Kill all processes in its groups."""
        for group in set(self._groups.values()):
            group.kill()

    def end_session(self, leader: int) -> None:
        """Kill all that the process `leader` has left, and wait until it is gone.

        `leader` has exited and is not reaped yet.
        """
        self.kill()
        _kill_all(lambda: [pid for pid in session_members(leader) if pid != leader], self._model)
        for group in set(self._groups.values()):
            _kill_all(lambda group=group: [pid for pid in group.members() if pid != leader], self._model)

    def remove(self) -> None:
        """Remove its groups, which are empty now."""
        for group in set(self._groups.values()):
            try:
                group.remove()
            except OSError as error:
                _log.warning("a control group cannot be removed: %s", error, extra={"model": self._model})
        self._groups = {}


def _set_rlimit(pid: int, which: int, limit: int) -> None:
    _, hard = resource.prlimit(pid, which)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.prlimit(pid, which, (limit, limit))


def _kill_all(members: Callable[[], Collection[int]], model: str) -> None:
    """Kill processes until there are none.

    Membership is checked again once a pidfd is open, since process ids are reused.
    """
    for _ in range(_KILL_ATTEMPTS_MAX):
        fds: dict[int, int] = {}
        for pid in members():
            with suppress(OSError):
                fds[pid] = os.pidfd_open(pid)
        if not fds:
            return
        try:
            current = set(members())
            for pid in [pid for pid in fds if pid in current]:
                with suppress(OSError):
                    signal.pidfd_send_signal(fds[pid], signal.SIGKILL)
                poll = select.poll()
                poll.register(fds[pid], select.POLLIN)
                poll.poll(_KILL_WAIT_S * 1000)
        finally:
            for fd in fds.values():
                os.close(fd)
    _log.warning("processes that a model started do not exit", extra={"model": model})


def session_members(leader: int) -> list[int]:
    """Return the live processes in the session of `leader`."""
    pids: list[int] = []
    for pid, fields in _process_stats():
        # The fields are state, parent, group, session.
        if fields[0] not in "ZX" and int(fields[3]) == leader:
            pids.append(pid)
    return pids


def count_threads(user: int) -> int:
    """Return the number of threads of a user."""
    count = 0
    for pid, fields in _process_stats():
        with suppress(OSError):
            if (_PROC / str(pid)).stat().st_uid == user:
                count += int(fields[17])
    return count


def _process_stats() -> list[tuple[int, list[str]]]:
    """Return the pids and status fields of all processes; none on systems without ``/proc``."""
    pids: list[tuple[int, list[str]]] = []
    for entry in os.scandir(_PROC) if _PROC.is_dir() else ():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            text = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
            # A program's name may contain anything, even a parenthesis.
            pids.append((int(entry.name), text.rpartition(")")[2].split()))
    return pids
