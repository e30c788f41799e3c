"""The sending half of a dispatcher: what is announced waits in memory, bounded, for one thread that sends it."""

import threading
from collections.abc import Sequence
from itertools import islice
from typing import Final

from headrace.core.clock import Clock
from headrace.jobs.dispatchers.connection import Connection
from headrace.jobs.dispatchers.link import KEEP_ALIVE_S, Announcement, Broker, Link
from headrace.jobs.dispatchers.tally import Tally

SEND_MAX: Final = 100
"""Messages in one go."""
DRAIN_S: Final = 5.0
"""How long a stop goes on sending what was announced before; the rest is found by polling."""
_JOIN_S = 0.2


class Publisher:
    """Runs from its making to `stop`. `announce` is safe from any thread, and waits for nothing."""

    def __init__(self, broker: Broker, tally: Tally, clock: Clock, *, unsent_max: int) -> None:
        self._tally = tally
        self._clock = clock
        self._unsent_max = unsent_max
        self._lock = threading.Lock()
        # A dict as an ordered set: what the reconciler announces again in an outage does not wait twice.
        self._unsent: dict[Announcement, None] = {}
        self._sending = 0
        self._news = threading.Event()
        self._stop = threading.Event()
        self._drain_until_s: float | None = None
        self._connection = Connection(broker, (), tally, clock, self._stop)
        self._thread = threading.Thread(target=self._run, name="headrace-announce", daemon=True)
        self._thread.start()

    @property
    def unsent(self) -> int:
        """How many announcements wait, or are being sent."""
        with self._lock:
            return len(self._unsent) + self._sending

    def announce(self, announcements: Sequence[Announcement]) -> None:
        """Have them sent; of too many, the oldest are dropped."""
        with self._lock:
            if self._stop.is_set():
                self._tally.add(dropped=len(announcements))
                return
            self._unsent.update(dict.fromkeys(announcements))
            self._trim()
        self._news.set()

    def stop(self, *, drain: bool) -> None:
        """End the thread; with `drain`, after sending what waits, if the broker takes it within `DRAIN_S`."""
        with self._lock:
            self._drain_until_s = self._clock.now() + DRAIN_S if drain else None
            self._stop.set()
        self._news.set()
        while self._thread.is_alive():
            self._connection.interrupt()
            self._thread.join(_JOIN_S)
        with self._lock:
            self._tally.add(dropped=len(self._unsent))
            self._unsent.clear()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._news.clear()
            if self._send_some() is None and not self._clock.sleep(KEEP_ALIVE_S, self._news):
                self._keep_alive()
        until_s = self._drain_until_s
        while until_s is not None and self._clock.now() < until_s and self._send_some():
            """What is left goes out now, or never."""
        self._connection.end()

    def _send_some(self) -> bool | None:
        """Send the oldest; whether that worked, None where nothing waits."""
        batch = self._pop()
        if not batch:
            return None

        def send(link: Link) -> bool:
            link.send(batch)
            return True

        sent = bool(self._connection.use(send))
        with self._lock:
            self._sending = 0
            if not sent:
                self._unsent = dict.fromkeys([*batch, *self._unsent])
                self._trim()
        if sent:
            self._tally.add(sent=len(batch))
        else:
            self._connection.wait_again()
        return sent

    def _keep_alive(self) -> None:
        if self._connection.made:
            # That it failed shows when something is to be sent.
            self._connection.use(lambda link: link.keep_alive())

    def _pop(self) -> list[Announcement]:
        with self._lock:
            batch = list(islice(self._unsent, SEND_MAX))
            for announcement in batch:
                del self._unsent[announcement]
            self._sending = len(batch)
            return batch

    def _trim(self) -> None:
        too_many = len(self._unsent) - self._unsent_max
        for announcement in list(islice(self._unsent, max(0, too_many))):
            del self._unsent[announcement]
        self._tally.add(dropped=max(0, too_many))
