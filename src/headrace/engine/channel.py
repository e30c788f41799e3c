"""Hand-over of requests from callers to instances: one bounded queue, whose batches close by a pure rule.

Arrives: tickets, from any thread. Leaves: batches of tickets, to whichever instance is idle.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Protocol

from headrace.batching.adaptive import AdaptiveBatch, AdaptiveBatcher, LookAgain
from headrace.core.clock import Clock
from headrace.core.errors import StoppedError
from headrace.engine.ticket import Ticket

Work = AdaptiveBatch[Ticket]


class Taker(Protocol):
    """An instance that takes work; `wake` is called, from any thread, when it should `poll` again."""

    def wake(self) -> None:
        """Poll soon."""
        ...


class ThreadTaker:
    """A taker that blocks its own thread."""

    def __init__(self) -> None:
        # A bare lock: what threading.Event is made of, without the layers around it.
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._guard = threading.Lock()
        self._set = False

    def wake(self) -> None:
        """See `Taker`; several wakings before a `wait` are one."""
        with self._guard:
            if not self._set:
                self._set = True
                self._asleep.release()

    def wait(self, timeout_s: float | None) -> None:
        """Until woken, or the time is over."""
        self._asleep.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0))
        with self._guard:
            if self._set:
                self._set = False
                # Woken between the time-out and here: the lock is free once too often.
                self._asleep.acquire(blocking=False)


class Channel:
    """Takes tickets, gives batches. Bounded in two ways, by who puts.

    `put` blocks while `in_flight_max` of its tickets are unanswered: back-pressure for a caller that has more where
    that came from. `offer` never blocks and says no when `queue_rows_max` rows wait, or as many requests of no rows: for
    callers who can be told. A ticket that is withdrawn while it waits leaves the queue at once.
    """

    def __init__(
        self, batcher: AdaptiveBatcher[Ticket], clock: Clock, *, in_flight_max: int, queue_rows_max: int
    ) -> None:
        self._batcher = batcher
        self._clock = clock
        self._in_flight_max = in_flight_max
        self._queue_rows_max = queue_rows_max
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        # Apart from the ticket's reply, so that a caller who keeps its future does not keep the request's arrays.
        self._put: dict[Future[Any], Ticket] = {}
        self._running_rows = 0
        self._running = 0
        self._cancelled = 0
        self._idle: dict[Taker, float] = {}
        """Takers that wait, with when they began to, the latest last."""
        self._sleeping: list[Taker] = []
        """Those of them that were not woken since."""
        self._armed: Taker | None = None
        """The one that waits for company, for at most so long."""
        self._wanted = LookAgain()
        """What it waits for."""
        self._closed = False
        self._dropped = False

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """What a batch may hold and how long it may wait for company, once the model is loaded."""
        with self._lock:
            self._batcher.resize(rows_max=rows_max, delay_s=delay_s)

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
            self._put[future] = ticket
            self._add(ticket)
        future.add_done_callback(self._done)

    def offer(self, ticket: Ticket) -> bool:
        """Queue a ticket if there is room; whether there was. Raises StoppedError once closed.

        One with more rows than may ever wait is taken when nothing else waits: it has to be answered some time.
        """
        with self._lock:
            if self._closed:
                raise StoppedError("it is stopping")
            most, waiting = self._queue_rows_max, len(self._batcher)
            if waiting and (self._batcher.rows + ticket.rows > most or waiting >= most):
                return False
            self._add(ticket)
            return True

    def withdraw(self, ticket: Ticket) -> bool:
        """Nobody waits for this ticket any more; whether it still waited. One that has ended stays as it is."""
        with self._lock:
            if ticket.ended:
                return False
            ticket.cancelled = True
            return self._batcher.remove(ticket)

    def abandon(self, future: Future[Any]) -> Ticket | None:
        """As `withdraw`, for the ticket that was put with this future; None when it has ended, or was withdrawn before."""
        with self._lock:
            ticket = self._put.get(future)
            if ticket is None or ticket.ended or ticket.cancelled:
                return None
            ticket.cancelled = True
            self._batcher.remove(ticket)
            return ticket

    def settle(self, tickets: Iterable[Ticket]) -> None:
        """These have their answers: those that were not withdrawn before have `ended`, and can be withdrawn no more."""
        with self._lock:
            for ticket in tickets:
                ticket.ended = not ticket.cancelled

    def again(self, tickets: list[Ticket]) -> None:
        """Queue tickets once more that somebody still waits for, before their equals: what had them died. Also while closing."""
        with self._lock:
            for ticket in reversed(tickets):
                if not ticket.cancelled:
                    self._batcher.add(ticket, first=True)
            self._wake_one()

    # Instances

    def take(self, taker: ThreadTaker, unfit: Callable[[], bool] = lambda: False) -> Work | LookAgain | None:
        """The next batch, however long it takes; None when closed and nothing waits.

        `unfit` says that the taker cannot take any, and is asked whenever it wakes: then LookAgain, and the taker has
        left those that wait for work.
        """
        while not unfit():
            found = self.poll(taker)
            if not isinstance(found, LookAgain):
                return found
            taker.wait(None if found.at_s is None else found.at_s - self._clock.now())
        with self._lock:
            self._leave(taker)
            if self._armed is taker:
                self._armed = None
            # It may have been woken for work that it does not take now.
            self._wake_one()
        return LookAgain()

    def poll(self, taker: Taker) -> Work | LookAgain | None:
        """The next batch, or when to ask again unless woken before; None when closed and nothing waits."""
        with self._lock:
            now = self._clock.now()
            idle_since_s = self._idle.setdefault(taker, now)
            if self._armed is taker:
                self._armed = None
            found = self._batcher.next(
                running_rows=self._running_rows,
                running=self._running,
                idle_since_s=idle_since_s,
                now=now,
                flush=self._closed,
            )
            if isinstance(found, AdaptiveBatch):
                self._leave(taker)
                self._running_rows += found.rows
                self._running += len(found.items)
                self._wake_one()
                return found
            if self._closed:
                self._leave(taker)
                return None
            if taker not in self._sleeping:
                self._sleeping.append(taker)
            if found.at_s is not None and self._armed is None:
                self._armed, self._wanted = taker, found
                return found
            # Somebody else waits for company already; this one is woken when there is too much for one.
            return LookAgain()

    def _leave(self, taker: Taker) -> None:
        self._idle.pop(taker, None)
        if taker in self._sleeping:
            self._sleeping.remove(taker)

    def ended(self, work: Work) -> None:
        """A batch that was taken has come to its end."""
        with self._lock:
            self._running_rows -= work.rows
            self._running -= len(work.items)
            self._batcher.ended(self._clock.now())

    # Life

    def close(self) -> None:
        """Take no more; what waits can still be taken."""
        with self._lock:
            self._close()

    def drop(self) -> list[Ticket]:
        """Close, and give back what waits, for its caller to fail."""
        with self._lock:
            self._dropped = True
            self._close()
            return self._batcher.drain()

    def waiting(self) -> tuple[int, int, float, int]:
        """Requests and rows that wait, how long the oldest has, in seconds, and requests in calls."""
        with self._lock:
            oldest_s = self._batcher.oldest_s()
            age_s = 0.0 if oldest_s is None else max(0.0, self._clock.now() - oldest_s)
            return len(self._batcher), self._batcher.rows, age_s, self._running

    # Under the lock

    def _close(self) -> None:
        self._closed = True
        self._armed = None
        self._answered.notify_all()
        sleeping, self._sleeping = self._sleeping, []
        for taker in sleeping:
            taker.wake()

    def _add(self, ticket: Ticket) -> None:
        self._batcher.add(ticket)
        if self._armed is not None:
            if self._batcher.rows >= self._wanted.rows or len(self._batcher) >= self._wanted.requests:
                self._wake(self._armed)
                self._armed = None
        elif len(self._sleeping) == len(self._idle):
            # Nobody who was woken is still on the way to look.
            self._wake_one()

    def _wake_one(self) -> None:
        if len(self._batcher) and self._sleeping:
            self._wake(self._sleeping[-1])

    def _wake(self, taker: Taker) -> None:
        if taker in self._sleeping:
            self._sleeping.remove(taker)
        taker.wake()

    def _done(self, future: Future[Any]) -> None:
        """A ticket that was put is answered or cancelled; called once for each, from any thread."""
        left = False
        with self._lock:
            ticket = self._put.pop(future)
            self._answered.notify()
            if future.cancelled():
                ticket.cancelled = True
                self._cancelled += 1
                left = self._batcher.remove(ticket)
        if left:
            # Whoever waits for several futures hears of a cancelled one only like this.
            future.set_running_or_notify_cancel()
