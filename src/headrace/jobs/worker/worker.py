"""A worker: threads that claim, send heartbeats, run attempts and settle.

The models belong to the caller.
"""

import logging
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError
from headrace.core.predictor import Service
from headrace.jobs.job import Failed, Job, JobProgress, Kind, Outcome, Settlement
from headrace.jobs.kinds import (
    Attempt,
    AttemptRunner,
    AttemptStoppedError,
    KindRunner,
    StopReason,
)
from headrace.jobs.ledger import JobLedger, Wakeup
from headrace.jobs.state import Cause
from headrace.jobs.tracing import AttemptSpan, JobTracer
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.ledger_loop import LedgerLoop
from headrace.jobs.worker.registration import Registration, worker_info
from headrace.jobs.worker.running_jobs import Heartbeats, RunningJobs
from headrace.jobs.worker_registry import WorkerReport

_log = logging.getLogger("headrace.jobs")

_BACKGROUND_THREADS: Final = 4
_BACKGROUND_MAX: Final = 256
"""The number of waiting background tasks; the sweepers do the rest."""
_BACKGROUND_STOP_S: Final = 30.0
"""Seconds for which a stopping worker waits for background tasks; the sweepers do the rest."""
_LEDGER_WAIT_S: Final = 10.0
"""Seconds beyond `stop_s` for which a stopping worker waits for the ledger."""

