"""A kind of job whose attempts wait until the test ends them."""

import queue
import threading
from dataclasses import dataclass, field

from headrace.jobs.job import ResultRef
from headrace.jobs.kinds import Attempt

WAIT_S = 20.0


@dataclass
class Running:
    """A running attempt. The test ends the attempt with `finish` or `fail`."""

    attempt: Attempt
    _done: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None

    @property
    def id(self) -> str:
        """Return the id of the attempt's job."""
        return self.attempt.job.id

    def finish(self) -> None:
        """Let the attempt complete."""
        self._done.set()

    def fail(self, error: BaseException) -> None:
        """Let the attempt raise the error."""
        self._error = error
        self._done.set()

    def wait(self) -> ResultRef:
        """Wait, in the attempt's thread, until the test or a stop ends the attempt."""
        self.attempt.add_stop_callback(self._done.set)
        assert self._done.wait(WAIT_S), "the test never ended this attempt"
        if self._error is not None:
            raise self._error
        self.attempt.raise_if_stopped()
        return ResultRef(f"memory://store/{self.id}/{self.attempt.job.lease}", 2)


class ScriptedKind:
    """A `KindRunner` whose attempts the test ends.

    With `at_once`, all attempts complete by themselves.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once
        self.began: queue.Queue[Running] = queue.Queue()
        self.discarded: queue.Queue[str] = queue.Queue()

    def run(self, attempt: Attempt) -> ResultRef:
        running = Running(attempt)
        if self.at_once:
            running.finish()
        self.began.put(running)
        return running.wait()

    def discard(self, attempt: Attempt) -> None:
        self.discarded.put(f"{attempt.job.id}/{attempt.job.lease}")

    def next(self) -> Running:
        """Return the next attempt that began. Raise `queue.Empty` if none begins."""
        return self.began.get(timeout=WAIT_S)

    def none_began(self) -> bool:
        """Return True if the test has seen every attempt that began."""
        return self.began.empty()
