"""The test bench of a job ledger: its clock, and helpers for the checks."""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import (
    Completed,
    Failed,
    Job,
    JobFailure,
    JobProgress,
    NewJob,
    Outcome,
    ResultRef,
    Settlement,
)
from headrace.jobs.ledger import (
    ClaimRequest,
    Heartbeat,
    HeartbeatReply,
    JobLedger,
    MaintenanceCounts,
    SubmitReply,
    Wakeup,
)
from headrace.jobs.state import Cause, JobState
from headrace.testing.doubles import ManualWallClock
from headrace.testing.expect import equal, short_repr, true

OpenLedger = Callable[[], JobLedger]
"""Returns a ledger, not started. All ledgers of one such function share their jobs."""

NewLedgers = Callable[[ManualWallClock], OpenLedger]
"""Creates empty storage with the clock's time, and returns a function that opens ledgers over it."""

LEASE_MS: Final = 60_000
THREADS: Final = 8
WAKEUP_TIMEOUT_S: Final = 10.0
"""The limit of the real time until a waiter must report a change."""
_WAIT_S: Final = 60.0
NO_WAIT_S: Final = 0.01
_WAKEUPS_MAX: Final = 20
_ROUNDS_MAX: Final = 20

OOPS: Final = JobFailure(Cause.MODEL, "the model raised on it", error="ValueError")

_ResultT = TypeVar("_ResultT")


class LedgerBench:
    """A started ledger over empty storage. Leaving the context stops all ledgers of the bench."""

    def __init__(self, new_ledgers: NewLedgers) -> None:
        self.clock = ManualWallClock()
        self._open_ledger = new_ledgers(self.clock)
        self._opened: list[JobLedger] = []
        self.ledger = self.start_ledger()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ledger in self._opened:
            ledger.stop()

    def start_ledger(self) -> JobLedger:
        """Return another started ledger over the same jobs."""
        ledger = self._open_ledger()
        ledger.start()
        self._opened.append(ledger)
        return ledger

    def new_ledger(self) -> JobLedger:
        """Return another ledger over the same jobs, not started."""
        ledger = self._open_ledger()
        self._opened.append(ledger)
        return ledger

    def advance(self, ms: int) -> int:
        """Advance the clock by `ms` milliseconds. Return the new time."""
        return self.clock.advance(ms)

    def submit(self, **spec: Any) -> Job:
        """Submit one job and return it. Raise AssertionError if the ledger refuses it."""
        return accepted(self.ledger.submit([_new(spec)])[0]).job

    def submit_many(self, count: int, **spec: Any) -> list[Job]:
        """Submit `count` jobs of one specification in one call, and return them."""
        replies = self.ledger.submit([_new(spec)] * count)
        return [accepted(reply).job for reply in replies]

    def claim(
        self, jobs_max: int = 1, *, queues: Iterable[str] = ("default",), worker: str = "w"
    ) -> tuple[Job, ...]:
        """Claim at most `jobs_max` jobs for a worker, and return them."""
        return self.ledger.settle_and_claim(
            [], ClaimRequest(worker, tuple(queues), jobs_max, LEASE_MS)
        ).claimed

    def claim_one(self, *, queues: Iterable[str] = ("default",), worker: str = "w") -> Job:
        """Claim one job and return it. Raise AssertionError if none is due."""
        claimed = self.claim(1, queues=queues, worker=worker)
        equal(len(claimed), 1, "the number of claimed jobs, with one due")
        return claimed[0]

    def submit_running(self, **spec: Any) -> Job:
        """Submit and claim one job, and return it as running."""
        submitted = self.submit(**spec)
        job = self.claim_one(queues=(submitted.spec.queue,))
        equal(job.id, submitted.id, "the claimed job")
        return job

    def settle(self, job: Job, outcome: Outcome) -> bool:
        """Settle the job's attempt with `outcome`. Return True if the ledger accepted it."""
        return self.ledger.settle_and_claim([Settlement(job.id, job.lease, outcome)]).accepted == (True,)

    def heartbeat(
        self, job: Job, *, progress: JobProgress | None = None, cursor: dict[str, Any] | None = None
    ) -> HeartbeatReply:
        """Send one heartbeat under the job's lease, and return the reply."""
        return self.ledger.heartbeat(
            job.worker or "w", [Heartbeat(job.id, job.lease, progress, cursor)], LEASE_MS
        )

    def submit_ended(self, state: JobState, **spec: Any) -> Job:
        """Submit a job, bring it to the ended state `state`, and return it."""
        if state is JobState.CANCELLED:
            return self.ledger.cancel(self.submit(**spec).id)
        if state is JobState.EXPIRED:
            job = self.submit(**{"time_to_live_s": 1.0, **spec})
            self.advance(1_001)
            self.maintain()
        elif state is JobState.PUBLISH_FAILED:
            job = self.submit_running(**{"output_uri": "memory://out/", **spec})
            self.settle(job, done())
            self.ledger.mark_publish_failed(job.id, job.lease, OOPS, final=True)
        else:
            job = self.submit_running(**spec)
            self.settle(job, done() if state is JobState.COMPLETED else Failed(OOPS))
        job = self.reload(job)
        equal(job.state, state, "the prepared state")
        return job

    def reload(self, job: Job) -> Job:
        """Return the job as the ledger stores it now."""
        return self.ledger.get(job.id)

    def state(self, job: Job) -> JobState:
        """Return the job's current state."""
        return self.reload(job).state

    def events(self, job: Job) -> list[HistoryEvent]:
        """Return the events of the job's history, in order."""
        return [entry.event for entry in self.ledger.history(job.id)]

    def maintain(self) -> MaintenanceCounts:
        """Run maintenance until nothing is left to do. Return the sum of all rounds."""
        total = counts = MaintenanceCounts()
        for _ in range(_ROUNDS_MAX):
            counts = self.ledger.maintain(1000)
            if not counts.total:
                return total
            total = MaintenanceCounts(
                total.returned + counts.returned,
                total.failed + counts.failed,
                total.cancelled + counts.cancelled,
                total.expired + counts.expired,
                total.woken + counts.woken,
            )
        raise AssertionError(f"maintain never ends, last counts {short_repr(counts)}")

    def expire_lease(self, job: Job) -> Job:
        """Let the job's lease expire, run maintenance, and return the job afterwards."""
        self.advance(LEASE_MS + 1)
        self.maintain()
        return self.reload(job)

    def advance_until_due(self, job: Job) -> None:
        """Advance the clock until the job is due."""
        self.advance(max(0, self.reload(job).due_at_ms - self.clock.now_ms()))


