"""One operating-system process, with all that it starts: bounded, watched, killed whole, and its end explained."""

import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

from headrace.core.errors import DeathCause, ModelLoadError
from headrace.engine.confinement import Confinement
from headrace.engine.death import Death, Killing, death_of
from headrace.engine.environment import passed
from headrace.engine.settings import ServeSettings


class ContainedProcess:
    """Starts a command in a session of its own; any thread may ask, `release` is called once, at the end.

    Raises ModelLoadError when it cannot be started, ConfigError for bounds that cannot be held here.
    """

    def __init__(
        self, command: Sequence[str], fds: Sequence[int], model: str, settings: ServeSettings
    ) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        """Held where it is signalled and where it is reaped: from then on its number is anybody's."""
        self._killing: Killing | None = None
        self._death: Death | None = None
        self._confinement = Confinement(model, settings)
        try:
            # Of its own session: a Ctrl-C at the terminal is for the process that serves, which then closes this one.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
                env=passed(os.environ, settings.environ_pass),
            )
        except OSError as error:
            self._confinement.remove()
            raise ModelLoadError(model, f"its process cannot be started: {error}") from error
        try:
            self.pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._process.kill()
            self._process.wait()
            self._confinement.remove()
            raise ModelLoadError(model, f"its process cannot be watched: {error}") from error
        try:
            with suppress(ProcessLookupError):
                self._confinement.hold(self._process.pid)
        except BaseException:
            self.kill("killed", "it could not be bounded")
            self.wait(None)
            self.release()
            raise

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def kill(self, cause: DeathCause, why: str) -> None:
        """Kill it, with its group, at once, for a reason that `death` tells; nothing when it has ended already."""
        with self._guard:
            if self._reaped or self._ended(0.0):
                return
            self._killing = self._killing or Killing(cause, why)
            self._signal_all()

    def terminate(self) -> None:
        """Ask it to end."""
        with self._guard:
            if not self._reaped:
                os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for it to have ended, and for all that it started; whether it has."""
        if not self._reaped and not self._ended(timeout_s):
            return False
        with self._guard:
            if not self._reaped:
                self._reap()
        return True

    def death(self) -> Death:
        """How it ended, once it has."""
        assert self._death is not None, "wait() comes first"
        return self._death

    def release(self) -> None:
        """Forget it; it has ended, and nobody asks any more."""
        self._confinement.remove()
        os.close(self.pidfd)

    @property
    def _reaped(self) -> bool:
        return self._death is not None

    def _ended(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def _signal_all(self) -> None:
        # While it is not reaped, its number is its group's and nobody else's.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._confinement.kill()

    def _reap(self) -> None:
        """What it started goes with it, then its number is given back."""
        memory = self._confinement.out_of_memory()
        self._signal_all()
        self._confinement.end_session(self.pid)
        status = self._process.wait()
        self._death = death_of(status, self._killing, memory, self._settings.memory_bytes_max)
