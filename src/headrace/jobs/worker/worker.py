"""A worker's life: threads that claim, beat, work and look after the ledger, around the models that somebody else runs."""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.jobs.attempt import Attempt, StopReason
from headrace.jobs.job import Completed, Job, Kind, Settlement
from headrace.jobs.kind import KindRunner
from headrace.jobs.ledger import JobLedger, Wakeup
from headrace.jobs.worker.beats import Beats
from headrace.jobs.worker.roster import Roster
from headrace.jobs.worker.settings import WorkerSettings
from headrace.jobs.worker.turns import Turns
from headrace.jobs.worker.verdict import verdict

_log = logging.getLogger("headrace.jobs")

_ASIDE_THREADS: Final = 4
_ASIDE_MAX: Final = 256
"""What waits to be done beside the jobs; beyond, it is left to the sweepers."""
STOP_S: Final = 30.0
"""How long jobs that were told to stop are waited for; then their leases are left to run out."""

Secure = Callable[[Sequence[Settlement]], Sequence[Settlement]]
Ended = Callable[[Attempt, Settlement], None]


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """How a worker has fared since it began."""

    running: int = 0
    begun: int = 0
    completed: int = 0
    failed: int = 0
    """Attempts that failed, for good or not."""
    released: int = 0
    lost: int = 0
    """Attempts whose lease was lost, or whose settlement came too late."""


