"""Workers and their database in virtual time: how busy claims and wakeups keep it, and how long jobs wait.

The database has two cores, which serve transactions in the order of their arrival. A worker has at most one
transaction at a time, as `LedgerLoop` does: it settles what ended, and claims if it was woken and has a slot.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import quantiles

from scale_model import CORES, MEASURED, Measured, two_digits

_SEED = 1
_WARM = 0.2
"""The share of the time before jobs count."""
KEEPS_UP = 0.95
_HEAD = ("jobs", "database busy", "jobs a claim", "claims without a job", "wait p95", "claimed")


@dataclass(frozen=True)
class Case:
    """Workers of some queues, and the jobs that arrive at the peak."""

    name: str
    jobs_per_s: float
    jobs_per_commit: int = 1
    workers: int = 1000
    slots: int = 8
    queues: int = 1
    run_s: float = 0.1
    seconds: float = 5.0
    woken_max: int | None = None
    """Workers that a commit wakes; None for all workers of the queue."""


CASES = (
    Case("(a) a job each", 34_722, 100, seconds=1.5),
    Case("(a), 100 workers with 64 slots", 34_722, 100, workers=100, slots=64, seconds=1.5),
    Case("(b) 1,000 rows a job", 34.722, run_s=1.0, seconds=10),
    Case("(b), ten queues", 34.722, queues=10, run_s=1.0, seconds=10),
    Case("(b), a commit wakes four workers", 34.722, run_s=1.0, seconds=10, woken_max=4),
    Case("(c) files of 1,000 rows", 0.34722, run_s=60.0, seconds=120),
)


@dataclass
class _Worker:
    queue: int
    free: int
    is_woken: bool = False
    in_transaction: bool = False
    ended: int = 0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case."""

    busy: float
    """The share of the time in which the cores work."""
    jobs_per_claim: float
    """Jobs of a claim that found some."""
    empty: float
    """The share of the claims that found none."""
    wait_p95_s: float
    claimed: float
    """The share of the arrived jobs that were claimed."""

    @property
    def wait(self) -> str:
        """The wait as text. Without an end if the database does not keep up."""
        return f"{two_digits(self.wait_p95_s * 1000)} ms" if self.claimed > KEEPS_UP else "grows"


class Simulation:
    """A run of one case, the same each time."""

    def __init__(self, case: Case, measured: Measured = MEASURED) -> None:
        self._case, self._measured = case, measured
        self._draw = random.Random(_SEED)
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._free_cores = CORES
        self._busy_s = 0.0
        self._line: deque[tuple[_Worker, int]] = deque()
        """The workers whose transactions wait for a core, with the jobs that they settle."""
        self._waiting: list[deque[float]] = [deque() for _ in range(case.queues)]
        """The times of the waiting jobs of each queue."""
        self._workers = [_Worker(number % case.queues, case.slots) for number in range(case.workers)]
        self._arrived = 0
        self._claims: list[int] = []
        self._waits_s: list[float] = []

    def run(self) -> Outcome:
        """Return the outcome after the time of the case."""
        self._at(0.0, self._submit)
        while self._events and self._events[0][0] <= self._case.seconds:
            self._now_s, _, action = heapq.heappop(self._events)
            action()
        found = [count for count in self._claims if count]
        return Outcome(
            busy=self._busy_s / self._case.seconds / CORES,
            jobs_per_claim=sum(found) / len(found),
            empty=1 - len(found) / len(self._claims),
            wait_p95_s=quantiles(self._waits_s, n=20)[-1],
            claimed=sum(found) / self._arrived,
        )

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self._now_s + seconds, self._number, action))

    def _submit(self) -> None:
        """Commit some jobs, and wake the workers of their queue."""
        case = self._case
        queue = self._draw.randrange(case.queues)
        self._waiting[queue].extend([self._now_s] * case.jobs_per_commit)
        self._arrived += case.jobs_per_commit
        self._at(self._draw.expovariate(case.jobs_per_s / case.jobs_per_commit), self._submit)
        # Notices arrive in another order each time.
        woken = self._workers[queue :: case.queues]
        self._draw.shuffle(woken)
        for worker in woken[: case.woken_max]:
            worker.is_woken = True
            self._begin(worker)

    def _begin(self, worker: _Worker) -> None:
        """Begin a transaction, if the worker has something to settle, or was woken and has a slot."""
        if worker.in_transaction or not (worker.ended or (worker.is_woken and worker.free)):
            return
        worker.in_transaction = True
        settled, worker.ended = worker.ended, 0
        worker.free += settled
        self._line.append((worker, settled))
        self._serve()

    def _serve(self) -> None:
        """Let free cores run transactions."""
        while self._free_cores and self._line:
            worker, settled = self._line.popleft()
            self._free_cores -= 1
            taken = self._claim(worker) if worker.is_woken and worker.free else []
            seconds = self._cost_s(max(settled, len(taken)))
            self._busy_s += seconds
            if self._now_s > _WARM * self._case.seconds:
                self._waits_s += [self._now_s + seconds - arrived_s for arrived_s in taken]
            self._at(seconds, partial(self._end, worker, len(taken)))

    def _claim(self, worker: _Worker) -> list[float]:
        waiting = self._waiting[worker.queue]
        taken = [waiting.popleft() for _ in range(min(worker.free, len(waiting)))]
        worker.free -= len(taken)
        worker.is_woken = bool(waiting)
        self._claims.append(len(taken))
        return taken

    def _cost_s(self, jobs: int) -> float:
        """Return the time of a transaction: that of one job, and a part of that of eight for each more."""
        found = self._measured
        if not jobs:
            return found.empty_claim_us / 1e6
        more_us = (8 * found.claim_slots_us - found.claim_us) / 7
        return (found.claim_us + (jobs - 1) * more_us) / 1e6

    def _end(self, worker: _Worker, taken: int) -> None:
        worker.in_transaction = False
        self._free_cores += 1
        for _ in range(taken):
            self._at(self._case.run_s, partial(self._finish, worker))
        self._begin(worker)
        self._serve()

    def _finish(self, worker: _Worker) -> None:
        worker.ended += 1
        self._begin(worker)


def simulation_table() -> str:
    """Return the outcomes of all cases as a table in Markdown."""
    rows: list[Sequence[str]] = [_HEAD, ("---",) * len(_HEAD)]
    for case in CASES:
        found = Simulation(case).run()
        rows.append((
            case.name, f"{found.busy:.0%}".replace("%", " %"), two_digits(found.jobs_per_claim),
            f"{found.empty * 100:.3g} %", found.wait,
            f"{found.claimed:.0%}".replace("%", " %"),
        ))  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(simulation_table())
