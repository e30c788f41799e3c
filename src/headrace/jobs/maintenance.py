"""Maintenance of a job ledger and its objects: periodic tasks, and the service that runs them.

The reaper takes back expired leases. The reconciler announces again the jobs that wait longer
than they should, in case an announcement was lost. The sweeper deletes expired data: ended jobs
with their objects, and objects that belong to no job. The publisher writes the ends of jobs that
their workers did not publish.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Annotated, Final

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError, JobLedgerUnavailableError
from headrace.core.predictor import Service
from headrace.core.settings import Setting, check
from headrace.jobs.job import Job, is_job_id
from headrace.jobs.ledger import JobFilter, JobLedger
from headrace.jobs.paths import JobPaths
from headrace.jobs.payloads import Publication
from headrace.jobs.state import WITH_RESULT, JobState
from headrace.storage.local import LocalStore, prune_folder, remove_folder
from headrace.storage.resolve import Stores
from headrace.storage.uri import parse

REAPED_JOBS_MAX: Final = 500
ANNOUNCED_JOBS_MAX: Final = 500
SCANNED_JOBS_MAX: Final = 10_000
_PAGE_JOBS: Final = 500
SWEPT_JOBS_MAX: Final = 200
ORPHANS_ROUND: Final = 1000
PUBLISHED_JOBS_MAX: Final = 100

_log = logging.getLogger("headrace.jobs")


@dataclass(frozen=True, slots=True)
class MaintenanceTask:
    """A periodic task.

    `do` runs one round and returns how much it did; a full round is repeated at once.
    """

    name: str
    every_s: float
    do: Callable[[], int]
    full: int | None = None
    """A round that did this much may have left more."""


class Maintenance(Service):
    """A service that runs maintenance tasks. Use it once.

    Each task has its own thread, so that an unavailable store does not delay the take-back of
    leases. A failed round is logged and repeated at its next time. After the ledger was
    unavailable, all tasks pause for `hold_off_s`: running workers must be able to send heartbeats
    before their leases are taken back.

    `stop` waits `stop_s` for running rounds; a longer round ends by itself, or with the process.
    """

    def __init__(
        self,
        tasks: Sequence[MaintenanceTask],
        *,
        hold_off_s: float,
        stop_s: float = 10.0,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self._tasks = tuple(tasks)
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._hold_off_s = hold_off_s
        self._stop_s = stop_s
        self._paused_until_s = float("-inf")
        self._wake = threading.Event()
        self._life = threading.Lock()
        self._threads: list[threading.Thread] = []

    @override
    def start(self) -> None:
        """Start. Raise RuntimeError if a thread cannot be created; then `stop` ends the others."""
        with self._life:
            if self._threads or self._wake.is_set():
                return
            for task in self._tasks:
                thread = threading.Thread(
                    target=self._run, args=(task,), name=f"headrace-{task.name}", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Stop after the running rounds; `drain` has no effect."""
        with self._life:
            threads = self._threads
            if threads:
                self._wake.set()
        until_s = time.monotonic() + self._stop_s
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        unfinished = [thread.name for thread in threads if thread.is_alive()]
        if unfinished:
            _log.warning("maintenance tasks did not end in time: %s", ", ".join(unfinished))

    def _run(self, task: MaintenanceTask) -> None:
        # The first round is anywhere in its interval, so that workers started together do not run
        # in step.
        wait_s = task.every_s * self._random.random()
        while not self._wake.is_set():
            wait_s = max(wait_s, self._paused_until_s - self._clock.now())
            if wait_s > 0 and self._clock.sleep(wait_s, self._wake):
                return
            if self._paused_until_s > self._clock.now():
                wait_s = 0.0
                continue
            wait_s = self._round(task)

    def _round(self, task: MaintenanceTask) -> float:
        """Run one round. Return the seconds until the next."""
        try:
            done = task.do()
        except JobLedgerUnavailableError as error:
            _log.warning("%s: the job ledger is unavailable: %s", task.name, error)
            self._paused_until_s = self._clock.now() + self._hold_off_s
        except HeadraceError as error:
            _log.warning("%s: %s", task.name, error)
        except Exception:  # noqa: BLE001 - it is retried
            _log.exception("%s failed", task.name)
        else:
            if task.full is not None and done >= task.full:
                return 0.0
        return task.every_s * (0.75 + self._random.random() / 2)


