"""The worker's talk with the ledger: what ended is settled, and what there is room for is claimed, in one transaction.

Settlements gather while a turn is under way and go together with the next, so that short jobs share commits, and a lone
one waits for nothing.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import JobLedgerUnavailableError
from headrace.core.retry import RetryPolicy
from headrace.jobs.cause import Cause
from headrace.jobs.job import Completed, Failed, Job, JobFailure, Settlement
from headrace.jobs.ledger import ClaimRequest, JobLedger, Turn
from headrace.jobs.state import JobState
from headrace.jobs.worker.roster import Roster
from headrace.jobs.worker.settings import WorkerSettings

_log = logging.getLogger("headrace.jobs")

_AGAIN: Final = RetryPolicy(retry_s=float("inf"), first_delay_s=0.1, delay_max_s=5.0)
_LAST_TRIES: Final = 3
"""How often a ledger that does not answer is asked once more by a worker that is leaving."""
_SOON_S: Final = 0.05
"""How soon the queues are looked at again where a job is due that could not be had: somebody else holds it."""
_UNSECURED_RETRY_MS: Final = 10_000
_REFUSALS_MAX: Final = 5
"""How often the ledger may fail over one settlement, and not over others, until something plain is settled in its place."""

_TRIES_MAX: Final = 100
"""How often it may fail over one settlement where there is nothing else to be settled or claimed: minutes."""


@dataclass(slots=True)
class _Refused:
    """A settlement that the ledger failed over."""

    tries: int = 0
    refusals: int = 0
    """Tries with an answered turn since the last one: then it is not the ledger."""
    answered: int = -1
    """How many turns had been answered at the last try."""


class Turns:
    """One thread runs `run`; the rest is for any.

    Args:
        ledger: Where jobs come from.
        settings: Queues, room, lease.
        roster: What is in hand; room is what it leaves.
        begin: Told of every job claimed, in the turns' thread; adds it to the roster, and returns at once.
        secure: Makes results durable before they are settled; gives back what is to be settled, one for one. Where it
            raises, what had completed is settled as failed in its store, to be tried again.
        settled: Told what each settlement came to, as it was settled, in the turns' thread; takes it off the roster, and
            returns at once.
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
        self._passed_over = False
        """Whether the last claim left other regions' jobs alone, for there was something in hand."""
        self._look_s = clock.now()
        """When the queues are looked at although nothing was announced."""
        self._closed = False
        self._ended = False
        self._failures = 0
        """How often in a row the ledger has not answered; then the last turn may have counted all the same."""
        self._last_tries = 0
        self._singly = 0
        """For how many turns settlements go one by one, and claims apart: one of them may be what the ledger fails over."""
        self._apart = False
        self._answered = 0
        """How many turns were answered."""
        self._refused: dict[tuple[str, int], _Refused] = {}

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
        if self._news or self._passed_over:
            self._wake.set()

    def close(self) -> None:
        """Claim no more. A claim that is under way is in the roster's expectations until all it brought is in hand."""
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
            if self._ended and (not self._waiting or self._last_tries >= _LAST_TRIES):
                return
            leaving = self._ended
            try:
                if self._turn():
                    continue
            except Exception:  # noqa: BLE001 - a worker without this thread can only be killed
                _log.exception("a turn broke off half way, what became of it is looked up")
                self._failures += 1
            if leaving:
                self._last_tries += 1
            self._clock.sleep(self._patience_s(), self._wake)

    def _patience_s(self) -> float:
        """How long there is nothing to do, unless somebody wakes us."""
        if self._failures:
            delay_s = _AGAIN.delay_s(self._failures, float("inf"), self._share())
            assert delay_s is not None, "an endless budget"
            return delay_s
        return max(0.0, self._look_s - self._clock.now())

    def _turn(self) -> bool:
        """One exchange with the ledger; whether there was one, and it answered."""
        try:
            if self._failures:
                self._resolve()
            waiting = self._next()
            claim = self._expected_claim(waiting)
            if not waiting and claim is None:
                if self._apart and self._waiting:
                    return True
                # Where it had failed, it is known by now what of that has counted.
                known, self._failures = self._failures > 0, 0
                return known
            settlements = self._secured(waiting)
            turn = self._ledger.turn(settlements, claim)
        except JobLedgerUnavailableError as error:
            _log.warning("the job ledger does not answer, it is asked again: %s", error)
            return self._failed()
        except Exception:  # noqa: BLE001 - as above
            _log.exception("the job ledger failed, it is asked again")
            self._suspect()
            return self._failed()
        self._failures, self._singly = 0, max(0, self._singly - 1)
        self._answered += 1
        self._take(waiting, settlements, turn.accepted)
        if claim is not None:
            self._claimed(turn, claim)
        return True

    def _next(self) -> tuple[Settlement, ...]:
        """What to settle now."""
        with self._lock:
            waiting = tuple(self._waiting)
        self._apart = bool(self._singly) and not self._apart
        if self._apart:
            return ()
        return waiting[:1] if self._singly else waiting

    def _failed(self) -> bool:
        self._failures += 1
        self._news = True
        return False

    def _suspect(self) -> None:
        """The ledger failed, and not for being away: perhaps over one settlement, which must not keep the others waiting."""
        with self._lock:
            singly, self._singly = self._singly, max(self._singly, len(self._waiting) + 1)
            if not singly or self._apart or not self._waiting:
                return
            first = self._waiting.popleft()
            self._waiting.append(self._plainer(first))

    def _plainer(self, settlement: Settlement) -> Settlement:
        """It, or what is settled in its place once the ledger has failed over it, and not over others, often enough."""
        key = (settlement.job_id, settlement.lease)
        refused = self._refused.setdefault(key, _Refused())
        refused.tries += 1
        refused.refusals += self._answered > refused.answered
        refused.answered = self._answered
        if refused.refusals < _REFUSALS_MAX and refused.tries < _TRIES_MAX:
            return settlement
        _log.error(
            "what an attempt came to cannot be recorded, it fails for that", extra={"job": settlement.job_id}
        )
        failure = JobFailure(Cause.DEFECT, "what the attempt came to could not be recorded")
        return Settlement(settlement.job_id, settlement.lease, Failed(failure, _UNSECURED_RETRY_MS))

    def _expected_claim(self, waiting: Sequence[Settlement]) -> ClaimRequest | None:
        """What to claim. Said to the roster before it is known whether we may: whoever closes us looks there afterwards."""
        claim = self._wanted(waiting)
        if claim is None:
            return None
        self._roster.expect()
        if self._closed:
            self._roster.expect_nothing()
            return None
        # Before the ledger is asked: news that comes meanwhile stands.
        self._news = False
        self._passed_over = self._settings.waits_for_idleness and not claim.other_regions
        return claim

    def _wanted(self, waiting: Sequence[Settlement]) -> ClaimRequest | None:
        """What to claim: as much as there will be room for when `waiting` is settled. None: nothing now."""
        now_s = self._clock.now()
        if now_s >= self._look_s:
            self._news = True
            self._look_s = now_s + self._poll_s()
        if self._closed or not (self._news or self._passed_over) or not self._may_claim():
            return None
        if self._singly and waiting:
            return None
        taken, alone = self._roster.staying((s.job_id, s.lease) for s in waiting)
        room = self._settings.concurrency - taken
        if room <= 0 or alone or (taken and not self._news):
            return None
        return ClaimRequest(
            self._settings.name,
            self._settings.queues,
            room,
            self._settings.lease_ms,
            self._settings.region,
            other_regions=not taken and self._settings.waits_for_idleness,
        )

    def _poll_s(self) -> float:
        return self._settings.poll_s * (0.75 + self._share() / 4)

    def _secured(self, waiting: Sequence[Settlement]) -> Sequence[Settlement]:
        """What is to be settled, one for one."""
        if not waiting:
            return waiting
        try:
            secured = self._secure(waiting)
            if [(s.job_id, s.lease) for s in secured] == [(s.job_id, s.lease) for s in waiting]:
                return secured
            _log.error("what was secured is not what was to be settled")
        except Exception:  # noqa: BLE001 - what is not durable has not completed, whatever the reason
            _log.exception("results could not be made durable")
        return [unsecured(s) for s in waiting]

    def _resolve(self) -> None:
        """The last turn raised, and may have counted all the same: find out, and take what is settled."""
        with self._lock:
            waiting = tuple(self._waiting)
        for job in self._ledger.running_of(self._settings.name):
            if self._roster.get(job.id, job.lease) is None:
                self._begin(job)
        self._roster.expect_nothing()
        known = self._ledger.get_many([s.job_id for s in waiting]) if waiting else {}
        for settlement in waiting:
            job = known.get(settlement.job_id)
            if job is None or job.state is not JobState.RUNNING or job.lease != settlement.lease:
                counted = job is not None and _counted(job, settlement)
                self._take([settlement], [settlement], [counted])

    def _take(
        self, waiting: Sequence[Settlement], settlements: Sequence[Settlement], accepted: Sequence[bool]
    ) -> None:
        """The ledger has answered for these; `waiting` is what they were before they were secured."""
        done = {(s.job_id, s.lease) for s in waiting}
        with self._lock:
            self._waiting = deque(s for s in self._waiting if (s.job_id, s.lease) not in done)
        for settlement, counted in zip(settlements, accepted, strict=True):
            self._refused.pop((settlement.job_id, settlement.lease), None)
            self._settled(settlement, counted)

    def _claimed(self, turn: Turn, claim: ClaimRequest) -> None:
        for job in turn.claimed:
            self._begin(job)
        self._roster.expect_nothing()
        if len(turn.claimed) == claim.jobs_max or any(job.alone for job in turn.claimed):
            self._news = True
        elif turn.due_in_ms is not None:
            due_s = self._clock.now() + max(turn.due_in_ms / 1000, _SOON_S)
            self._look_s = min(self._look_s, due_s)


def unsecured(settlement: Settlement) -> Settlement:
    """What is settled in place of an attempt that completed, and whose result could not be made durable."""
    if not isinstance(settlement.outcome, Completed):
        return settlement
    failure = JobFailure(Cause.STORAGE, "the result could not be stored", "StorageError")
    return replace(settlement, outcome=Failed(failure, _UNSECURED_RETRY_MS))


def _counted(job: Job, settlement: Settlement) -> bool:
    """Whether a settlement whose answer was lost has counted, by the job as it is now."""
    if job.lease != settlement.lease:
        return False
    if not isinstance(settlement.outcome, Completed):
        return True
    return (
        job.state is JobState.COMPLETED
        and job.result is not None
        and job.result.uri == settlement.outcome.result.uri
    )
