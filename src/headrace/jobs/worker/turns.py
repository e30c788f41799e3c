"""The worker's talk with the ledger: what ended is settled, and what there is room for is claimed, in one transaction.

Settlements gather while a turn is under way and go together with the next, so that short jobs share commits, and a lone
one waits for nothing.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import JobLedgerUnavailableError
from headrace.core.retry import RetryPolicy
from headrace.jobs.job import Completed, Job, Settlement
from headrace.jobs.ledger import ClaimRequest, JobLedger, Turn
from headrace.jobs.state import JobState
from headrace.jobs.worker.roster import Roster
from headrace.jobs.worker.settings import WorkerSettings

_log = logging.getLogger("headrace.jobs")

_AGAIN: Final = RetryPolicy(retry_s=float("inf"), first_delay_s=0.1, delay_max_s=5.0)
_LAST_TRIES: Final = 3
"""How often a ledger that does not answer is asked once more by a worker that is leaving."""


class Turns:
    """One thread runs `run`; the rest is for any.

    Args:
        ledger: Where jobs come from.
        settings: Queues, room, lease.
        roster: What is in hand; room is what it leaves.
        begin: Told of every job claimed, in the turns' thread; adds it to the roster, and returns at once.
        secure: Makes results durable before they are settled; gives back what is to be settled.
        settled: Told what each settlement came to, in the turns' thread; takes it off the roster, and returns at once.
        may_claim: Whether there is no other reason to hold back, such as a late sign of life.
        clock: Waits.
        share: Draws the jitter of a wait, 0 to 1.
    """

    def __init__(
        self,
        ledger: JobLedger,
        settings: WorkerSettings,
        roster: Roster,
        *,
        begin: Callable[[Job], None],
        secure: Callable[[Sequence[Settlement]], Sequence[Settlement]],
        settled: Callable[[Settlement, bool], None],
        may_claim: Callable[[], bool],
        clock: Clock,
        share: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._roster = roster
        self._begin = begin
        self._secure = secure
        self._settled = settled
        self._may_claim = may_claim
        self._clock = clock
        self._share = share
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._waiting: deque[Settlement] = deque()
        self._news = True
        """Whether a claim may bring something."""
        self._due_s: float | None = None
        """When a job becomes due that was not when the queues were last looked at."""
        self._closed = False
        self._ended = False
        self._failures = 0
        """How often in a row the ledger has not answered; then the last turn may have counted all the same."""

    # Any thread

    def settle(self, settlement: Settlement) -> None:
        """Have it settled with the next turn."""
        with self._lock:
            self._waiting.append(settlement)
        self._wake.set()

    def news(self) -> None:
        """There may be jobs to claim."""
        self._news = True
        self._wake.set()

    def room(self) -> None:
        """Something was let go of: where the queues were not empty, there is room for more."""
        if self._news:
            self._wake.set()

    def close(self) -> None:
        """Claim no more."""
        self._closed = True

    def end(self) -> None:
        """Settle what waits, and let `run` return. Nothing may be settled afterwards."""
        self._closed = self._ended = True
        self._wake.set()

    # The thread

    def run(self) -> None:
        """Take turns until `end`. What a ledger that does not answer was not told then is left to its leases' end."""
        while True:
            self._wake.clear()
            if self._ended and (not self._waiting or self._failures >= _LAST_TRIES):
                return
            if self._turn():
                continue
            woken = self._clock.sleep(self._patience_s(), self._wake)
            if not woken and not self._failures:
                # What nobody announced is found all the same.
                self._news = True

    def _patience_s(self) -> float:
        """How long there is nothing to do, unless somebody wakes us."""
        if self._failures:
            delay_s = _AGAIN.delay_s(self._failures, float("inf"), self._share())
            assert delay_s is not None, "an endless budget"
            return delay_s
        poll_s = self._settings.poll_s * (0.75 + self._share() / 4)
        if self._due_s is None:
            return poll_s
        return min(poll_s, max(0.0, self._due_s - self._clock.now()))

    def _turn(self) -> bool:
        """One exchange with the ledger; whether there was one, and it answered."""
        with self._lock:
            waiting = tuple(self._waiting)
        claim = self._wanted(waiting)
        if not waiting and claim is None:
            return False
        try:
            if self._failures:
                waiting = self._resolve(waiting)
            turn = self._exchange(waiting, claim)
        except JobLedgerUnavailableError as error:
            _log.warning("the job ledger does not answer, it is asked again: %s", error)
            return self._failed(claim)
        except Exception:  # noqa: BLE001 - a worker without this thread can only be killed
            _log.exception("the job ledger failed, it is asked again")
            return self._failed(claim)
        self._failures = 0
        self._take(waiting, turn.accepted)
        self._claimed(turn, claim)
        return True

    def _failed(self, claim: ClaimRequest | None) -> bool:
        self._failures += 1
        self._news = self._news or claim is not None
        return False

    def _wanted(self, waiting: Sequence[Settlement]) -> ClaimRequest | None:
        """What to claim: as much as there will be room for when `waiting` is settled. None: nothing now."""
        if self._due_s is not None and self._clock.now() >= self._due_s:
            self._news, self._due_s = True, None
        if self._closed or not self._news or not self._may_claim():
            return None
        ending = {s.job_id for s in waiting}
        staying = [h.attempt.job for h in self._roster.held() if h.attempt.job.id not in ending]
        room = self._settings.concurrency - len(staying)
        if room <= 0 or any(job.alone for job in staying):
            return None
        return ClaimRequest(self._settings.name, self._settings.queues, room, self._settings.lease_ms)

    def _exchange(self, waiting: Sequence[Settlement], claim: ClaimRequest | None) -> Turn:
        if not waiting and claim is None:
            return Turn((), ())
        secured = self._secure(waiting) if waiting else waiting
        # Before the ledger is asked: news that comes meanwhile stands.
        if claim is not None:
            self._news = False
        return self._ledger.turn(secured, claim)

    def _resolve(self, waiting: Sequence[Settlement]) -> tuple[Settlement, ...]:
        """The last turn raised, and may have counted all the same: find out, and give back what is still to be settled."""
        for job in self._ledger.running_of(self._settings.name):
            held = self._roster.get(job.id)
            if held is None or held.job.lease != job.lease:
                self._begin(job)
        known = self._ledger.get_many([s.job_id for s in waiting])
        open_: list[Settlement] = []
        for settlement in waiting:
            job = known.get(settlement.job_id)
            if job is not None and job.state is JobState.RUNNING and job.lease == settlement.lease:
                open_.append(settlement)
            else:
                self._take([settlement], [job is not None and _counted(job, settlement)])
        return tuple(open_)

    def _take(self, settlements: Sequence[Settlement], accepted: Sequence[bool]) -> None:
        """The ledger has answered for these."""
        done = set(map(id, settlements))
        with self._lock:
            self._waiting = deque(s for s in self._waiting if id(s) not in done)
        for settlement, counted in zip(settlements, accepted, strict=True):
            self._settled(settlement, counted)

    def _claimed(self, turn: Turn, claim: ClaimRequest | None) -> None:
        if claim is None:
            return
        for job in turn.claimed:
            self._begin(job)
        if len(turn.claimed) == claim.jobs_max or any(job.alone for job in turn.claimed):
            self._news = True
        elif turn.due_in_ms is not None:
            self._due_s = self._clock.now() + turn.due_in_ms / 1000


def _counted(job: Job, settlement: Settlement) -> bool:
    """Whether a settlement whose answer was lost has counted, by the job as it is now."""
    if not isinstance(settlement.outcome, Completed):
        return job.lease == settlement.lease
    return (
        job.lease == settlement.lease
        and job.state is JobState.COMPLETED
        and job.result is not None
        and job.result.uri == settlement.outcome.result.uri
    )
