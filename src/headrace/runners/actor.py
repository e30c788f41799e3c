"""A transform worker as a remote actor: calls give it assignments, and one call streams its messages.

The caller is `headrace.runners.ray`; this module does not import Ray.
"""

import os
import queue
from collections.abc import Callable, Iterator
from typing import Final

from headrace.runners.messages import Assignment, Message, error_to_json
from headrace.runners.processes import ORPHANED
from headrace.runners.worker import Opener, TaskWorker

_MESSAGES_MAX: Final = 1_000
PARENT_CHECK_INTERVAL_S: Final = 5.0
"""The interval in which an idle worker checks that its engine still exists."""


class Actor:
    """A worker that is driven by calls from other threads.

    `messages` runs as long as the worker does.

    Args:
        opener: Opens the worker.
        region: The region of the worker, unless its location declares one.
        locate: Returns the name and region of the worker's location. Called in the worker's process.
    """

    def __init__(
        self, opener: Opener, region: str | None, locate: Callable[[], tuple[str, str | None]]
    ) -> None:
        self._opener, self._region, self._locate = opener, region, locate
        self._messages = queue.Queue[Message | None](_MESSAGES_MAX)
        self._worker: TaskWorker | None = None
        self._working = False
        self._parent = os.getppid()

    def messages(self) -> Iterator[list[Message]]:
        """Load the model; yield the worker's messages until `stop`."""
        place, region = self._locate()
        region = region or self._region
        yield [{"node": place, "region": region}]
        try:
            with self._opener(self._messages.put, region) as worker:
                self._worker = worker
                worker.send_ready()
                yield from self._batches()
        except Exception as error:  # noqa: BLE001 - sent to the run, which raises it
            yield [{"error": error_to_json(error)}]

    def _batches(self) -> Iterator[list[Message]]:
        """Yield the pending messages together: each batch has the same cost for the run."""
        while (message := self._next()) is not None:
            messages = [message]
            while not self._messages.empty():
                if (more := self._messages.get()) is None:
                    yield messages
                    return
                messages.append(more)
            yield messages

    def _next(self) -> Message | None:
        """Return the next message. End the process if the engine that started it is gone.

        An idle orphan would occupy memory and devices.
        """
        while True:
            try:
                return self._messages.get(timeout=PARENT_CHECK_INTERVAL_S)
            except queue.Empty:
                # The engine was killed alone: without this check the worker would wait forever.
                if os.getppid() != self._parent and not self._working:
                    os._exit(ORPHANED)

    def do(self, assignment: Message) -> None:
        """Run an assignment to its end. Its results are messages."""
        assert self._worker is not None, "it has said that it is ready"
        self._working = True
        try:
            self._worker.do(Assignment.from_json(assignment))
        finally:
            self._working = False

    def drain(self) -> None:
        """Drain the worker; do nothing before the model is loaded."""
        if self._worker is not None:
            self._worker.drain()

    def stop(self) -> None:
        """Unload the model and end `messages`. Called between two assignments."""
        if self._worker is not None:
            self._worker.send_counters()
        self._messages.put(None)
