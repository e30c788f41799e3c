"""Callers' side of a hand-over to instances: what was put, and whether more is taken."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from headrace.core.clock import Clock
from headrace.core.errors import StoppedError
from headrace.engine.ticket import Ticket


class Intake(ABC):
    """Takes tickets from any thread. What is queued, and how, is up to who inherits; all of it under `_lock`.

    `put` blocks while `in_flight_max` of its tickets are unanswered: back-pressure for a caller that has more where
    that came from. `offer` never blocks and says no when too much waits: for callers who can be told.
    """

    def __init__(self, clock: Clock, *, in_flight_max: int) -> None:
        self._clock = clock
        self._in_flight_max = in_flight_max
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        # Apart from the ticket's reply, so that a caller who keeps its future does not keep the request's arrays.
        self._put: dict[Future[Any], Ticket] = {}
        self._cancelled = 0
        self._closed = False
        self._dropped = False
        self._heir: Intake | None = None

    @property
    def dropped(self) -> bool:
        """Whether `drop` was called: nothing further is to be begun."""
        return self._dropped

    @property
    def cancelled(self) -> int:
        """How many tickets that were `put` were cancelled before they began."""
        return self._cancelled

    # Callers

    def put(self, ticket: Ticket, future: Future[Any]) -> None:
        """Queue a ticket, blocking while there is no room; `future` tells when it is answered. StoppedError once closed."""
        with self._lock:
            while len(self._put) >= self._in_flight_max and not self._closed:
                self._answered.wait()
            if self._closed:
                raise StoppedError("it was stopped while this request waited for room")
            self._add(ticket)
            self._put[future] = ticket
        future.add_done_callback(self._done)

    @abstractmethod
    def offer(self, ticket: Ticket) -> bool:
        """Queue a ticket if there is room; whether there was. Raises StoppedError once closed."""

    def withdraw(self, ticket: Ticket) -> bool:
        """Nobody waits for this ticket any more; whether it still waited. One that has ended stays as it is."""
        with self._lock:
            if ticket.ended:
                return False
            ticket.cancelled = True
            return self._remove(ticket)

    def abandon(self, future: Future[Any]) -> Ticket | None:
        """As `withdraw`, for the ticket that was put with this future; None when it has ended, or was withdrawn before."""
        with self._lock:
            ticket = self._put.get(future)
            if ticket is None or ticket.ended or ticket.cancelled:
                return None
            ticket.cancelled = True
            self._remove(ticket)
            return ticket

    def settle(self, tickets: Iterable[Ticket]) -> None:
        """These have their answers: those that were not withdrawn before have `ended`, and can be withdrawn no more."""
        with self._lock:
            for ticket in tickets:
                ticket.ended = not ticket.cancelled

    # Life

    def close(self) -> None:
        """Take no more; what waits can still be taken."""
        with self._lock:
            self._close()
            heir = self._heir
        if heir is not None:
            heir.close()

    def drop(self) -> list[Ticket]:
        """Close, and give back what waits, for its caller to fail."""
        with self._lock:
            self._dropped = True
            self._close()
            waiting, heir = self._drain(), self._heir
        return waiting if heir is None else waiting + heir.drop()

    def hand_over(self, heir: "Intake") -> None:
        """Before anything was put: `heir` takes its place, and is closed and dropped with it, also when that has happened already."""
        with self._lock:
            self._heir = heir
            closed, dropped = self._closed, self._dropped
        if dropped:
            heir.drop()
        elif closed:
            heir.close()

    @abstractmethod
    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """What a call may hold and how long it may wait for company, once the model is loaded."""

    @abstractmethod
    def waiting(self) -> tuple[int, int, float, int]:
        """Requests and rows that wait, how long the oldest has, in seconds, and requests in calls."""

    # Under the lock

    @abstractmethod
    def _add(self, ticket: Ticket) -> None:
        """Queue it."""

    @abstractmethod
    def _remove(self, ticket: Ticket) -> bool:
        """Take it out, wherever it is; whether it had not begun."""

    @abstractmethod
    def _drain(self) -> list[Ticket]:
        """Take everything out."""

    @abstractmethod
    def _wake_all(self) -> None:
        """Let whoever takes look at what has become of this."""

    def _close(self) -> None:
        self._closed = True
        self._answered.notify_all()
        self._wake_all()

    def _done(self, future: Future[Any]) -> None:
        """A ticket that was put is answered or cancelled; called once for each, from any thread."""
        left = False
        with self._lock:
            ticket = self._put.pop(future, None)
            self._answered.notify()
            if ticket is not None and future.cancelled():
                ticket.cancelled = True
                self._cancelled += 1
                left = self._remove(ticket)
        if left:
            # Whoever waits for several futures hears of a cancelled one only like this.
            future.set_running_or_notify_cancel()