class Worker:
    """Implements `headrace.core.Service`; use it once.

    `stop(drain=True)` claims no more, lets jobs go on for `drain_grace_s`, gives back those that are left, and returns.
    Without drain they are given back at once. Either way none is lost: what cannot be told to the ledger any more is
    claimed again when its lease has run out.

    Args:
        ledger: Started; stopped by whoever started it, after the worker.
        kinds: Who does the jobs of each kind.
        settings: Queues, concurrency, lease.
        wakeups: What tells of news beside the ledger's own: listeners of dispatchers.
        secure: Makes results durable before they are settled; see `Turns`.
        ended: Told of every settlement that counted, in a thread beside; may be skipped under load.
        hide: A prefix of URIs that is nobody's business; see `verdict`.
        clock: Waits, and tells time limits.
        seed: For the jitter of waits; None draws one.
    """

    def __init__(
        self,
        ledger: JobLedger,
        kinds: Mapping[Kind, KindRunner],
        settings: WorkerSettings,
        *,
        wakeups: Sequence[Wakeup] = (),
        secure: Secure = lambda settlements: settlements,
        ended: Ended = lambda _attempt, _settlement: None,
        hide: str = "",
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self.settings = settings
        self._ledger = ledger
        self._kinds = kinds
        self._wakeups = list(wakeups)
        self._ended = ended
        self._hide = hide
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._roster = Roster()
        self._beats = Beats(ledger, settings, self._roster, clock=self._clock)
        self._turns = Turns(
            ledger,
            settings,
            self._roster,
            begin=self._begin,
            secure=secure,
            settled=self._settled,
            may_claim=lambda: not self._beats.late,
            clock=self._clock,
            share=self._random.random,
        )
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(("begun", "completed", "failed", "released", "lost"), 0)
        self._waits_alone: Attempt | None = None
        self._aside_waiting = 0
        self._started = self._stopped = False
        self._listening = True
        self._threads: list[threading.Thread] = []
        self._slots: ThreadPoolExecutor | None = None
        self._aside: ThreadPoolExecutor | None = None

    # Life

    def start(self) -> None:
        """Begin to work."""
        if self._started:
            return
        self._started = True
        self._slots = ThreadPoolExecutor(self.settings.concurrency, "headrace-job")
        self._aside = ThreadPoolExecutor(_ASIDE_THREADS, "headrace-job-aside")
        self._wakeups.insert(0, self._ledger.wakeup(self.settings.queues))
        jobs: list[tuple[str, Callable[[], Any]]] = [
            ("turns", self._turns.run),
            ("beats", self._beats.run),
            *((f"news-{i}", lambda w=w: self._listen(w)) for i, w in enumerate(self._wakeups)),
        ]
        self._threads = [
            threading.Thread(target=do, name=f"headrace-{name}", daemon=True) for name, do in jobs
        ]
        for thread in self._threads:
            thread.start()
        _log.info("worker began", extra={"worker": self.settings.name, "queues": list(self.settings.queues)})

    def close(self) -> None:
        """Claim no more, and go on with what is in hand. For a signal handler; `stop` does the rest."""
        self._turns.close()

    def stop(self, *, drain: bool = True) -> None:
        """See the class. May be called again, without drain, by another thread, to cut a drain short."""
        if not self._started:
            return
        self._turns.close()
        if not drain or not self._roster.wait_until_empty(self.settings.drain_grace_s):
            self._roster.stop_all(StopReason.DRAIN)
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        self._roster.wait_until_empty(STOP_S)
        self._turns.end()
        self._beats.end()
        self._listening = False
        for wakeup in self._wakeups:
            wakeup.wake()
        for thread in self._threads:
            thread.join()
        for wakeup in self._wakeups:
            wakeup.close()
        assert self._slots is not None, "started"
        assert self._aside is not None, "started"
        self._slots.shutdown(wait=not len(self._roster), cancel_futures=True)
        self._aside.shutdown(wait=True)
        _log.info("worker ended", extra={"worker": self.settings.name, "left": len(self._roster)})

    def statistics(self) -> WorkerStatistics:
        """A snapshot; safe from any thread."""
        with self._lock:
            return WorkerStatistics(running=len(self._roster), **self._counts)

    # News

    def _listen(self, wakeup: Wakeup) -> None:
        while self._listening:
            if wakeup.wait(self.settings.poll_s):
                self._turns.news()
                self._beats.look()

    # Attempts: begun by the turns' thread, run by a slot's

    def _begin(self, job: Job) -> None:
        attempt = Attempt(job)
        self._roster.add(attempt)
        self._count("begun")
        if job.alone and len(self._roster) > 1:
            self._waits_alone = attempt
            return
        self._run(attempt)

    def _run(self, attempt: Attempt) -> None:
        assert self._slots is not None, "started"
        limit_s = attempt.job.spec.time_limit_s
        if limit_s is not None:
            self._roster.limit(attempt, self._clock.now() + limit_s)
        self._beats.began(limit_s)
        self._slots.submit(self._work, attempt)

    def _work(self, attempt: Attempt) -> None:
        job = attempt.job
        try:
            attempt.check()
            outcome = Completed(self._runner(job.spec.kind).run(attempt))
        except BaseException as error:  # noqa: BLE001 - whatever happens, the job gets its answer
            if not isinstance(error, HeadraceError):
                _log.exception("a job failed in headrace itself", extra={"job": job.id})
            outcome = verdict(attempt, error, share=self._random.random(), hide=self._hide)
        if attempt.stopped is StopReason.LOST or outcome is None:
            self._lose(attempt)
            return
        self._turns.settle(Settlement(job.id, job.lease, outcome, attempt.progress))

    def _runner(self, kind: Kind) -> KindRunner:
        runner = self._kinds.get(kind)
        if runner is None:
            raise ConfigError(f"this worker does no jobs of kind {kind!r} (it does {', '.join(self._kinds)})")
        return runner

    def _settled(self, settlement: Settlement, counted: bool) -> None:
        attempt = self._roster.get(settlement.job_id)
        if attempt is None or attempt.job.lease != settlement.lease:
            return
        if not counted:
            self._lose(attempt)
            return
        self._count(type(settlement.outcome).__name__.lower())
        self._do_aside(self._ended, attempt, settlement)
        self._let_go(attempt)

    def _lose(self, attempt: Attempt) -> None:
        """Nothing of it counts: what it has written goes."""
        self._count("lost")
        runner = self._kinds.get(attempt.job.spec.kind)
        if runner is not None:
            self._do_aside(runner.discard, attempt)
        self._let_go(attempt)

    def _let_go(self, attempt: Attempt) -> None:
        self._roster.remove(attempt)
        waits = self._waits_alone
        if waits is not None and len(self._roster) <= 1:
            self._waits_alone = None
            if waits is not attempt:
                self._run(waits)
        self._turns.room()

    def _count(self, what: str) -> None:
        with self._lock:
            if what in self._counts:
                self._counts[what] += 1

    def _do_aside(self, do: Callable[..., None], *args: object) -> None:
        """In a thread beside; not at all when too much waits there already, since sweepers do it later."""
        assert self._aside is not None, "started"
        with self._lock:
            if self._aside_waiting >= _ASIDE_MAX:
                return
            self._aside_waiting += 1
        self._aside.submit(self._done_aside, do, *args)

    def _done_aside(self, do: Callable[..., None], *args: object) -> None:
        with self._lock:
            self._aside_waiting -= 1
        try:
            do(*args)
        except HeadraceError as error:
            _log.warning("left to the sweepers: %s", error)
        except Exception:  # noqa: BLE001 - the thread has others to do
            _log.exception("left to the sweepers")