Secure = Callable[[Sequence[Settlement]], Sequence[Settlement]]
Ended = Callable[[Attempt, Settlement], None]
Listen = Callable[[Sequence[str]], Wakeup]
Task = Callable[[], object]


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Cumulative counters of a worker."""

    running: int = 0
    begun: int = 0
    completed: int = 0
    failed: int = 0
    """Failed attempts, retried or not."""
    released: int = 0
    lost: int = 0
    """Attempts with a lost lease or a late settlement."""
    stuck: int = 0
    """Attempts that were settled although they had not stopped."""


class Worker(Service):
    """A worker of the job queue, as a service. Use it once.

    `stop(drain=True)` claims no more, lets attempts continue for `drain_grace_s`, releases the
    rest, and returns. Without drain the attempts are released at once. No job is lost either way: a
    job that could not be released is claimed again after its lease has expired. An attempt that
    ignores the stop is released after `stop_s`; its thread stays behind and ends with the process.

    Args:
        ledger: A started ledger; the caller stops it after the worker.
        kinds: The runners by kind.
        settings: Queues, concurrency, lease.
        models: The names of all models of the worker, as jobs name them; without any, submissions
            are not checked against this worker.
        version: The version of headrace, for the registry of workers.
        read_report: Returns the worker's figures for the registry, at each heartbeat; it must be quick.
        listen: Returns a waiter beside the ledger's own for some queues, such as a wakeup broker's
            listener. The worker closes it.
        secure: Makes results durable before they are settled; see `LedgerLoop`.
        ended: Called in a background thread with each settlement that counted; may be skipped under
            load.
        hide: A URI prefix to hide in messages; see `outcome_of_error`.
        tracer: The tracer of the attempts, if there is any.
        clock: The clock of waits and time limits.
        seed: The seed of the waits' jitter; None draws one.
    """

    def __init__(
        self,
        ledger: JobLedger,
        kinds: Mapping[Kind, KindRunner],
        settings: WorkerSettings,
        *,
        models: Sequence[str] = (),
        version: str = "",
        read_report: Callable[[], WorkerReport] = WorkerReport,
        listen: Listen | None = None,
        secure: Secure = lambda settlements: settlements,
        ended: Ended = lambda _attempt, _settlement: None,
        hide: str = "",
        tracer: JobTracer | None = None,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self.settings = settings
        self._ledger = ledger
        self._listen_to = listen
        self._wakeups: list[Wakeup] = []
        self._ended = ended
        self._tracer = tracer
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._runner = AttemptRunner(kinds, hide=hide, share=self._random.random)
        self._running_jobs = RunningJobs()
        self._registration = Registration(
            ledger,
            worker_info(settings, models, version),
            read_report=read_report,
            is_claiming=lambda: self._running_jobs.claiming,
            resumed=self._resume,
            clock=self._clock,
        )
        self._heartbeats = Heartbeats(
            ledger,
            settings,
            self._running_jobs,
            give_up=self._give_up,
            clock=self._clock,
            registration=self._registration,
        )
        self._ledger_loop = LedgerLoop(
            ledger,
            settings,
            self._running_jobs,
            begin=self._begin,
            secure=secure,
            settled=self._settled,
            may_claim=self._heartbeats.may_claim,
            clock=self._clock,
            share=self._random.random,
        )
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(
            ("begun", "completed", "failed", "released", "lost", "stuck"), 0
        )
        self._waiting_alone: deque[Attempt] = deque()
        """Attempts that begin once no other attempt is open."""
        self._lifecycle = threading.Lock()
        self._started = self._ending = self._releasing = False
        self._over = threading.Event()
        self._listening_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._slots = WorkerThreads(settings.concurrency, "headrace-job")
        self._background = BackgroundTasks(
            _BACKGROUND_THREADS, "headrace-job-background", waiting_max=_BACKGROUND_MAX
        )

    # Start and stop

    @override
    def start(self) -> None:
        """Start.

        Raise the error that prevents it, leaving nothing running. A worker cannot be restarted.
        """
        with self._lifecycle:
            if self._started:
                return
            self._started = True
            try:
                self._begin_threads()
            except BaseException:
                self._ledger_loop.close()
                self._release_all()
                self._end()
                raise
        _log.info("worker began", extra={"worker": self.settings.name, "queues": list(self.settings.queues)})

    def _begin_threads(self) -> None:
        self._wakeups.append(self._ledger.wakeup(self.settings.queues))
        # Before the worker is ready, so that no submission precedes the report of its models.
        self._registration.register()
        if self._listen_to is not None:
            self._wakeups.append(self._listen_to(self.settings.queues))
        self._slots.start()
        self._background.start()
        jobs: list[tuple[str, Callable[[], Any]]] = [
            ("ledger-loop", self._ledger_loop.run),
            ("heartbeats", self._heartbeats.run),
            *((f"news-{i}", partial(self._listen, w)) for i, w in enumerate(self._wakeups)),
        ]
        for name, do in jobs:
            thread = threading.Thread(target=do, name=f"headrace-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Stop, as the class docstring says.

        Another thread may call `stop` again without drain to shorten a drain; both calls return at
        its end.
        """
        with self._lifecycle:
            if not self._started:
                return
        self._ledger_loop.close()
        if not drain or not self._clock.sleep(self.settings.drain_grace_s, self._running_jobs.empty):
            self._release_all()
        with self._lock:
            first, self._ending = not self._ending, True
        if first:
            self._end()
        self._over.wait()

    def _release_all(self) -> None:
        """Stop all attempts with DRAIN, also those that are about to begin."""
        self._releasing = True
        self._running_jobs.stop_all(StopReason.DRAIN)
        self._heartbeats.attempts_stopped()

    def _end(self) -> None:
        self._ending = True
        try:
            if self._threads:
                timeout_s = self.settings.stop_s + _LEDGER_WAIT_S
                self._clock.sleep(timeout_s, self._running_jobs.empty)
            self._ledger_loop.end()
            self._heartbeats.end()
            self._listening_over.set()
            for wakeup in self._wakeups:
                wakeup.wake()
            for thread in self._threads:
                thread.join()
            for wakeup in self._wakeups:
                wakeup.close()
            self._slots.stop(0.0 if self._running_jobs.slots_after()[0] else _BACKGROUND_STOP_S)
            self._background.stop(_BACKGROUND_STOP_S)
            self._registration.end()
            _log.info("worker ended", extra={"worker": self.settings.name, "left": len(self._running_jobs)})
        finally:
            self._over.set()

    @property
    def stop_s_max(self) -> float:
        """Seconds that `stop` needs at most, unless a call of the ledger, a store or a broker hangs."""
        return self.settings.drain_grace_s + self.settings.stop_s + _LEDGER_WAIT_S

    def statistics(self) -> WorkerStatistics:
        """Return a snapshot of the counters. Thread-safe."""
        with self._lock:
            return WorkerStatistics(running=len(self._running_jobs), **self._counts)

    # Notifications

    def _resume(self) -> None:
        """Claim again after a drain."""
        self._ledger_loop.notify()

    def _listen(self, wakeup: Wakeup) -> None:
        while not self._listening_over.is_set():
            try:
                changed = wakeup.wait(self.settings.poll_s)
            except Exception:  # noqa: BLE001 - without this thread, jobs wait for polling
                _log.exception("waiting for changes failed, retrying")
                self._clock.sleep(self.settings.poll_s, self._listening_over)
                continue
            if changed:
                self._ledger_loop.notify()
                self._heartbeats.check_orders()

    # Attempts: begun by the ledger loop's thread, run by a slot's thread

    def _begin(self, job: Job) -> None:
        attempt = Attempt(job, None if self._tracer is None else AttemptSpan(self._tracer, job))
        self._running_jobs.add(attempt)
        self._count("begun")
        if self._releasing:
            # Claimed by a transaction that was under way when all attempts were stopped.
            attempt.stop(StopReason.DRAIN)
        with self._lock:
            waits = job.alone and len(self._running_jobs) > 1
            if waits:
                self._waiting_alone.append(attempt)
        if waits:
            attempt.add_stop_callback(partial(self._begin_stopped, attempt))
        else:
            self._run(attempt)

    def _begin_stopped(self, attempt: Attempt) -> None:
        """Begin a waiting attempt that was stopped, so that it ends at once."""
        with self._lock:
            if attempt not in self._waiting_alone:
                return
            self._waiting_alone.remove(attempt)
        self._run(attempt)

    def _run(self, attempt: Attempt) -> None:
        limit_s = attempt.job.spec.time_limit_s
        self._running_jobs.begin(attempt, None if limit_s is None else self._clock.now() + limit_s)
        self._heartbeats.attempt_began(limit_s)
        self._slots.submit(partial(self._work, attempt))

    def _work(self, attempt: Attempt) -> None:
        outcome = self._runner.run(attempt)
        progress = attempt.progress
        if self._running_jobs.thread_returned(attempt):
            self._settle(attempt, outcome, progress)
            return
        # The attempt was given up before; its slot is free again.
        self._background.submit(partial(self._runner.discard, attempt))
        self._ledger_loop.slot_freed()

    def _give_up(self, attempt: Attempt) -> None:
        """Settle an attempt that ignores its stop, without waiting for it."""
        reason = attempt.stopped
        if reason is None or not self._running_jobs.mark_finished(attempt):
            return
        self._count("stuck")
        _log.error(
            "an attempt ignores its stop: it is settled, and its slot stays occupied until it returns",
            extra={"job": attempt.job.id, "reason": reason.value},
        )
        self._settle(attempt, self._runner.outcome_of(attempt, AttemptStoppedError(reason)), None)

    def _settle(self, attempt: Attempt, outcome: Outcome | None, progress: JobProgress | None) -> None:
        if outcome is None:
            self._lose(attempt)
            return
        if isinstance(outcome, Failed) and outcome.failure.cause is Cause.NO_MODEL:
            self._ledger_loop.leave_model(attempt.job.spec.model)
        self._ledger_loop.settle(Settlement(attempt.job.id, attempt.job.lease, outcome, progress))

    def _settled(self, settlement: Settlement, counted: bool) -> None:
        attempt = self._running_jobs.get(settlement.job_id, settlement.lease)
        if attempt is None:
            return
        if not counted:
            self._lose(attempt)
            return
        self._count(type(settlement.outcome).__name__.lower())
        if attempt.span is not None:
            attempt.span.end(settlement)
        self._background.submit(partial(self._ended, attempt, settlement))
        self._remove(attempt)

    def _lose(self, attempt: Attempt) -> None:
        """Discard an attempt that does not count, with its output."""
        self._count("lost")
        if attempt.span is not None:
            attempt.span.end(None)
        self._background.submit(partial(self._runner.discard, attempt))
        self._remove(attempt)

    def _remove(self, attempt: Attempt) -> None:
        """Remove an attempt; the next one that must run alone begins if no other is open."""
        self._running_jobs.remove(attempt)
        waiting = None
        with self._lock:
            if self._waiting_alone and len(self._running_jobs) <= len(self._waiting_alone):
                waiting = self._waiting_alone.popleft()
        if waiting is not None:
            self._run(waiting)
        self._ledger_loop.slot_freed()

    def _count(self, what: str) -> None:
        with self._lock:
            if what in self._counts:
                self._counts[what] += 1