class Reaper:
    """A maintenance task that takes back expired leases and expires overdue jobs. Any number may run."""

    def __init__(self, ledger: JobLedger, *, round_jobs: int = REAPED_JOBS_MAX) -> None:
        self._ledger = ledger
        self.round_jobs = round_jobs

    def tick(self) -> int:
        """Run one round. Return the number of changed jobs."""
        done = self._ledger.maintain(self.round_jobs)
        counts = {name: count for name, count in asdict(done).items() if name != "woken"}
        if any(counts.values()):
            _log.warning("leases or jobs expired", extra=counts)
        return done.total


class Reconciler:
    """A maintenance task that announces the jobs that are due for longer than `overdue_s`.

    Workers poll the ledger by themselves. The task serves workers that only a wakeup broker wakes,
    and autoscalers that count its messages. It need not announce every job: each round covers the
    newest overdue jobs, up to `round_jobs`, among the newest `SCANNED_JOBS_MAX` pending ones.
    """

    def __init__(
        self,
        ledger: JobLedger,
        announce: Callable[[str, list[str]], None],
        *,
        overdue_s: float = 30.0,
        round_jobs: int = ANNOUNCED_JOBS_MAX,
    ) -> None:
        self._ledger = ledger
        self._announce = announce
        self._overdue_s = overdue_s
        self._round_jobs = round_jobs

    def tick(self) -> int:
        """Run one round. Return the number of announced jobs."""
        announced = 0
        for queue in self._ledger.queues():
            oldest_ms = self._ledger.counts(queue.name).oldest_due_ms
            if queue.paused or oldest_ms is None or oldest_ms < self._overdue_s * 1000:
                continue
            ids = self._overdue(queue.name)
            if ids:
                self._announce(queue.name, ids)
                announced += len(ids)
        return announced

    def _overdue(self, queue: str) -> list[str]:
        before_ms = self._ledger.now_ms() - round(self._overdue_s * 1000)
        job_filter = JobFilter(
            queue=queue, states=frozenset({JobState.PENDING}), created_before_ms=before_ms + 1
        )
        ids: list[str] = []
        after, scanned = "", 0
        while len(ids) < self._round_jobs and scanned < SCANNED_JOBS_MAX:
            page = self._ledger.find(job_filter, after=after, limit=_PAGE_JOBS)
            ids += [job.id for job in page.jobs if job.due_at_ms <= before_ms]
            after, scanned = page.next_after, scanned + _PAGE_JOBS
            if not after:
                break
        return ids[: self._round_jobs]


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention times. Results published below an ``output_uri`` belong to the client and stay."""

    jobs_s: Annotated[
        float,
        Setting(
            "Retention of ended jobs and their results in seconds; --keep-days is in days.",
            above=0,
            most=inf,
            python_only=True,
        ),
    ] = 30 * 86_400.0
    """Ended jobs: rows, histories, and the results and payloads stored for them."""
    orphans_s: Annotated[
        float,
        Setting("Retention of objects without a job in seconds.", least=3600, most=inf, python_only=True),
    ] = 86_400.0
    """Objects in headrace's store without a job: payloads without a submission, results that do not
    count. Payloads are stored before their jobs, therefore not less than an hour.
    """

    def __post_init__(self) -> None:
        """Raise ConfigError for times that would delete data in use."""
        check(self)


class Sweeper:
    """A maintenance task that deletes ended jobs and orphaned objects. Any number may run.

    Rows are deleted before their objects, so that a job that is requeued at that moment keeps its
    payload. The objects left by a sweeper that dies between are orphans and deleted later.
    """

    def __init__(
        self,
        ledger: JobLedger,
        stores: Stores,
        paths: JobPaths,
        retention: Retention,
        *,
        round_jobs: int = SWEPT_JOBS_MAX,
    ) -> None:
        self._ledger = ledger
        self._stores = stores
        self._paths = paths
        self._retention = retention
        self.round_jobs = round_jobs

    def tick(self) -> int:
        """Run one round. Return the number of deleted jobs."""
        before_ms = self._ledger.now_ms() - round(self._retention.jobs_s * 1000)
        old = self._ledger.ended_before(before_ms, limit=self.round_jobs)
        if not old:
            return 0
        ids = [job.id for job in old]
        forgotten = self._ledger.forget(ids)
        kept = self._ledger.get_many(ids) if forgotten < len(ids) else {}
        for job in old:
            if job.id in kept:
                continue
            try:
                self.remove_objects(job)
            except HeadraceError as error:
                _log.warning("a job's objects are left as orphans: %s", error, extra={"job": job.id})
        return forgotten

    def remove_objects(self, job: Job) -> None:
        """Delete a job's objects in headrace's own store."""
        folder = self._paths.attempts(job.id)
        store = self._stores.for_uri(folder)
        remove_folder(store, folder)
        # Only if its name is generated too.
        if job.spec.owned_input and job.spec.input_uri == self._paths.input(job.id):
            store.delete(job.spec.input_uri)

    def orphans(self) -> int:
        """Run one round over headrace's own store.

        Return the number of deleted objects without a job.

        Only objects with generated names that are older than `orphans_s`, by the store's own dates,
        are deleted; never objects without a date.
        """
        before_s = self._ledger.now_ms() / 1000 - self._retention.orphans_s
        removed = 0
        for folder in (self._paths.inputs, self._paths.all_attempts):
            store = self._stores.for_uri(folder)
            old: dict[str, list[str]] = {}
            for info in store.list(folder):
                job_id = self._paths.job_id_of(info.uri)
                if job_id is None or not is_job_id(job_id) or not 0 < info.modified_s <= before_s:
                    continue
                old.setdefault(job_id, []).append(info.uri)
                if sum(map(len, old.values())) >= ORPHANS_ROUND:
                    removed += self._remove_unknown(old)
                    old = {}
            removed += self._remove_unknown(old)
        # Drafts of killed writers on a disk, a day old or older.
        store = self._stores.for_uri(self._paths.drafts)
        if isinstance(store, LocalStore):
            store.clean(self._paths.drafts)
        return removed

    def _remove_unknown(self, uris: dict[str, list[str]]) -> int:
        known = self._ledger.get_many(list(uris)) if uris else {}
        removed = 0
        for job_id, objects in uris.items():
            job = known.get(job_id)
            for uri in objects:
                if job is not None and not self._superseded(job, uri):
                    continue
                self._stores.for_uri(uri).delete(uri)
                removed += 1
            if job is None:
                folder = self._paths.attempts(job_id)
                prune_folder(self._stores.for_uri(folder), folder)
        return removed

    def _superseded(self, job: Job, uri: str) -> bool:
        """Return True for the object of an attempt that does not count, of an ended job."""
        lease = self._paths.lease_of(uri)
        if lease is None or not job.state.ended:
            return False
        return lease != job.lease or job.state not in WITH_RESULT


class ResultPublisher:
    """A maintenance task that publishes the ends of jobs which their workers did not publish.

    Any number may run. The ledger decides when an end is tried again, so that ends which cannot be
    published do not delay the others.
    """

    def __init__(
        self, ledger: JobLedger, publication: Publication, *, round_jobs: int = PUBLISHED_JOBS_MAX
    ) -> None:
        self._ledger = ledger
        self._publication = publication
        self.round_jobs = round_jobs

    def tick(self) -> int:
        """Run one round. Return the number of jobs in it."""
        jobs = self._ledger.claim_publications(self.round_jobs)
        # An unavailable location is tried once per round.
        away: set[str] = set()
        for job in jobs:
            location = _location(job)
            if location not in away and not self._publication.publish_or_record(job):
                away.add(location)
        return len(jobs)


def _location(job: Job) -> str:
    """Return the scheme and bucket of the output: an unavailable one is tried once per round."""
    try:
        where = parse(job.spec.output_uri)
    except HeadraceError:
        return job.id
    return f"{where.scheme}://{where.bucket}" if where.bucket else job.id
