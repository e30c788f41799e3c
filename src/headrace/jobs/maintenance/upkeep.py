"""The thread that does chores: each at its own pace, jittered, since every worker has one."""

import heapq
import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError, JobLedgerUnavailableError

_log = logging.getLogger("headrace.jobs")


@dataclass(frozen=True, slots=True)
class Chore:
    """Something to do every now and then. `do` is one round, and says how much it did; a full round is followed at once."""

    name: str
    every_s: float
    do: Callable[[], int]
    full: int | None = None
    """A round that did so much is taken for one that left something."""


@dataclass(order=True, slots=True)
class _Due:
    at_s: float
    order: int
    chore: Chore = field(compare=False)


class Upkeep:
    """Implements `headrace.core.Service`; use it once.

    A round that fails is logged and tried again at its next time. After the ledger did not answer, all chores are held
    off for `hold_off_s`: the living must get to say that they live before anybody takes their leases away.
    """

    def __init__(
        self,
        chores: Sequence[Chore],
        *,
        hold_off_s: float,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._hold_off_s = hold_off_s
        now_s = self._clock.now()
        # The first round of each anywhere in its interval, so that many workers started at once do not all begin alike.
        self._due = [
            _Due(now_s + c.every_s * self._random.random(), order, c) for order, c in enumerate(chores)
        ]
        heapq.heapify(self._due)
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        if self._thread is None and self._due:
            self._thread = threading.Thread(target=self._run, name="headrace-upkeep", daemon=True)
            self._thread.start()

    def stop(self, *, drain: bool = True) -> None:  # noqa: ARG002 - every Service has it
        """End, after the round under way; `drain` means nothing here."""
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._wake.is_set():
            wait_s = self._due[0].at_s - self._clock.now()
            if wait_s > 0 and self._clock.sleep(wait_s, self._wake):
                return
            due = heapq.heappop(self._due)
            heapq.heappush(self._due, _Due(self._clock.now() + self._round(due.chore), due.order, due.chore))

    def _round(self, chore: Chore) -> float:
        """Do one round; after how long the next is due."""
        try:
            done = chore.do()
        except JobLedgerUnavailableError as error:
            _log.warning("%s: the job ledger does not answer: %s", chore.name, error)
            self._hold_off()
        except HeadraceError as error:
            _log.warning("%s: %s", chore.name, error)
        except Exception:  # noqa: BLE001 - the thread has others to do
            _log.exception("%s failed", chore.name)
        else:
            if chore.full is not None and done >= chore.full:
                return 0.0
        return chore.every_s * (0.75 + self._random.random() / 2)

    def _hold_off(self) -> None:
        until_s = self._clock.now() + self._hold_off_s
        self._due = [_Due(max(d.at_s, until_s), d.order, d.chore) for d in self._due]
        heapq.heapify(self._due)