class WorkerThreads:
    """A fixed number of daemon threads over one queue whose length the caller bounds. Use it once.

    A task that never returns does not keep the process from exiting. (The interpreter waits at exit
    for the threads of `concurrent.futures`, however they were shut down.)
    """

    def __init__(self, size: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(size)
        ]

    def start(self) -> None:
        """Start the threads.

        Raise RuntimeError if a thread cannot be created; then `stop` ends the others.
        """
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> None:
        """Queue a task for the next free thread.

        Never block and never raise; tasks after `stop` are dropped.
        """
        self._tasks.put(task)

    def stop(self, timeout_s: float) -> bool:
        """Finish queued tasks; after `timeout_s`, begin no more.

        Return True if all threads have ended.
        """
        for _ in self._threads:
            self._tasks.put(None)
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))
        self._leaving.set()
        with suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
        for _ in self._threads:
            self._tasks.put(None)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while not self._leaving.is_set():
            task = self._tasks.get()
            if task is None:
                return
            try:
                task()
            except BaseException:  # noqa: BLE001 - the thread must continue
                _log.exception("a task failed in a worker thread, the thread continues")


class BackgroundTasks(WorkerThreads):
    """Threads for work that the sweepers would do later: at most `waiting_max` tasks wait."""

    def __init__(self, size: int, name: str, *, waiting_max: int) -> None:
        super().__init__(size, name)
        self._lock = threading.Lock()
        self._waiting_max = waiting_max

    @override
    def submit(self, task: Task) -> None:
        """Queue a task; drop it if too many wait."""
        with self._lock:
            if self._tasks.qsize() < self._waiting_max:
                super().submit(partial(_try, task))


def _try(task: Task) -> None:
    try:
        task()
    except HeadraceError as error:
        _log.warning("left to the sweepers: %s", error)
    except Exception:  # noqa: BLE001 - the thread must continue
        _log.exception("left to the sweepers")
