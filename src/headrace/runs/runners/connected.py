"""Run a worker process that gets its orders over a connection.

The other end is `headrace.runs.runners.processes`. A worker whose run is gone ends at once:
its work can be resumed.
"""

import os
import threading
from multiprocessing.connection import Connection
from typing import Final

from headrace.runs.runners.messages import Assignment, Message, receive, send
from headrace.runs.runners.worker import TaskWorker

ORPHANED: Final = 3
"""The exit status of a worker whose run is gone."""


class ConnectedWorker:
    """The worker's end of the connection to its run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._orders: list[Assignment | None] = []
        self._ordered = threading.Condition()

    def send(self, message: Message) -> None:
        """Send a message to the run. Ends the process if the run is gone."""
        try:
            send(self._connection, message)
        except OSError:
            os._exit(ORPHANED)

    def run(self, worker: TaskWorker) -> None:
        """Report that the model is loaded, then run each assignment until the run stops the worker."""
        worker.send_ready()
        threading.Thread(target=self._listen, args=[worker], name="headrace-orders", daemon=True).start()
        while (assignment := self._next()) is not None:
            worker.do(assignment)
        worker.send_counters()

    def _listen(self, worker: TaskWorker) -> None:
        """Receive orders in a thread of their own, so that a busy worker notices a drain."""
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
