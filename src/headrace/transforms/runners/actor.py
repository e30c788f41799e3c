"""A worker that is called: its methods are told what to do, and one of them tells all that there is to tell.

The other end is `headrace.transforms.runners.ray`, of which nothing is needed here.
"""

import os
import queue
from collections.abc import Callable, Iterator
from typing import Final

from headrace.transforms.runners.connected import ORPHANED
from headrace.transforms.runners.messages import Assignment, Message, error_json
from headrace.transforms.runners.worker import Opener, Worker

_MESSAGES_MAX: Final = 1_000
LOOKED_EVERY_S: Final = 5.0
"""So often an idle worker looks whether its engine is still there."""


class Actor:
    """A worker, and what it is told by calls from other threads. `messages` runs as long as it lives.

    Args:
        opener: Makes the worker.
        region: Where it is, unless the place says so.
        where: Tells the place's name, and its region if it has one; asked here, not where this is made.
    """

    def __init__(
        self, opener: Opener, region: str | None, where: Callable[[], tuple[str, str | None]]
    ) -> None:
        self._opener, self._region, self._where = opener, region, where
        self._messages = queue.Queue[Message | None](_MESSAGES_MAX)
        self._worker: Worker | None = None
        self._doing = False
        self._parent = os.getppid()

    def messages(self) -> Iterator[list[Message]]:
        """Load the model, and say so; then everything that the worker tells, until it is stopped."""
        place, region = self._where()
        region = region or self._region
        yield [{"node": place, "region": region}]
        try:
            with self._opener(self._messages.put, region) as worker:
                self._worker = worker
                worker.tell_ready()
                yield from self._told()
        except Exception as error:  # noqa: BLE001 - told to the run, which raises it
            yield [{"error": error_json(error)}]

    def _told(self) -> Iterator[list[Message]]:
        """What was told, as much at a time as there is: each time costs the run the same."""
        while (message := self._next()) is not None:
            messages = [message]
            while not self._messages.empty():
                if (more := self._messages.get()) is None:
                    yield messages
                    return
                messages.append(more)
            yield messages

    def _next(self) -> Message | None:
        """The next message. Ends the process when nobody can ask it for anything any more: it holds memory, and devices."""
        while True:
            try:
                return self._messages.get(timeout=LOOKED_EVERY_S)
            except queue.Empty:
                # Who started it has gone, as when an engine on this machine is killed alone; else it would wait for ever.
                if os.getppid() != self._parent and not self._doing:
                    os._exit(ORPHANED)

    def do(self, assignment: Message) -> None:
        """Do an assignment; returns when it is done. All that is to say of it is a message."""
        assert self._worker is not None, "it has said that it is ready"
        self._doing = True
        try:
            self._worker.do(Assignment.from_json(assignment))
        finally:
            self._doing = False

    def drain(self) -> None:
        """See `Worker.drain`; nothing is to be done before the model is loaded."""
        if self._worker is not None:
            self._worker.drain()

    def stop(self) -> None:
        """Let go of the model, and end `messages`; between two assignments."""
        if self._worker is not None:
            self._worker.tell()
        self._messages.put(None)
