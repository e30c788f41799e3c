"""What bounds the process of an instance, and all that it starts: its memory, its number, and that nothing stays behind.

By a control group of its own where one can be made, else by the limits that a process inherits.
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
from headrace.engine.cgroup import Group, counted, made_in, own_groups
from headrace.engine.death import OutOfMemory
from headrace.engine.settings import ServeSettings

_NEAR: Final = 0.95
"""From this share of its memory's bound on, a process that was killed was probably killed for it."""
_ROUNDS_MAX: Final = 100
_DIE_S: Final = 1.0
"""How long what was killed is waited for, in each round."""

_log = logging.getLogger("headrace.engine")


class Confinement:
    """The bounds of one process. Made before it starts; `hold` it, and `remove` when it has ended.

    Raises ConfigError for a bound that cannot be held here.
    """

    def __init__(self, model: str, settings: ServeSettings) -> None:
        self._model = model
        self._memory_bytes_max = settings.memory_bytes_max
        self._processes_max = settings.processes_max
        self._inherited = own_groups()
        self._oom_kills = counted(self._inherited)
        bounds = {"memory": settings.memory_bytes_max, "pids": settings.processes_max}
        self._groups = self._made({name: most for name, most in bounds.items() if most is not None})
        """By what they bound."""
        self._refuse_what_binds_nobody()

    def _made(self, bounds: Mapping[str, int]) -> dict[str, Group]:
        """Groups that hold these bounds, as far as there can be any. Bounds in one place have one group."""
        made: dict[str, Group] = {}
        places = {
            own: [c for c in bounds if self._inherited.get(c) == own] for own in self._inherited.values()
        }
        for own, controllers in places.items():
            if controllers and (group := self._group(own, {c: bounds[c] for c in controllers})):
                made |= dict.fromkeys(controllers, group)
        return made

    def _group(self, own: Group, bounds: Mapping[str, int]) -> Group | None:
        group: Group | None = None
        try:
            group = made_in(own, bounds)
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

    def _refuse_what_binds_nobody(self) -> None:
        if self._processes_max is not None and "pids" not in self._groups and os.geteuid() == 0:
            self.remove()
            raise ConfigError(
                f"model {self._model}: processes_max cannot be held here: no control group for it can be made, and root is "
                "bound by no other limit; run as another user, give headrace a pids control group, or leave it out"
            )

    def hold(self, pid: int) -> None:
        """Bound this process from now on. Raises ConfigError for what cannot be held, ProcessLookupError when it is gone."""
        for group in set(self._groups.values()):
            try:
                group.add(pid)
            except ProcessLookupError:
                raise
            except OSError as error:
                _log.debug("a control group is of no use: %s", error, extra={"model": self._model})
                group.remove()
                self._groups = {c: g for c, g in self._groups.items() if g != group}
        self._refuse_what_binds_nobody()
        if self._memory_bytes_max is not None and "memory" not in self._groups:
            _bound(pid, resource.RLIMIT_DATA, self._memory_bytes_max)
        if self._processes_max is not None and "pids" not in self._groups:
            # This one counts all that the user runs.
            _bound(pid, resource.RLIMIT_NPROC, threads_of(os.geteuid()) + self._processes_max)

    def out_of_memory(self) -> OutOfMemory:
        """Whether the kernel killed something of it for want of memory. Asked once it has died."""
        group = self._groups.get("memory")
        if group is not None:
            if group.oom_kills():
                return OutOfMemory.YES
            peak = group.memory_peak_bytes()
            near = peak is not None and peak >= _NEAR * (self._memory_bytes_max or 0)
            return OutOfMemory.PROBABLY if near else OutOfMemory.NO
        now = counted(self._inherited)
        if now is None or self._oom_kills is None:
            return OutOfMemory.UNKNOWN
        # Others are counted there too.
        return OutOfMemory.PROBABLY if now > self._oom_kills else OutOfMemory.NO

    def kill(self) -> None:
        """Kill all that is in its groups, wherever it went."""
        for group in set(self._groups.values()):
            group.kill()

    def end_session(self, leader: int) -> None:
        """Kill what the process `leader`, which has ended and is not reaped yet, has left; waits until it is gone."""
        self.kill()
        _end(lambda: [pid for pid in in_session(leader) if pid != leader], self._model)
        for group in set(self._groups.values()):
            _end(lambda group=group: [pid for pid in group.members() if pid != leader], self._model)

    def remove(self) -> None:
        """Nothing is in it any more."""
        for group in set(self._groups.values()):
            try:
                group.remove()
            except OSError as error:
                _log.warning("a control group stays: %s", error, extra={"model": self._model})
        self._groups = {}


def _bound(pid: int, which: int, most: int) -> None:
    _, hard = resource.prlimit(pid, which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.prlimit(pid, which, (most, most))


def _end(members: Callable[[], Collection[int]], model: str) -> None:
    """Kill processes until there are none; each is looked at again once it is held, since numbers are used again."""
    for _ in range(_ROUNDS_MAX):
        held: dict[int, int] = {}
        for pid in members():
            with suppress(OSError):
                held[pid] = os.pidfd_open(pid)
        if not held:
            return
        try:
            ours = set(members())
            for pid in [pid for pid in held if pid in ours]:
                with suppress(OSError):
                    signal.pidfd_send_signal(held[pid], signal.SIGKILL)
                poll = select.poll()
                poll.register(held[pid], select.POLLIN)
                poll.poll(_DIE_S * 1000)
        finally:
            for fd in held.values():
                os.close(fd)
    _log.warning("processes that a model started do not end", extra={"model": model})


def in_session(leader: int) -> list[int]:
    """Processes that live in the session of this one."""
    found: list[int] = []
    for pid, fields in _all():
        # State, parent, group, session.
        if fields[0] not in "ZX" and int(fields[3]) == leader:
            found.append(pid)
    return found


def threads_of(user: int) -> int:
    """How many threads a user has."""
    count = 0
    for pid, fields in _all():
        with suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid == user:
                count += int(fields[17])
    return count


def _all() -> list[tuple[int, list[str]]]:
    found: list[tuple[int, list[str]]] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            text = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
            # A program's name may hold anything, also a parenthesis.
            found.append((int(entry.name), text.rpartition(")")[2].split()))
    return found
