"""One operating-system process with all that it starts: limited, watched, killed as a whole, also late.

Its exit is explained by a cause for programs and a sentence for people.
"""

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import DeathCause, InstanceLostError, ModelLoadError
from headrace.engine.process.process_limits import OutOfMemory, ProcessLimits
from headrace.engine.settings import ServeSettings

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


@dataclass(frozen=True, slots=True)
class KillReason:
    """The cause and the reason of a kill by the serving process."""

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


_NEEDED: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "TMPDIR", "TZ"}
)
_NEEDED_PREFIXES: Final = ("LC_", "PYTHON")


def filter_environment(environ: Mapping[str, str], names: Collection[str] | None) -> dict[str, str]:
    """Return the named variables and those that Python needs to start; all if `names` is None."""
    if names is None:
        return dict(environ)
    return {
        name: value
        for name, value in environ.items()
        if name in names or name in _NEEDED or name.startswith(_NEEDED_PREFIXES)
    }


class ContainedProcess:
    """A process in a session of its own. Any thread uses it; `release` is called once, at the end.

    Raises ModelLoadError if the process cannot be started, and ConfigError for limits that cannot
    be enforced here.
    """

    def __init__(
        self, command: Sequence[str], fds: Sequence[int], model: str, settings: ServeSettings
    ) -> None:
        self._settings = settings
        self._reap_lock = threading.Lock()
        """Held while the process is signalled or reaped. Once reaped, its pid may belong to another
        process.
        """
        self._kill_reason: KillReason | None = None
        self._exit_info: ProcessExit | None = None
        self._limits = ProcessLimits(model, settings)
        try:
            # In a session of its own, a Ctrl-C at the terminal reaches only the serving process,
            # which then closes this one.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
                env=filter_environment(os.environ, settings.environ_pass),
            )
        except OSError as error:
            self._limits.remove()
            raise ModelLoadError(model, f"its process cannot be started: {error}") from error
        try:
            self.exit_fd = _open_exit_file(self._process)
        except OSError as error:
            self._process.kill()
            self._process.wait()
            self._limits.remove()
            raise ModelLoadError(model, f"its process cannot be watched: {error}") from error
        try:
            with suppress(ProcessLookupError):
                self._limits.apply(self._process.pid)
        except BaseException:
            self.kill("killed", "its limits could not be applied")
            self.wait(None)
            self.release()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def kill(self, cause: DeathCause, why: str) -> None:
        """Kill the process and its group at once, for a reason in `exit_info`.

        Do nothing after its exit.
        """
        with self._reap_lock:
            if self._reaped or self._has_exited(0.0):
                return
            self._kill_reason = self._kill_reason or KillReason(cause, why)
            self._signal_all()

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        with self._reap_lock, suppress(ProcessLookupError):
            if not self._reaped:
                os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the process, and all that it started, has exited. Return False at the timeout."""
        if not self._reaped and not self._has_exited(timeout_s):
            return False
        with self._reap_lock:
            if not self._reaped:
                self._reap()
        return True

    def exit_info(self) -> ProcessExit:
        """Return how the process ended, after `wait`."""
        assert self._exit_info is not None, "call wait() first"
        return self._exit_info

    def release(self) -> None:
        """Free the file and the limits of a process that has exited."""
        self._limits.remove()
        os.close(self.exit_fd)

    @property
    def _reaped(self) -> bool:
        return self._exit_info is not None

    def _has_exited(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self.exit_fd, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def _signal_all(self) -> None:
        # Until it is reaped, its pid is the id of its group and of no other.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._limits.kill()

    def _reap(self) -> None:
        """Kill what the process started, then reap it."""
        memory = self._limits.out_of_memory()
        self._signal_all()
        self._limits.end_session(self.pid)
        status = self._process.wait()
        self._exit_info = explain_exit(status, self._kill_reason, memory, self._settings.memory_bytes_max)


def _open_exit_file(process: subprocess.Popen[bytes]) -> int:
    """Return a file that becomes readable when the process exits. The caller closes it then."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    # Elsewhere a thread waits. It also reaps the process, so its pid may be given to another process
    # before the rest of its group is killed: unlikely, and accepted outside Linux.
    readable, writable = os.pipe()

    def wait() -> None:
        process.wait()
        os.close(writable)

    threading.Thread(target=wait, name="headrace-exit", daemon=True).start()
    return readable


class KillTimer:
    """A timer thread that calls `expired` once after `grace_s`, unless it is cancelled before.

    `expired` must be short, and must not wait for the caller of `cancel`.
    """

    def __init__(self, clock: Clock, grace_s: float, name: str, expired: Callable[[], None]) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._expired = expired
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._wait, name=name, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop the timer.

        Returns when its thread has ended, so that `expired` is not called afterwards.
        """
        self._cancelled.set()
        self._thread.join()

    def _wait(self) -> None:
        if not self._clock.sleep(self._grace_s, self._cancelled) and not self._cancelled.is_set():
            self._expired()
