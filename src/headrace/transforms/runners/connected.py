"""A worker process's life: takes orders over a connection until it is told to stop.

The other end is `headrace.transforms.runners.processes`. A worker whose run has gone ends at once: what it was doing can be resumed.
"""

import os
import threading
from multiprocessing.connection import Connection
from typing import Final

from headrace.transforms.runners.messages import Assignment, Message, receive, send
from headrace.transforms.runners.worker import Worker

ORPHANED: Final = 3
"""The exit status of a worker whose run has gone."""


class ConnectedWorker:
    """What a worker is told, and tells, over `connection`: its run has the other end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._orders: list[Assignment | None] = []
        self._ordered = threading.Condition()

    def tell(self, message: Message) -> None:
        """Send a message to the run. Ends the process when that has gone."""
        try:
            send(self._connection, message)
        except OSError:
            os._exit(ORPHANED)

    def run(self, worker: Worker) -> None:
        """Say that the model is loaded; then have the worker do each assignment, until there is no more."""
        worker.tell_ready()
        threading.Thread(target=self._listen, args=[worker], name="headrace-orders", daemon=True).start()
        while (assignment := self._next()) is not None:
            worker.do(assignment)
        worker.tell()

    def _listen(self, worker: Worker) -> None:
        """Its own thread, since a worker that works must still hear that it should stop."""
        while True:
            try:
                message = receive(self._connection)
            except (EOFError, OSError):
                os._exit(ORPHANED)
            if "drain" in message:
                worker.drain()
                continue
            order = None if "stop" in message else Assignment.from_json(message["do"])
            with self._ordered:
                self._orders.append(order)
                self._ordered.notify()
            if order is None:
                return

    def _next(self) -> Assignment | None:
        with self._ordered:
            self._ordered.wait_for(lambda: self._orders)
            return self._orders.pop(0)
