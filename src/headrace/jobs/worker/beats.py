"""Signs of life: one thread that prolongs every lease, tells the ledger how far attempts are, and stops what must end."""

import logging
import threading
from collections.abc import Callable, Container, Iterable
from typing import Final
from weakref import WeakKeyDictionary

from headrace.core.clock import Clock
from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.attempt import Attempt, StopReason
from headrace.jobs.job import Progress
from headrace.jobs.ledger import Beat, JobLedger
from headrace.jobs.subscription import wants_progress
from headrace.jobs.worker.roster import Roster
from headrace.jobs.worker.settings import WorkerSettings

_log = logging.getLogger("headrace.jobs")

_AGAIN_S: Final = 1.0
"""How soon a ledger that did not answer is asked again: leases run out meanwhile."""
TELL_S: Final = 30.0
"""How often, at most, those who asked for it are told of a job's progress."""
_REQUESTS_S: Final = 0.1
"""How often, at most, news makes us look for cancellations."""


class Beats:
    """One thread runs `run`; the rest is for any.

    A ledger that does not answer stops nothing: attempts go on, and what they come to counts if nobody else has taken
    the job meanwhile. But then no more is claimed (`late`).

    Args:
        ledger: Whom to tell.
        settings: The lease, and how often.
        roster: What is in hand.
        give_up: Told, in the beats' thread, of an attempt that was told to stop `stop_s` ago and has not; once or more often.
        clock: Waits.
    """

    def __init__(
        self,
        ledger: JobLedger,
        settings: WorkerSettings,
        roster: Roster,
        *,
        give_up: Callable[[Attempt], None],
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._roster = roster
        self._give_up = give_up
        self._clock = clock
        self._told: WeakKeyDictionary[Attempt, tuple[float, Progress]] = WeakKeyDictionary()
        self._wake = threading.Event()
        self._ended = False
        self._look = False
        self._heard_s = clock.now()
        """When the ledger last answered."""
        self._looked_s = clock.now()
        self._beat_s = clock.now() + settings.beat_s
        """When the next sign of life is due."""

    # Any thread

    @property
    def late(self) -> bool:
        """Whether the last sign of life was so long ago that leases may be lost: no more is to be claimed."""
        return len(self._roster) > 0 and self._clock.now() - self._heard_s > self._settings.lease_s / 2

    def began(self, limit_s: float | None) -> None:
        """An attempt was taken in hand; its time is over at `limit_s`, on our clock."""
        if len(self._roster) == 1:
            # Its lease is new, so the ledger has just answered.
            self._heard_s = self._clock.now()
        if limit_s is not None:
            self._wake.set()

    def told(self) -> None:
        """Attempts were told to stop: they have `stop_s` for it."""
        self._wake.set()

    def look(self) -> None:
        """There is news: perhaps somebody has cancelled something."""
        if len(self._roster):
            self._look = True
            self._wake.set()

    def end(self) -> None:
        """Let `run` return."""
        self._ended = True
        self._wake.set()

    # The thread

    def run(self) -> None:
        """Beat until `end`."""
        while not self._ended:
            self._wake.clear()
            try:
                self._round(self._clock.now())
            except Exception:  # noqa: BLE001 - a worker without this thread loses all its leases
                _log.exception("a sign of life failed, it is tried again")
                self._beat_s = self._clock.now() + _AGAIN_S
            if not self._ended:
                self._clock.sleep(self._patience_s(), self._wake)

    def _round(self, now_s: float) -> None:
        for attempt in self._roster.overdue(now_s):
            attempt.stop(StopReason.TIME_LIMIT)
        for attempt in self._roster.stuck(now_s, self._settings.stop_s):
            self._give_up(attempt)
        if now_s >= self._beat_s:
            self._beat()
        elif self._look and now_s >= self._looked_s + _REQUESTS_S:
            self._look_for_cancels()

    def _patience_s(self) -> float:
        now_s = self._clock.now()
        until_s = self._beat_s
        look_s = self._roster.next_look_s(now_s, self._settings.stop_s)
        if look_s is not None:
            until_s = min(until_s, look_s)
        if self._look:
            until_s = min(until_s, self._looked_s + _REQUESTS_S)
        return max(0.0, until_s - now_s)

    def _beat(self) -> None:
        now_s = self._clock.now()
        # What is lost is no more ours to prolong; and of each job only its last lease is left by that.
        held = [attempt for attempt in self._roster.held() if attempt.stopped is not StopReason.LOST]
        self._beat_s = now_s + self._settings.beat_s
        if not held:
            return
        beats = [self._sign(a) for a in held]
        try:
            reply = self._ledger.beat(self._settings.name, beats, self._settings.lease_ms)
        except JobLedgerUnavailableError as error:
            self._beat_s = now_s + _AGAIN_S
            _log.warning("no sign of life could be given, it is tried again: %s", error)
            return
        self._heard_s = now_s
        # The reply is about the leases that were beaten for: a job may be in hand under a later one by now.
        _stop(held, reply.lost, StopReason.LOST)
        _stop(held, reply.cancel, StopReason.CANCELLED)
        _stop(held, reply.expired, StopReason.EXPIRED)

    def _sign(self, attempt: Attempt) -> Beat:
        """A sign of life; every now and then it is told to those who asked for progress, if there is any."""
        job, progress = attempt.job, attempt.progress
        tell = False
        if progress is not None and wants_progress(job.spec.notify):
            now_s = self._clock.now()
            told_s, told = self._told.get(attempt, (float("-inf"), None))
            tell = told != progress and now_s - told_s >= TELL_S
            if tell:
                self._told[attempt] = (now_s, progress)
        return Beat(job.id, job.lease, progress, attempt.cursor, tell)

    def _look_for_cancels(self) -> None:
        self._look, self._looked_s = False, self._clock.now()
        held = self._roster.held()  # Before it is asked, for the same reason.
        try:
            cancelled = self._ledger.cancel_requests(self._settings.name)
        except JobLedgerUnavailableError:
            return  # The next sign of life tells too.
        _stop(held, cancelled, StopReason.CANCELLED)


def _stop(attempts: Iterable[Attempt], job_ids: Container[str], reason: StopReason) -> None:
    for attempt in attempts:
        if attempt.job.id in job_ids:
            attempt.stop(reason)
