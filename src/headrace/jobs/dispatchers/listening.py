"""The taking half of a dispatcher: threads that take messages while somebody waits, and end the wait."""

import threading
from collections.abc import Sequence

from headrace.core.clock import Clock
from headrace.jobs.dispatchers.connection import Connection
from headrace.jobs.dispatchers.link import KEEP_ALIVE_S, Broker
from headrace.jobs.dispatchers.pace import Pace
from headrace.jobs.dispatchers.tally import Tally

_TAKE_S_MIN = 0.05
_JOIN_S = 0.2


class _Waiting:
    """What the thread that waits and those that take for it have in common."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.wanted = threading.Event()
        """Set while somebody waits, and once it is over."""
        self.over = threading.Event()
        self._ended = threading.Event()
        self._news = False
        self._jobs_max = 1
        self._until_s = 0.0

    def wait(self, timeout_s: float, jobs_max: int) -> bool:
        with self._lock:
            self._jobs_max = jobs_max
            self._until_s = self._clock.now() + timeout_s
            if not self._ended.is_set():
                self.wanted.set()
        self._clock.sleep(timeout_s, self._ended)
        with self._lock:
            self._want_no_more()
            self._ended.clear()
            news, self._news = self._news, False
            return news

    def end(self, *, news: bool) -> None:
        with self._lock:
            self._news = self._news or news
            self._ended.set()
            # Here, not by the one that waits: until it runs, more would be taken from others.
            self._want_no_more()

    def _want_no_more(self) -> None:
        if not self.over.is_set():
            self.wanted.clear()

    def terms(self) -> tuple[int, float]:
        """For how many jobs there is room, and for how many seconds more they are waited for."""
        with self._lock:
            return self._jobs_max, max(_TAKE_S_MIN, self._until_s - self._clock.now())


class _Taker:
    """One link's thread."""

    def __init__(
        self, broker: Broker, queues: Sequence[str], waiting: _Waiting, tally: Tally, clock: Clock
    ) -> None:
        self._broker = broker
        self._waiting = waiting
        self._tally = tally
        self._clock = clock
        self._pace = Pace()
        # What was announced while the link was broken may be lost: whoever waits shall look.
        self._connection = Connection(
            broker, queues, tally, clock, waiting.over, renewed=lambda: waiting.end(news=True)
        )
        self._thread = threading.Thread(target=self._run, name=f"headrace-listen-{queues[0]}", daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        self._connection.interrupt()

    def join(self) -> None:
        while self._thread.is_alive():
            # Again and again: the thread may have been about to wait when it was interrupted.
            self._connection.interrupt()
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._waiting.over.is_set():
            if self._waiting.wanted.is_set():
                self._take()
            elif not self._clock.sleep(KEEP_ALIVE_S, self._waiting.wanted):
                self._keep_alive()
        self._connection.end()

    def _take(self) -> None:
        jobs_max, left_s = self._waiting.terms()
        count = self._pace.count(jobs_max, self._clock.now())
        timeout_s = min(left_s, self._broker.take_s_max)
        taken = self._connection.use(lambda link: link.take(count, timeout_s))
        if taken is None:
            self._connection.wait_again()
            return
        if not taken.messages:
            return
        self._pace.took(self._clock.now())
        self._tally.add(taken=taken.messages, redelivered=taken.redelivered, wakes=1)
        self._waiting.end(news=True)

    def _keep_alive(self) -> None:
        if self._connection.made:
            self._connection.use(lambda link: link.keep_alive())


class BrokerListener:
    """A `Listener` over a broker's links: as many as it takes for all queues, each with its thread."""

    def __init__(self, broker: Broker, queues: Sequence[str], tally: Tally, clock: Clock) -> None:
        self._waiting = _Waiting(clock)
        step = broker.queues_per_link
        groups = [queues[at : at + step] for at in range(0, len(queues), step)]
        self._takers = [_Taker(broker, group, self._waiting, tally, clock) for group in groups]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._waiting.over.is_set()

    def wait(self, timeout_s: float, *, jobs_max: int = 1) -> bool:
        """See `Listener`."""
        return self._waiting.wait(timeout_s, jobs_max)

    def wake(self) -> None:
        """See `Listener`."""
        self._waiting.end(news=True)

    def close(self) -> None:
        """See `Listener`."""
        if not self._waiting.over.is_set():
            self._waiting.over.set()
            self._waiting.wanted.set()
            self._waiting.end(news=False)
        for taker in self._takers:
            taker.interrupt()
        for taker in self._takers:
            taker.join()
