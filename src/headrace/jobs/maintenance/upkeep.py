"""The threads that do chores: each at its own pace, jittered, since every worker has them."""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


class Upkeep:
    """Implements `headrace.core.Service`; use it once.

    Each chore has a thread of its own: a store that does not answer must not keep the leases of the dead from being taken
    back. A round that fails is logged and tried again at its next time. After the ledger did not answer, all chores are
    held off for `hold_off_s`: the living must get to say that they live before anybody takes their leases away.

    `stop` waits `stop_s` for the rounds under way; one that takes longer ends with its next round, or with the process.
    """

    def __init__(
        self,
        chores: Sequence[Chore],
        *,
        hold_off_s: float,
        stop_s: float = 10.0,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self._chores = tuple(chores)
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._hold_off_s = hold_off_s
        self._stop_s = stop_s
        self._held_until_s = float("-inf")
        self._wake = threading.Event()
        self._life = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin. Raises RuntimeError where no thread can be made; then `stop` ends those that were."""
        with self._life:
            if self._threads or self._wake.is_set():
                return
            for chore in self._chores:
                thread = threading.Thread(
                    target=self._run, args=(chore,), name=f"headrace-{chore.name}", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def stop(self, *, drain: bool = True) -> None:  # noqa: ARG002 - every Service has it
        """End, after the rounds under way; `drain` means nothing here."""
        with self._life:
            threads = self._threads
            if threads:
                self._wake.set()
        until_s = time.monotonic() + self._stop_s
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        left = [thread.name for thread in threads if thread.is_alive()]
        if left:
            _log.warning("chores are left behind in the middle of their rounds: %s", ", ".join(left))

    def _run(self, chore: Chore) -> None:
        # The first round anywhere in its interval, so that many workers started at once do not all begin alike.
        wait_s = chore.every_s * self._random.random()
        while not self._wake.is_set():
            wait_s = max(wait_s, self._held_until_s - self._clock.now())
            if wait_s > 0 and self._clock.sleep(wait_s, self._wake):
                return
            if self._held_until_s > self._clock.now():
                wait_s = 0.0
                continue
            wait_s = self._round(chore)

    def _round(self, chore: Chore) -> float:
        """Do one round; after how long the next is due."""
        try:
            done = chore.do()
        except JobLedgerUnavailableError as error:
            _log.warning("%s: the job ledger does not answer: %s", chore.name, error)
            self._held_until_s = self._clock.now() + self._hold_off_s
        except HeadraceError as error:
            _log.warning("%s: %s", chore.name, error)
        except Exception:  # noqa: BLE001 - it is tried again
            _log.exception("%s failed", chore.name)
        else:
            if chore.full is not None and done >= chore.full:
                return 0.0
        return chore.every_s * (0.75 + self._random.random() / 2)
