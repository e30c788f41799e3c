"""Explanation of how a process ended: a cause for programs and a sentence for people. Pure."""

import signal
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from headrace.core.errors import DeathCause, InstanceLostError

_CRASH_SIGNALS: Final = {
    signal.SIGSEGV: "invalid memory access",
    signal.SIGBUS: "access to memory that does not exist",
    signal.SIGABRT: "abort, by compiled code that found an internal error or no memory",
    signal.SIGFPE: "invalid arithmetic",
    signal.SIGILL: "an instruction that this processor does not support",
    signal.SIGTRAP: "a trap instruction",
    signal.SIGSYS: "a forbidden system call",
}
_MEMORY_ADVICE: Final = "reduce max_batch_rows or the number of instances"


class OutOfMemory(Enum):
    """The likelihood that the kernel killed the process for lack of memory."""

    NO = auto()
    UNKNOWN = auto()
    PROBABLY = auto()
    YES = auto()


@dataclass(frozen=True, slots=True)
class KillReason:
    """The reason for which the serving process killed a process."""

    cause: DeathCause
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The end of a process.

    `exit_code` is set if it exited, `signal` (a name) if a signal ended it.
    """

    cause: DeathCause
    reason: str
    exit_code: int | None = None
    signal: str | None = None

    def error(self, model: str) -> InstanceLostError:
        """Return the error to report to the clients of the process."""
        return InstanceLostError(
            model, self.reason, cause=self.cause, exit_code=self.exit_code, signal=self.signal
        )


def explain_exit(
    status: int, kill_reason: KillReason | None, memory: OutOfMemory, memory_bytes_max: int | None = None
) -> ProcessExit:
    """Return the explanation of an exit status (below 0: minus the signal number).

    `kill_reason` counts only if the process died of SIGKILL: it may have ended just before the
    kill.
    """
    if status >= 0:
        return ProcessExit(
            "exit",
            f"its process exited with status {status}: the model or a library called exit; "
            "see its standard error",
            exit_code=status,
        )
    number = -status
    name = _signal_name(number)
    if number == signal.SIGKILL and kill_reason is not None:
        return ProcessExit(kill_reason.cause, kill_reason.reason, signal=name)
    if number == signal.SIGKILL and memory in (OutOfMemory.YES, OutOfMemory.PROBABLY):
        return ProcessExit("oom", _out_of_memory(memory, name, memory_bytes_max), signal=name)
    if number in _CRASH_SIGNALS:
        explanation = _CRASH_SIGNALS[signal.Signals(number)]
        return ProcessExit(
            "crash",
            f"its process crashed ({name}): {explanation}; probably in compiled code, see its standard error",
            signal=name,
        )
    origin = "from outside"
    if number == signal.SIGKILL and memory is OutOfMemory.UNKNOWN:
        origin = f"from outside, or by the kernel for lack of memory: then {_MEMORY_ADVICE}"
    return ProcessExit("killed", f"its process was killed ({name}) {origin}", signal=name)


def _out_of_memory(memory: OutOfMemory, name: str, bytes_max: int | None) -> str:
    bound = "" if bytes_max is None else f" (memory_bytes_max: {bytes_max} bytes)"
    probably = "" if memory is OutOfMemory.YES else "probably "
    return (
        f"its process was killed ({name}), {probably}by the kernel for lack of memory{bound}: "
        f"{_MEMORY_ADVICE}"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
