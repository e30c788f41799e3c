"""A worker's life: threads that claim, beat, work and look after the ledger, around the models that somebody else runs."""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.jobs.attempt import Attempt, AttemptStoppedError, StopReason
from headrace.jobs.cause import Cause
from headrace.jobs.job import Completed, Failed, Job, JobFailure, Kind, Outcome, Progress, Settlement
from headrace.jobs.kind import KindRunner
from headrace.jobs.ledger import JobLedger, Wakeup
from headrace.jobs.worker.beats import Beats
from headrace.jobs.worker.crew import Crew
from headrace.jobs.worker.roster import Roster
from headrace.jobs.worker.settings import WorkerSettings
from headrace.jobs.worker.turns import Turns
from headrace.jobs.worker.verdict import verdict

_log = logging.getLogger("headrace.jobs")

_ASIDE_THREADS: Final = 4
_ASIDE_MAX: Final = 256
"""What waits to be done beside the jobs; beyond, it is left to the sweepers."""
_ASIDE_STOP_S: Final = 30.0
"""How long a worker that leaves waits for what is done beside the jobs; the rest is left to the sweepers."""
_LAST_WORDS_S: Final = 10.0
"""How long, beyond `stop_s`, a worker that leaves waits for the ledger to answer."""
_DEFECT_RETRY_MS: Final = 10_000

Secure = Callable[[Sequence[Settlement]], Sequence[Settlement]]
Ended = Callable[[Attempt, Settlement], None]
Listen = Callable[[Sequence[str]], Wakeup]


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
    stuck: int = 0
    """Attempts that were settled without their say, since they did not stop when they were told to."""


