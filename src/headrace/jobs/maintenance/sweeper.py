"""Deletes expired data: ended jobs with their objects, and objects that belong to no job."""

import logging
from dataclasses import dataclass
from typing import Final

from headrace.core.errors import ConfigError, HeadraceError
from headrace.jobs.job import Job, is_job_id
from headrace.jobs.ledger import JobLedger
from headrace.jobs.paths import JobPaths
from headrace.jobs.state import JobState
from headrace.storage.local import LocalStore, prune_folder, remove_folder
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.jobs")

ROUND_JOBS: Final = 200
ORPHANS_ROUND: Final = 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention times. Results published below an ``output_uri`` belong to the client and stay."""

    jobs_s: float = 30 * 86_400.0
    """Ended jobs: rows, histories, and the results and payloads stored for them."""
    orphans_s: float = 86_400.0
    """Objects in headrace's store without a job: payloads without a submission, results that do not
    count.
    """

    def __post_init__(self) -> None:
        """Raise ConfigError for times that would delete data in use."""
        if self.jobs_s <= 0:
            raise ConfigError(f"jobs_s must be above 0, not {self.jobs_s}")
        if self.orphans_s < 3600:
            raise ConfigError(
                f"orphans_s must be at least 3600, not {self.orphans_s:g}: "
                "payloads are stored before their jobs"
            )


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
        round_jobs: int = ROUND_JOBS,
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
        self._clean_drafts()
        return removed

    def _clean_drafts(self) -> None:
        """Delete drafts of killed writers on a disk, a day old or older."""
        store = self._stores.for_uri(self._paths.drafts)
        if isinstance(store, LocalStore):
            store.clean(self._paths.drafts)

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
        return lease != job.lease or job.state is not JobState.COMPLETED
