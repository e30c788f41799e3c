"""A worker inside somebody else's engine: does assignments as the engine brings them, and writes letters.

The other end is `headrace.transforms.runners.beam`. One process has one seat, however many threads its engine has there: a model
is loaded once in it, and asked by one task at a time.
"""

import os
import socket
import threading
import uuid
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.transforms.runners.mailbox import Letter, Mailbox
from headrace.transforms.runners.messages import Assignment, Message
from headrace.transforms.runners.worker import Opener, Worker

WRITTEN_EVERY_S: Final = 2.0
"""How often a worker that works tells of it, and looks whether it should stop."""


class Seat:
    """One process's worker. Safe from any thread: assignments are done one after the other.

    Args:
        opener: Makes the worker.
        pipeline: What it works for.
        region: Where it is.
        clock: What `WRITTEN_EVERY_S` is measured by.
    """

    def __init__(
        self, opener: Opener, pipeline: str, region: str | None = None, clock: Clock | None = None
    ) -> None:
        self._opener = opener
        self._region = region
        self._clock = clock or SystemClock()
        self._stack = ExitStack()
        self._worker: Worker | None = None
        self._mailbox: Mailbox | None = None
        self._letter = Letter(uuid.uuid4().hex[:12], pipeline, socket.gethostname(), os.getpid())
        self._written_s = self._clock.now()
        self._one_at_a_time = threading.Lock()

    def do(self, assignment: Assignment) -> Letter:
        """Do what of an assignment is not done yet; what this worker has come to. Raises what loading the model raises.

        What breaks the assignment is told in a letter, for the run to raise: an engine would do it again.
        """
        with self._one_at_a_time:
            worker = self._opened()
            assert self._mailbox is not None, "opened"
            left = tuple(worker.undone(assignment))
            if not left or self._mailbox.draining():
                return self._letter
            self._letter = replace(self._letter, doing=left)
            self._write()
            worker.do(replace(assignment, tasks=left))
            self._write()
            return self._letter

    def _opened(self) -> Worker:
        if self._worker is None:
            self._worker = self._stack.enter_context(self._opener(self._hear, self._region))
            self._mailbox = Mailbox(self._worker.ledger)
        return self._worker

    def close(self) -> None:
        """Let go of the model, once what is under way is done. Closing twice does nothing."""
        with self._one_at_a_time:
            self._stack.close()
            self._worker = None

    def _hear(self, message: Message) -> None:
        self._letter = self._letter.heard(message)
        if self._clock.now() - self._written_s >= WRITTEN_EVERY_S:
            self._write()

    def _write(self) -> None:
        assert self._mailbox is not None, "opened"
        assert self._worker is not None, "opened"
        self._written_s = self._clock.now()
        self._mailbox.write(self._letter)
        if self._mailbox.draining():
            self._worker.drain()
