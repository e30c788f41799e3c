"""How a process ended: what is known of it, in one word for programs and in plain words for people. Pure."""

import signal
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from headrace.core.errors import DeathCause, InstanceLostError

_CRASHES: Final = {
    signal.SIGSEGV: "it touched memory that is not its own",
    signal.SIGBUS: "it touched memory that is not there",
    signal.SIGABRT: "it gave itself up (abort), as compiled code does that finds itself broken or cannot have memory",
    signal.SIGFPE: "it computed what has no result",
    signal.SIGILL: "it met an instruction that this processor does not have",
    signal.SIGTRAP: "it met a trap",
    signal.SIGSYS: "it made a system call that is forbidden",
}
_LESS: Final = "fewer rows (max_batch_rows) or fewer instances need less"


class OutOfMemory(Enum):
    """Whether the kernel killed it for want of memory."""

    NO = auto()
    UNKNOWN = auto()
    PROBABLY = auto()
    YES = auto()


@dataclass(frozen=True, slots=True)
class Killing:
    """Why this side killed a process."""

    cause: DeathCause
    why: str


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process. `exit_code` is there when it ended by itself, `signal` (a name) when one ended it."""

    cause: DeathCause
    why: str
    exit_code: int | None = None
    signal: str | None = None

    def error(self, model: str) -> InstanceLostError:
        """What those are told who had asked it."""
        return InstanceLostError(
            model, self.why, cause=self.cause, exit_code=self.exit_code, signal=self.signal
        )


def death_of(
    status: int, killing: Killing | None, memory: OutOfMemory, memory_bytes_max: int | None = None
) -> Death:
    """The end of a process with this status (below 0: minus the signal), which this side killed, or did not.

    It was killed by this side only if that is what it died of: it may have ended just before.
    """
    if status >= 0:
        return Death(
            "exit",
            f"its process ended by itself, with status {status}: it called exit, or something in it did; "
            "its standard error may tell",
            exit_code=status,
        )
    number = -status
    name = _name(number)
    if number == signal.SIGKILL and killing is not None:
        return Death(killing.cause, killing.why, signal=name)
    if number == signal.SIGKILL and memory in (OutOfMemory.YES, OutOfMemory.PROBABLY):
        return Death("oom", _out_of_memory(memory, name, memory_bytes_max), signal=name)
    if number in _CRASHES:
        what = _CRASHES[signal.Signals(number)]
        return Death(
            "crash",
            f"its process crashed ({name}): {what}; compiled code most likely, its standard error may tell",
            signal=name,
        )
    who = "by somebody else"
    if number == signal.SIGKILL and memory is OutOfMemory.UNKNOWN:
        who = f"by somebody else, or by the system since memory ran out: then {_LESS}"
    return Death("killed", f"its process was killed ({name}) {who}", signal=name)


def _out_of_memory(memory: OutOfMemory, name: str, bytes_max: int | None) -> str:
    bound = "" if bytes_max is None else f", of which it may have {bytes_max} bytes (memory_bytes_max)"
    probably = "" if memory is OutOfMemory.YES else "probably "
    return f"its process was killed ({name}), {probably}by the system since memory ran out{bound}: {_LESS}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have numbers alone
        return f"signal {number}"
