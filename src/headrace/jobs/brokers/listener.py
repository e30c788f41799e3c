"""The receiving half of a wakeup broker: threads that receive messages while a worker waits."""

import threading
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.jobs.brokers.session import KEEP_ALIVE_S, BrokerConnection, BrokerCounters, MessageBroker
from headrace.jobs.wakeup_broker import WakeupListener

MESSAGES_MAX: Final = 256
"""The largest number of messages that one wait receives."""
AT_ONCE_S: Final = 0.1
"""Messages that arrive within this time after the last ones belong to the same run."""
_TAKE_S_MIN: Final = 0.05
_JOIN_S: Final = 0.2
_DOUBLINGS_MAX: Final = 8


class _WaitState:
    """The shared state of the waiting thread and the receiving threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.active = threading.Event()
        """Set while a thread waits, and after the listener is closed."""
        self.over = threading.Event()
        self._ended = threading.Event()
        self._jobs_possible = False
        self._jobs_max = 1
        self._until_s = 0.0

    def wait(self, timeout_s: float, jobs_max: int) -> bool:
        with self._lock:
            self._jobs_max = jobs_max
            self._until_s = self._clock.now() + timeout_s
            if not self._ended.is_set():
                self.active.set()
        self._clock.sleep(timeout_s, self._ended)
        with self._lock:
            self._want_no_more()
            self._ended.clear()
            jobs_possible, self._jobs_possible = self._jobs_possible, False
            return jobs_possible

    def end(self, *, jobs_possible: bool) -> None:
        with self._lock:
            self._jobs_possible = self._jobs_possible or jobs_possible
            self._ended.set()
            # Cleared here, not by the waiting thread: until that runs, more would be taken from
            # others.
            self._want_no_more()

    def _want_no_more(self) -> None:
        if not self.over.is_set():
            self.active.clear()

    def terms(self) -> tuple[int, float]:
        """Return the number of free slots, and the remaining seconds of the wait."""
        with self._lock:
            return self._jobs_max, max(_TAKE_S_MIN, self._until_s - self._clock.now())


class _SessionThread:
    """The thread of one session."""

    def __init__(
        self,
        broker: MessageBroker,
        queues: Sequence[str],
        state: _WaitState,
        counters: BrokerCounters,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._state = state
        self._counters = counters
        self._clock = clock
        self._pace = Pace()
        # Announcements during an outage may be lost, so the waiter must read the ledger.
        self._connection = BrokerConnection(
            broker, queues, counters, clock, state.over, renewed=lambda: state.end(jobs_possible=True)
        )
        self._thread = threading.Thread(target=self._run, name=f"headrace-listen-{queues[0]}", daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        self._connection.interrupt()

    def join(self) -> None:
        while self._thread.is_alive():
            # Repeated, because the thread may have been about to wait when it was interrupted.
            self._connection.interrupt()
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._state.over.is_set():
            if self._state.active.is_set():
                self._take()
            elif not self._clock.sleep(KEEP_ALIVE_S, self._state.active):
                self._keep_alive()
        self._connection.end()

    def _take(self) -> None:
        jobs_max, left_s = self._state.terms()
        count = self._pace.count(jobs_max, self._clock.now())
        timeout_s = min(left_s, self._broker.take_s_max)
        received = self._connection.use(lambda session: session.take(count, timeout_s))
        if received is None:
            self._connection.wait_after_failure()
            return
        if not received.messages:
            return
        self._pace.record(self._clock.now())
        self._counters.add(taken=received.messages, redelivered=received.redelivered, wakes=1)
        self._state.end(jobs_possible=True)

    def _keep_alive(self) -> None:
        if self._connection.opened:
            self._connection.use(lambda session: session.keep_alive())


class BrokerListener(WakeupListener):
    """A listener over as many sessions as its queues need, each with a thread."""

    def __init__(
        self, broker: MessageBroker, queues: Sequence[str], counters: BrokerCounters, clock: Clock
    ) -> None:
        self._state = _WaitState(clock)
        step = broker.queues_per_session
        groups = [queues[at : at + step] for at in range(0, len(queues), step)]
        self._session_threads = [
            _SessionThread(broker, group, self._state, counters, clock) for group in groups
        ]

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._state.over.is_set()

    @override
    def wait(self, timeout_s: float, *, jobs_max: int = 1) -> bool:
        return self._state.wait(timeout_s, jobs_max)

    @override
    def wake(self) -> None:
        self._state.end(jobs_possible=True)

    @override
    def close(self) -> None:
        if not self._state.over.is_set():
            self._state.over.set()
            self._state.active.set()
            self._state.end(jobs_possible=False)
        for session_thread in self._session_threads:
            session_thread.interrupt()
        for session_thread in self._session_threads:
            session_thread.join()


class Pace:
    """The receive size of one listener: the free slots, and more if messages outpace work. Pure.

    A worker waits only if the ledger has no job for it. Messages that end one wait directly after
    another are therefore about jobs that are claimed already. Thousands may be left after a time in
    which every worker was busy. Each such run is received in steps that double, so that it costs a
    dozen reads of the ledger instead of thousands. `now_s` is monotonic.
    """

    def __init__(self) -> None:
        self._run = 0
        self._last_s: float | None = None

    def count(self, jobs_max: int, now_s: float) -> int:
        """Return the largest number of messages to receive, with free slots for `jobs_max` jobs."""
        if not self._at_once(now_s):
            self._run = 0
        return min(MESSAGES_MAX, max(1, jobs_max) << self._run)

    def record(self, now_s: float) -> None:
        """Note that messages were received."""
        self._run = min(self._run + 1, _DOUBLINGS_MAX) if self._at_once(now_s) else 0
        self._last_s = now_s

    def _at_once(self, now_s: float) -> bool:
        return self._last_s is not None and now_s - self._last_s < AT_ONCE_S