def _new(spec: Mapping[str, Any]) -> NewJob:
    named: dict[str, Any] = {"model": "m", **spec}
    return NewJob(**named)


def accepted(reply: SubmitReply | Exception) -> SubmitReply:
    """Return the reply to a submission. Raise AssertionError if it is an error."""
    if isinstance(reply, SubmitReply):
        return reply
    raise AssertionError(f"a submission was refused with {reply!r}") from reply


def done(uri: str = "memory://box/out") -> Completed:
    """Return the outcome of a completed attempt with its result at `uri`."""
    return Completed(ResultRef(uri, 3, "text/csv"))


def ids(jobs: Iterable[Job]) -> list[str]:
    """Return the ids of the jobs, in the same order."""
    return [job.id for job in jobs]


def without_id(spec: NewJob) -> NewJob:
    """Return the specification without its id, for comparison.

    A ledger may write the job's id into it.
    """
    return replace(spec, id="")


def drain_wakeups(wakeup: Wakeup) -> None:
    """Consume the changes so far. The loop is bounded because a waiter may wake without a change."""
    for _ in range(_WAKEUPS_MAX):
        if not wakeup.wait(NO_WAIT_S):
            return


def expect_wakeup(wakeup: Wakeup, of_what: str) -> None:
    """Raise AssertionError unless the waiter reports a change within `WAKEUP_TIMEOUT_S`."""
    true(wakeup.wait(WAKEUP_TIMEOUT_S), f"a waiter did not report {of_what} within {WAKEUP_TIMEOUT_S:g} s")


def run_concurrently(calls: Iterable[Callable[[], _ResultT]]) -> list[_ResultT]:
    """Run the calls at the same moment, each in its own thread. Return their results in order.

    Raise the exception of the first call that failed.
    """
    pending = list(calls)
    barrier = threading.Barrier(len(pending))

    def run(call: Callable[[], _ResultT]) -> _ResultT:
        barrier.wait(_WAIT_S)
        return call()

    with ThreadPoolExecutor(len(pending)) as pool:
        futures = [pool.submit(run, call) for call in pending]
        return [future.result(_WAIT_S) for future in futures]
