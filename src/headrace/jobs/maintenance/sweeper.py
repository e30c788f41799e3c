"""Removes what is over and past its time: ended jobs with their objects, and objects that belong to no job."""

import logging
from dataclasses import dataclass
from typing import Final

from headrace.core.errors import ConfigError, HeadraceError
from headrace.jobs.job import Job, is_job_id
from headrace.jobs.ledger import JobLedger
from headrace.jobs.places import Places
from headrace.jobs.state import JobState
from headrace.storage.folder import prune_folder, remove_folder
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.jobs")

ROUND_JOBS: Final = 200
ORPHANS_ROUND: Final = 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept. What was put where a submitter asked for it (``output_uri``) is the submitter's, and stays."""

    jobs_s: float = 30 * 86_400.0
    """Ended jobs: rows, histories, results and payloads that were stored for them."""
    orphans_s: float = 86_400.0
    """Objects in our own store that no job knows: payloads whose submission never came, results of attempts that do not count."""

    def __post_init__(self) -> None:
        """Refuse what would remove things under somebody's hands."""
        if self.jobs_s <= 0:
            raise ConfigError(f"jobs_s must be above 0, not {self.jobs_s}")
        if self.orphans_s < 3600:
            raise ConfigError(
                f"orphans_s must be an hour or more, not {self.orphans_s:g}: a payload is stored before its job is queued"
            )


class Sweeper:
    """One `tick` is one round; any number of sweepers may be at it.

    Rows go first, then the objects that only they knew: a job that is put back at that moment keeps its payload. What a
    sweeper that dies between leaves behind is an orphan by then.
    """

    def __init__(
        self,
        ledger: JobLedger,
        stores: Stores,
        places: Places,
        retention: Retention,
        *,
        round_jobs: int = ROUND_JOBS,
    ) -> None:
        self._ledger = ledger
        self._stores = stores
        self._places = places
        self._retention = retention
        self.round_jobs = round_jobs

    def tick(self) -> int:
        """How many jobs it removed."""
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
        """Remove what our own store has of a job."""
        folder = self._places.attempts(job.id)
        store = self._stores.for_uri(folder)
        remove_folder(store, folder)
        # Only where it is ours by its name too.
        if job.spec.owned_input and job.spec.input_uri == self._places.input(job.id):
            store.delete(job.spec.input_uri)

    def orphans(self) -> int:
        """One round over our own store: how many objects it removed that no job knows.

        Only what is named as we name it, and is older than `orphans_s` by the store's own telling: not what has no date.
        """
        before_s = self._ledger.now_ms() / 1000 - self._retention.orphans_s
        removed = 0
        for folder in (self._places.inputs, self._places.all_attempts):
            store = self._stores.for_uri(folder)
            old: dict[str, list[str]] = {}
            for info in store.list(folder):
                job_id = self._places.job_id_of(info.uri)
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
        """What killed writers have left on a disk, a day old or older."""
        store = self._stores.for_uri(self._places.drafts)
        if isinstance(store, LocalStore):
            store.clean(self._places.drafts)

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
                folder = self._places.attempts(job_id)
                prune_folder(self._stores.for_uri(folder), folder)
        return removed

    def _superseded(self, job: Job, uri: str) -> bool:
        """Whether an object is of an attempt that does not count, of a job that has ended."""
        lease = self._places.lease_of(uri)
        if lease is None or not job.state.ended:
            return False
        return lease != job.lease or job.state is not JobState.COMPLETED
