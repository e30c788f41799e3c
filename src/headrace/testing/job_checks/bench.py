"""A ledger on the bench: its clock, and short words for what the checks do with it."""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from headrace.jobs.cause import Cause
from headrace.jobs.job import (
    Completed,
    Failed,
    HistoryEvent,
    Job,
    JobFailure,
    NewJob,
    Outcome,
    Progress,
    ResultRef,
    Settlement,
)
from headrace.jobs.ledger import Beat, BeatReply, ClaimRequest, JobLedger, Submitted, Upkeep
from headrace.jobs.state import JobState
from headrace.testing.clock import ManualWallClock
from headrace.testing.expect import equal, shown

OpenLedger = Callable[[], JobLedger]
"""Gives a ledger, not started; all that one of these gives keep the same jobs, as two workers' do."""

NewLedgers = Callable[[ManualWallClock], OpenLedger]
"""Makes a place for jobs, empty, whose time is the clock's; and gives what opens ledgers over it."""

LEASE_MS: Final = 60_000
THREADS: Final = 8
NEWS_S: Final = 10.0
"""The longest that news may take to be told, in real time."""
_WAIT_S: Final = 60.0
_ROUNDS_MAX: Final = 20

OOPS: Final = JobFailure(Cause.MODEL, "the model raised on it", error="ValueError")

_Answer = TypeVar("_Answer")


class LedgerBench:
    """A started ledger over an empty place; leaving it stops all that was opened."""

    def __init__(self, new_ledgers: NewLedgers) -> None:
        self.clock = ManualWallClock()
        self._open_ledger = new_ledgers(self.clock)
        self._opened: list[JobLedger] = []
        self.ledger = self.another()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ledger in self._opened:
            ledger.stop()

    def another(self) -> JobLedger:
        """One more ledger over the same jobs, started."""
        ledger = self._open_ledger()
        ledger.start()
        self._opened.append(ledger)
        return ledger

    def unstarted(self) -> JobLedger:
        """One more ledger over the same jobs, as it is made."""
        ledger = self._open_ledger()
        self._opened.append(ledger)
        return ledger

    def later(self, ms: int) -> int:
        """Let time pass; the time it is then."""
        return self.clock.advance(ms)

    def submit(self, **spec: Any) -> Job:
        """The job that one submission makes."""
        return accepted(self.ledger.submit([_new(spec)])[0]).job

    def submit_many(self, count: int, **spec: Any) -> list[Job]:
        """As many jobs of one kind, all submitted at once."""
        answers = self.ledger.submit([_new(spec)] * count)
        return [accepted(answer).job for answer in answers]

    def claim(
        self, jobs_max: int = 1, *, queues: Iterable[str] = ("default",), worker: str = "w"
    ) -> tuple[Job, ...]:
        """What a worker is given."""
        return self.ledger.turn([], ClaimRequest(worker, tuple(queues), jobs_max, LEASE_MS)).claimed

    def claim_one(self, *, queues: Iterable[str] = ("default",), worker: str = "w") -> Job:
        """The one job that a worker is given."""
        claimed = self.claim(1, queues=queues, worker=worker)
        equal(len(claimed), 1, "the number of jobs given out where one is due")
        return claimed[0]

    def running(self, **spec: Any) -> Job:
        """A job that was submitted just now, in a worker's hands."""
        submitted = self.submit(**spec)
        job = self.claim_one(queues=(submitted.spec.queue,))
        equal(job.id, submitted.id, "the job given out where one is due")
        return job

    def settle(self, job: Job, outcome: Outcome) -> bool:
        """Whether what the attempt came to was accepted."""
        return self.ledger.turn([Settlement(job.id, job.lease, outcome)]).accepted == (True,)

    def beat(
        self, job: Job, *, progress: Progress | None = None, cursor: dict[str, Any] | None = None
    ) -> BeatReply:
        """The answer to one sign of life under this lease."""
        return self.ledger.beat(job.worker or "w", [Beat(job.id, job.lease, progress, cursor)], LEASE_MS)

    def ended(self, state: JobState, **spec: Any) -> Job:
        """A job that has ended so."""
        if state is JobState.CANCELLED:
            return self.ledger.cancel(self.submit(**spec).id)
        if state is JobState.EXPIRED:
            job = self.submit(**{"time_to_live_s": 1.0, **spec})
            self.later(1_001)
            self.upkeep()
        else:
            job = self.running(**spec)
            self.settle(job, done() if state is JobState.COMPLETED else Failed(OOPS))
        job = self.now(job)
        equal(job.state, state, "the state that was prepared")
        return job

    def now(self, job: Job) -> Job:
        """The job as the ledger has it."""
        return self.ledger.get(job.id)

    def state(self, job: Job) -> JobState:
        """The job's state."""
        return self.now(job).state

    def events(self, job: Job) -> list[HistoryEvent]:
        """What the job's history tells, in order."""
        return [entry.event for entry in self.ledger.history(job.id)]

    def upkeep(self) -> Upkeep:
        """Maintain until there is nothing to do; all that was done."""
        done_in_all = once = Upkeep()
        for _ in range(_ROUNDS_MAX):
            once = self.ledger.maintain(1000)
            if not once.total:
                return done_in_all
            done_in_all = Upkeep(
                done_in_all.returned + once.returned,
                done_in_all.failed + once.failed,
                done_in_all.cancelled + once.cancelled,
                done_in_all.expired + once.expired,
                done_in_all.woken + once.woken,
            )
        raise AssertionError(f"maintain finds something to do for ever, at last {shown(once)}")

    def lose(self, job: Job) -> Job:
        """Let the job's lease run out, and have it taken back; the job then."""
        self.later(LEASE_MS + 1)
        self.upkeep()
        return self.now(job)

    def until_due(self, job: Job) -> None:
        """Let time pass until the job is due."""
        self.later(max(0, self.now(job).due_at_ms - self.clock.now_ms()))


def _new(spec: Mapping[str, Any]) -> NewJob:
    named: dict[str, Any] = {"model": "m", **spec}
    return NewJob(**named)


def accepted(answer: Submitted | Exception) -> Submitted:
    """The answer to a submission that must be taken."""
    if isinstance(answer, Submitted):
        return answer
    raise AssertionError(f"a submission was refused with {answer!r}") from answer


def done(uri: str = "memory://box/out") -> Completed:
    """That an attempt is done, its result at `uri`."""
    return Completed(ResultRef(uri, 3, "text/csv"))


def ids(jobs: Iterable[Job]) -> list[str]:
    """The jobs' ids, in their order."""
    return [job.id for job in jobs]


def without_id(spec: NewJob) -> NewJob:
    """A specification as it may be compared: whether the ledger writes the id into it is its own business."""
    return replace(spec, id="")


def at_once(acts: Iterable[Callable[[], _Answer]]) -> list[_Answer]:
    """What each act answers, all begun at the same moment in threads of their own. Raises what one raised."""
    todo = list(acts)
    line = threading.Barrier(len(todo))

    def run(act: Callable[[], _Answer]) -> _Answer:
        line.wait(_WAIT_S)
        return act()

    with ThreadPoolExecutor(len(todo)) as pool:
        futures = [pool.submit(run, act) for act in todo]
        return [future.result(_WAIT_S) for future in futures]
