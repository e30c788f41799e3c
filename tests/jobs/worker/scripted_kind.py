"""A kind of job whose attempts do what a test tells them, and wait until it does."""

import queue
import threading
from dataclasses import dataclass, field

from headrace.jobs.attempt import Attempt
from headrace.jobs.job import ResultRef

PATIENCE_S = 20.0


@dataclass
class Running:
    """An attempt under way: the test ends it by `finish` or `fail`."""

    attempt: Attempt
    _done: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None

    @property
    def id(self) -> str:
        """Its job's."""
        return self.attempt.job.id

    def finish(self) -> None:
        """Let it complete."""
        self._done.set()

    def fail(self, error: BaseException) -> None:
        """Let it raise."""
        self._error = error
        self._done.set()

    def wait(self) -> ResultRef:
        """By the attempt's own thread: until the test, or somebody else, ends it."""
        self.attempt.add_stop_callback(self._done.set)
        assert self._done.wait(PATIENCE_S), "the test never ended this attempt"
        if self._error is not None:
            raise self._error
        self.attempt.raise_if_stopped()
        return ResultRef(f"memory://store/{self.id}/{self.attempt.job.lease}", 2)


class ScriptedKind:
    """Implements `KindRunner`. `next` is the next attempt that began; with `at_once` all complete by themselves."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once
        self.began: queue.Queue[Running] = queue.Queue()
        self.discarded: queue.Queue[str] = queue.Queue()

    def run(self, attempt: Attempt) -> ResultRef:
        """See `KindRunner.run`."""
        running = Running(attempt)
        if self.at_once:
            running.finish()
        self.began.put(running)
        return running.wait()

    def discard(self, attempt: Attempt) -> None:
        """See `KindRunner.discard`."""
        self.discarded.put(f"{attempt.job.id}/{attempt.job.lease}")

    def next(self) -> Running:
        """The next attempt that began; raises queue.Empty where none does."""
        return self.began.get(timeout=PATIENCE_S)

    def none_began(self) -> bool:
        """Whether no attempt has begun that the test has not seen."""
        return self.began.empty()
