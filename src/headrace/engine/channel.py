"""Hand-over of requests from callers to instances: one bounded queue, whose batches close by a pure rule.

Arrives: tickets, from any thread. Leaves: batches of tickets, to whichever instance is idle.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from headrace.batching.adaptive import AdaptiveBatch, AdaptiveBatcher, LookAgain
from headrace.core.clock import Clock
from headrace.core.errors import StoppedError
from headrace.engine.intake import Intake
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


class Channel(Intake):
    """Takes tickets, gives batches. Bounded in two ways, by who puts; see `Intake`.

    `offer` says no when `queue_rows_max` rows wait, or as many requests of no rows. A ticket that is withdrawn while it waits
    leaves the queue at once.
    """

    def __init__(
        self, batcher: AdaptiveBatcher[Ticket], clock: Clock, *, in_flight_max: int, queue_rows_max: int
    ) -> None:
        super().__init__(clock, in_flight_max=in_flight_max)
        self._batcher = batcher
        self._queue_rows_max = queue_rows_max
        self._running_rows = 0
        self._running = 0
        self._idle: dict[Taker, float] = {}
        """Takers that wait, with when they began to, the latest last."""
        self._sleeping: list[Taker] = []
        """Those of them that were not woken since."""
        self._armed: Taker | None = None
        """The one that waits for company, for at most so long."""
        self._wanted = LookAgain()
        """What it waits for."""

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """See `Intake`."""
        with self._lock:
            self._batcher.resize(rows_max=rows_max, delay_s=delay_s)

    # Callers

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
        try:
            while not unfit():
                found = self.poll(taker)
                if not isinstance(found, LookAgain):
                    return found
                taker.wait(None if found.at_s is None else found.at_s - self._clock.now())
        except BaseException:
            self._give_way(taker)
            raise
        self._give_way(taker)
        return LookAgain()

    def _give_way(self, taker: Taker) -> None:
        """It takes nothing for the moment, or ever."""
        with self._lock:
            self._leave(taker)
            if self._armed is taker:
                self._armed = None
            # It may have been woken for work that it does not take now.
            self._wake_one()

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

    def waiting(self) -> tuple[int, int, float, int]:
        """Requests and rows that wait, how long the oldest has, in seconds, and requests in calls."""
        with self._lock:
            oldest_s = self._batcher.oldest_s()
            age_s = 0.0 if oldest_s is None else max(0.0, self._clock.now() - oldest_s)
            return len(self._batcher), self._batcher.rows, age_s, self._running

    # Under the lock

    def _wake_all(self) -> None:
        self._armed = None
        sleeping, self._sleeping = self._sleeping, []
        for taker in sleeping:
            taker.wake()

    def _remove(self, ticket: Ticket) -> bool:
        return self._batcher.remove(ticket)

    def _drain(self) -> list[Ticket]:
        return self._batcher.drain()

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