class Worker:
    """Implements `headrace.core.Service`; use it once.

    `stop(drain=True)` claims no more, lets jobs go on for `drain_grace_s`, gives back those that are left, and returns.
    Without drain they are given back at once. Either way none is lost: what cannot be told to the ledger any more is
    claimed again when its lease has run out. A job that does not listen is given back after `stop_s` all the same; its thread
    is left behind, and ends with the process.

    Args:
        ledger: Started; stopped by whoever started it, after the worker.
        kinds: Who does the jobs of each kind.
        settings: Queues, concurrency, lease.
        listen: Makes what tells of news of some queues beside the ledger's own, such as a dispatcher's listener; closed here.
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
        listen: Listen | None = None,
        secure: Secure = lambda settlements: settlements,
        ended: Ended = lambda _attempt, _settlement: None,
        hide: str = "",
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self.settings = settings
        self._ledger = ledger
        self._kinds = kinds
        self._listen_to = listen
        self._wakeups: list[Wakeup] = []
        self._ended = ended
        self._hide = hide
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._roster = Roster()
        self._beats = Beats(ledger, settings, self._roster, give_up=self._give_up, clock=self._clock)
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
        self._counts: dict[str, int] = dict.fromkeys(
            ("begun", "completed", "failed", "released", "lost", "stuck"), 0
        )
        self._wait_alone: deque[Attempt] = deque()
        """Attempts that begin when nothing else is in hand."""
        self._aside_waiting = 0
        self._life = threading.Lock()
        self._started = self._ending = self._giving_back = False
        self._over = threading.Event()
        self._listening = True
        self._unheard = threading.Event()
        self._threads: list[threading.Thread] = []
        self._slots = Crew(settings.concurrency, "headrace-job")
        self._aside = Crew(_ASIDE_THREADS, "headrace-job-aside")

    # Life

    def start(self) -> None:
        """Begin to work. Raises what kept it from that, leaving nothing running; then, or once stopped, it does nothing more."""
        with self._life:
            if self._started:
                return
            self._started = True
            try:
                self._begin_threads()
            except BaseException:
                self._turns.close()
                self._give_back()
                self._end()
                raise
        _log.info("worker began", extra={"worker": self.settings.name, "queues": list(self.settings.queues)})

    def _begin_threads(self) -> None:
        self._wakeups.append(self._ledger.wakeup(self.settings.queues))
        if self._listen_to is not None:
            self._wakeups.append(self._listen_to(self.settings.queues))
        self._slots.start()
        self._aside.start()
        jobs: list[tuple[str, Callable[[], Any]]] = [
            ("turns", self._turns.run),
            ("beats", self._beats.run),
            *((f"news-{i}", partial(self._listen, w)) for i, w in enumerate(self._wakeups)),
        ]
        for name, do in jobs:
            thread = threading.Thread(target=do, name=f"headrace-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Claim no more, and go on with what is in hand. For a signal handler; `stop` does the rest."""
        self._turns.close()

    def stop(self, *, drain: bool = True) -> None:
        """See the class. May be called again, without drain, by another thread, to cut a drain short: both return at its end."""
        with self._life:
            if not self._started:
                return
        self._turns.close()
        if not drain or not self._roster.wait_until_empty(self._clock, self.settings.drain_grace_s):
            self._give_back()
        with self._lock:
            first, self._ending = not self._ending, True
        if first:
            self._end()
        self._over.wait()

    def _give_back(self) -> None:
        """Tell all attempts, also those that are about to begin."""
        self._giving_back = True
        self._roster.stop_all(StopReason.DRAIN)
        self._beats.told()

    def _end(self) -> None:
        self._ending = True
        try:
            if self._threads:
                patience_s = self.settings.stop_s + _LAST_WORDS_S
                self._roster.wait_until_empty(self._clock, patience_s)
            self._turns.end()
            self._beats.end()
            self._listening = False
            self._unheard.set()
            for wakeup in self._wakeups:
                wakeup.wake()
            for thread in self._threads:
                thread.join()
            for wakeup in self._wakeups:
                wakeup.close()
            self._slots.stop(0.0 if self._roster.staying()[0] else _ASIDE_STOP_S)
            self._aside.stop(_ASIDE_STOP_S)
            _log.info("worker ended", extra={"worker": self.settings.name, "left": len(self._roster)})
        finally:
            self._over.set()

    def statistics(self) -> WorkerStatistics:
        """A snapshot; safe from any thread."""
        with self._lock:
            return WorkerStatistics(running=len(self._roster), **self._counts)

    # News

    def _listen(self, wakeup: Wakeup) -> None:
        while self._listening:
            try:
                news = wakeup.wait(self.settings.poll_s)
            except Exception:  # noqa: BLE001 - without this thread, jobs wait until the queues are looked at
                _log.exception("what tells of news failed, it is asked again")
                self._clock.sleep(self.settings.poll_s, self._unheard)
                continue
            if news:
                self._turns.news()
                self._beats.look()

    # Attempts: begun by the turns' thread, run by a slot's

    def _begin(self, job: Job) -> None:
        attempt = Attempt(job)
        self._roster.add(attempt)
        self._count("begun")
        if self._giving_back:
            # Claimed by a turn that was under way when all were told.
            attempt.stop(StopReason.DRAIN)
        with self._lock:
            waits = job.alone and len(self._roster) > 1
            if waits:
                self._wait_alone.append(attempt)
        if waits:
            attempt.on_stop(partial(self._begin_stopped, attempt))
        else:
            self._run(attempt)

    def _begin_waiting(self) -> None:
        """Begin the next of those that must be alone, if nothing else is in hand."""
        with self._lock:
            if not self._wait_alone or len(self._roster) > len(self._wait_alone):
                return
            attempt = self._wait_alone.popleft()
        self._run(attempt)

    def _begin_stopped(self, attempt: Attempt) -> None:
        """One that waits was told to stop: it need not wait for that."""
        with self._lock:
            if attempt not in self._wait_alone:
                return
            self._wait_alone.remove(attempt)
        self._run(attempt)

    def _run(self, attempt: Attempt) -> None:
        limit_s = attempt.job.spec.time_limit_s
        self._roster.begin(attempt, None if limit_s is None else self._clock.now() + limit_s)
        self._beats.began(limit_s)
        self._slots.submit(partial(self._work, attempt))

    def _work(self, attempt: Attempt) -> None:
        outcome = self._outcome(attempt)
        progress = attempt.progress
        self._roster.returned(attempt)
        if self._roster.answer(attempt):
            self._settle(attempt, outcome, progress)
            return
        # It was given up before; its slot is of use again.
        self._discard(attempt)
        self._turns.room()

    def _outcome(self, attempt: Attempt) -> Outcome | None:
        """Do the job; what it came to, None where nothing of it counts."""
        try:
            attempt.check()
            result = self._runner(attempt.job.spec.kind).run(attempt)
        except BaseException as error:  # noqa: BLE001 - whatever happens, the job gets its answer
            if not isinstance(error, HeadraceError):
                _log.exception("a job failed in headrace itself", extra={"job": attempt.job.id})
            return self._verdict(attempt, error)
        return None if attempt.stopped is StopReason.LOST else Completed(result)

    def _verdict(self, attempt: Attempt, error: BaseException) -> Outcome | None:
        try:
            return verdict(attempt, error, share=self._random.random(), hide=self._hide)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("an error could not be judged", extra={"job": attempt.job.id})
            failure = JobFailure(
                Cause.DEFECT, "headrace itself failed; its log says how, under this job's id"
            )
            return Failed(failure, _DEFECT_RETRY_MS)

    def _give_up(self, attempt: Attempt) -> None:
        """It was told to stop, and does not: it is settled without its say."""
        reason = attempt.stopped
        if reason is None or not self._roster.answer(attempt):
            return
        self._count("stuck")
        _log.error(
            "an attempt does not stop, it is settled without its say; its slot is out of use until it returns",
            extra={"job": attempt.job.id, "reason": reason.value},
        )
        self._settle(attempt, self._verdict(attempt, AttemptStoppedError(reason)), None)

    def _settle(self, attempt: Attempt, outcome: Outcome | None, progress: Progress | None) -> None:
        if outcome is None:
            self._lose(attempt)
            return
        self._turns.settle(Settlement(attempt.job.id, attempt.job.lease, outcome, progress))

    def _runner(self, kind: Kind) -> KindRunner:
        runner = self._kinds.get(kind)
        if runner is None:
            raise ConfigError(f"this worker does no jobs of kind {kind!r} (it does {', '.join(self._kinds)})")
        return runner

    def _settled(self, settlement: Settlement, counted: bool) -> None:
        attempt = self._roster.get(settlement.job_id, settlement.lease)
        if attempt is None:
            return
        if not counted:
            self._lose(attempt)
            return
        self._count(type(settlement.outcome).__name__.lower())
        self._do_aside(partial(self._ended, attempt, settlement))
        self._let_go(attempt)

    def _lose(self, attempt: Attempt) -> None:
        """Nothing of it counts: what it has written goes."""
        self._count("lost")
        self._discard(attempt)
        self._let_go(attempt)

    def _discard(self, attempt: Attempt) -> None:
        runner = self._kinds.get(attempt.job.spec.kind)
        if runner is not None:
            self._do_aside(partial(runner.discard, attempt))

    def _let_go(self, attempt: Attempt) -> None:
        self._roster.remove(attempt)
        self._begin_waiting()
        self._turns.room()

    def _count(self, what: str) -> None:
        with self._lock:
            if what in self._counts:
                self._counts[what] += 1

    def _do_aside(self, do: Callable[[], None]) -> None:
        """In a thread beside; not at all when too much waits there already, since sweepers do it later."""
        with self._lock:
            if self._aside_waiting >= _ASIDE_MAX:
                return
            self._aside_waiting += 1
        self._aside.submit(partial(self._done_aside, do))

    def _done_aside(self, do: Callable[[], None]) -> None:
        with self._lock:
            self._aside_waiting -= 1
        try:
            do()
        except HeadraceError as error:
            _log.warning("left to the sweepers: %s", error)
        except Exception:  # noqa: BLE001 - the thread has others to do
            _log.exception("left to the sweepers")
