"""Hand-over of requests from callers to instances: one queue, bounded by the requests that are unanswered.

Arrives: requests, from any thread. Leaves: tickets, to whichever instance is idle first.
"""

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from headrace.core.errors import StoppedError
from headrace.core.tensor import InferRequest, InferResponse


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request with its number of rows, when it was asked (the engine's clock), and its caller's future.

    Apart from the future, so that a caller who keeps that does not keep the request's arrays alive.
    """

    request: InferRequest
    rows: int
    asked_s: float
    future: Future[InferResponse]


class Channel:
    """Takes tickets in order. At most `in_flight_max` of them are unanswered; `put` blocks beyond.

    A ticket counts until its future is done, however it ends. One that is cancelled while it waits leaves the
    queue at once. Two conditions on one lock, so that a hand-over wakes one thread and not all.
    """

    def __init__(self, in_flight_max: int) -> None:
        self._in_flight_max = in_flight_max
        self._lock = threading.Lock()
        self._asked = threading.Condition(self._lock)
        self._answered = threading.Condition(self._lock)
        self._queue: deque[Ticket] = deque()
        self._in_flight = 0
        self._closed = False
        self._dropped = False

    @property
    def dropped(self) -> bool:
        """Whether `drop` was called: nothing further is to be begun."""
        return self._dropped

    def put(self, ticket: Ticket) -> None:
        """Queue a ticket, blocking while there is no room. Raises StoppedError once closed."""
        ticket.future.add_done_callback(self._done)
        with self._lock:
            while self._in_flight >= self._in_flight_max and not self._closed:
                self._answered.wait()
            if self._closed:
                raise StoppedError("it was stopped while this request waited for room")
            self._in_flight += 1
            self._queue.append(ticket)
            self._asked.notify()

    def take(self) -> Ticket | None:
        """The next ticket, however long it takes; None when closed and nothing waits."""
        with self._lock:
            while not self._queue:
                if self._closed:
                    return None
                self._asked.wait()
            return self._queue.popleft()

    def close(self) -> None:
        """Take no more; what waits can still be taken."""
        with self._lock:
            self._closed = True
            self._asked.notify_all()
            self._answered.notify_all()

    def drop(self) -> list[Ticket]:
        """Close, and give back what waits, for its caller to fail."""
        with self._lock:
            self._dropped = True
            waiting = list(self._queue)
            self._queue.clear()
        self.close()
        return waiting

    def _done(self, future: Future[InferResponse]) -> None:
        """A ticket is answered or cancelled; called once for each that was queued, from any thread."""
        left = False
        with self._lock:
            self._in_flight -= 1
            self._answered.notify()
            if future.cancelled():
                left = self._leave_queue(future)
        if left:
            # Whoever waits for several futures hears of a cancelled one only like this.
            future.set_running_or_notify_cancel()

    def _leave_queue(self, future: Future[InferResponse]) -> bool:
        """Take a cancelled ticket out; False when an instance, or `drop`, has it already."""
        for index, ticket in enumerate(self._queue):
            if ticket.future is future:
                del self._queue[index]
                return True
        return False
