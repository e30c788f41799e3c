"""The job service: all permissions and operations between the HTTP routes and the ledger.

The rights of a key are in `access.ApiKey`. `intake` accepts jobs and payloads; the rest is here.
Methods block, except those that return futures, and may be called from any thread.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.core.errors import (
    DataError,
    EndpointNotFoundError,
    JobStateError,
    LimitError,
)
from headrace.jobs.access import CHANGE_SCOPES, ApiKey, Scope
from headrace.jobs.access.endpoints import (
    ENDPOINTS_MAX,
    Endpoint,
    EndpointSettings,
    keep_secrets,
    read_endpoint_settings,
)
from headrace.jobs.batch import BatchIntake
from headrace.jobs.bulk import BulkReply, BulkRequest, run_bulk
from headrace.jobs.history import HistoryEntry, timeline
from headrace.jobs.intake import JobServiceSettings
from headrace.jobs.job import QUEUE_DEFAULT, Job
from headrace.jobs.ledger import FailureGroup, JobFilter, Page, QueueCounts, QueueSettings
from headrace.jobs.paths import UriAllowList
from headrace.jobs.payloads import PublishedCheck, ResultStream
from headrace.jobs.pools import DECISION_PAGE_MAX, DecisionPage, Pool, ScalingDecision, published_decision
from headrace.jobs.shared_calls import JobCondition, JobWaiter
from headrace.jobs.state import JobState
from headrace.jobs.worker_registry import WorkerRecord

__all__ = ["PAGE_MAX", "JobService", "JobServiceSettings", "QueueStatus"]

PAGE_MAX: Final = 500
FIND_S_MAX: Final = 1.0
"""Seconds for which `find` looks for a page with jobs."""
_ENDPOINT_SCOPES: Final = (Scope.READ, Scope.SUBMIT)
QUEUE_SCOPES: Final = (Scope.READ, Scope.MONITOR)
"""The scopes that may read queues: the own jobs in them, or all."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue's settings and counts."""

    settings: QueueSettings
    counts: QueueCounts


def queue_document(settings: QueueSettings, counts: QueueCounts) -> dict[str, Any]:
    """Return a queue's settings and counts as JSON."""
    return {
        "queue": settings.name,
        "paused": settings.paused,
        "draining": settings.draining,
        "pending_max": settings.pending_max,
        "queued": counts.due,
        "queued_by_region": dict(counts.due_by_region),
        "later": counts.later,
        "blocked": counts.blocked,
        "running": counts.running,
        "oldest_seconds": counts.oldest_seconds,
    }


def failure_group_document(group: FailureGroup) -> dict[str, Any]:
    """Return a group of failed jobs as JSON, with the failure of its last job."""
    failure = group.last.failure
    return {
        "fingerprint": group.fingerprint,
        "jobs": group.jobs,
        "first_at_ms": group.first_at_ms,
        "last_at_ms": group.last_at_ms,
        "job_id": group.last.id,
        "queue": group.last.spec.queue,
        "model": group.last.spec.model,
        "cause": failure.cause.value if failure else "",
        "error": failure.error if failure else "",
        "message": failure.message if failure else "",
    }


class JobService(BatchIntake):
    """The operations of the job API, with permission checks, as a service.

    Every operation first checks the rights of the client's key. The ledger and the stores are
    owned by the caller: started before, stopped after. Changes by operators, and all changes of many
    jobs, are recorded in the audit log.
    """

    def check_ready(self) -> None:
        """Raise JobLedgerUnavailableError unless the ledger responds."""
        self._ledger.queue(QUEUE_DEFAULT)

    # Queries

    def get(self, key: ApiKey, job_id: str) -> Job:
        """Return a job. Raise JobNotFoundError, also for another tenant's."""
        key.require(Scope.READ)
        return self._ledger.get(job_id, tenant=key.visible_tenant)

    def history(self, key: ApiKey, job_id: str) -> list[HistoryEntry]:
        """Return a job's claims, failures, retries, manual changes and ends, oldest first."""
        job = self.get(key, job_id)
        return timeline(job, self._ledger.history(job_id))

    def failure_groups(self, key: ApiKey, *, limit: int) -> list[FailureGroup]:
        """Return the visible failed jobs in groups of equal failures, the largest group first."""
        key.require(Scope.READ)
        return self._ledger.failure_groups(tenant=key.visible_tenant, limit=limit)

    def find(self, key: ApiKey, job_filter: JobFilter, *, after: str, limit: int) -> Page:
        """Return visible jobs that match, newest first.

        A page may be short, or empty, without being the last one, as those of `JobLedger.find`. Pages
        without jobs are skipped for up to FIND_S_MAX. Raise LimitError for more than PAGE_MAX at once.
        """
        key.require(Scope.READ)
        if not 0 < limit <= PAGE_MAX:
            raise LimitError(f"limit: must be from 1 to {PAGE_MAX}, not {limit}")
        if key.visible_tenant is not None:
            job_filter = replace(job_filter, tenant=key.visible_tenant)
        until_s = time.monotonic() + FIND_S_MAX
        page = self._ledger.find(job_filter, after=after, limit=limit)
        while not page.jobs and page.next_after and time.monotonic() < until_s:
            page = self._ledger.find(job_filter, after=page.next_after, limit=limit)
        return page

    def follow(self, key: ApiKey, job_id: str, condition: JobCondition) -> JobWaiter:
        """Wait for a visible job; call `Follower.leave` to give up.

        Raises as `get` does, and OverloadedError.
        """
        self.get(key, job_id)
        return self.follower.follow(job_id, condition)

    # Manual changes

    def cancel(self, key: ApiKey, job_id: str) -> Job:
        """Cancel a pending job, or request the cancellation of a running one.

        Raises as `JobLedger.cancel` does.
        """
        key.require(*CHANGE_SCOPES)
        job = self._ledger.cancel(job_id, tenant=key.visible_tenant, by=key.name)
        self._record_job(key, "job.cancel", job)
        return job

    def retry(self, key: ApiKey, job_id: str) -> Job:
        """Requeue a job that ended without a result; publish again a result that is not published.

        Raise JobStateError for a completed job and one that has not ended, and OutputTakenError if
        another job owns the name of its output by now.
        """
        key.require(*CHANGE_SCOPES)
        job = self._ledger.get(job_id, tenant=key.visible_tenant)
        if job.state is JobState.COMPLETED:
            raise JobStateError(
                job_id, job.state.value, "it has a result; submit it again to repeat the work"
            )
        again = self._ledger.republish if job.state is JobState.PUBLISH_FAILED else self._ledger.requeue
        job = again(job_id, tenant=key.visible_tenant, by=key.name)
        self._record_job(key, "job.retry", job)
        return job

    def delete(self, key: ApiKey, job_id: str) -> Job:
        """Delete an ended job and the objects stored for it alone. Published results stay.

        Raise JobNotFoundError for another tenant's, unless the key may delete all.
        """
        key.require(Scope.SUBMIT)
        job = self._ledger.delete(job_id, tenant=key.deletable_tenant)
        self._record_job(key, "job.delete", job)
        self._payloads.delete_job_objects(job)
        return job

    def bulk(self, key: ApiKey, request: BulkRequest) -> BulkReply:
        """Apply an action to all jobs that match a filter and that the key may change.

        Deletion also deletes the objects stored for the jobs alone. Raises as `run_bulk` does.
        """
        return run_bulk(self._ledger, key, request, delete_objects=self._payloads.delete_job_objects)

    def _record_job(self, key: ApiKey, action: str, job: Job) -> None:
        """Record the change of one job by an operator. Clients may change their own jobs unrecorded."""
        if Scope.OPERATE in key.granted or key.tenant != job.spec.tenant:
            self.audit.record(key, action, job.id, {"tenant": job.spec.tenant}, jobs=1)

    # Payloads

    def open_result(
        self, key: ApiKey, job_id: str, start: int = 0, *, etag: str | None = None
    ) -> ResultStream:
        """Open a job's result, as `Payloads.open_result` does."""
        return self._payloads.open_result(self.get(key, job_id), start, etag=etag)

    def open_input(
        self, key: ApiKey, job_id: str, start: int = 0, *, etag: str | None = None
    ) -> ResultStream:
        """Open the payload that was stored for a job, as `Payloads.open_input` does."""
        return self._payloads.open_input(self.get(key, job_id), start, etag=etag)

    def result_url(self, key: ApiKey, job_id: str) -> str:
        """Return a temporary address of the result that needs no key, or ""."""
        return self._payloads.result_url(self.get(key, job_id), self.settings.upload_expires_s)

    def check_published(self, key: ApiKey, job_id: str) -> PublishedCheck:
        """Compare a job's published object with its result, as `Payloads.check_published` does."""
        return self._payloads.check_published(self.get(key, job_id))

    # Endpoints

    def endpoints(self, key: ApiKey) -> Sequence[Endpoint]:
        """Return the endpoints that the key may see, by name."""
        key.require(*_ENDPOINT_SCOPES)
        return [endpoint for endpoint in self._ledger.endpoints() if key.sees_endpoint(endpoint.name)]

    def endpoint(self, key: ApiKey, name: str, version: int | None = None) -> Endpoint:
        """Return the current version of an endpoint, or the version with this number.

        Raise EndpointNotFoundError, also for an endpoint that the key may not see.
        """
        versions = self.endpoint_versions(key, name)
        if version is None:
            versions = [each for each in versions[:1] if not each.deleted]
        else:
            versions = [each for each in versions if each.version == version]
        if not versions:
            raise EndpointNotFoundError(name, version)
        return versions[0]

    def endpoint_versions(self, key: ApiKey, name: str) -> Sequence[Endpoint]:
        """Return the kept versions of an endpoint, newest first. Raises as `endpoint` does."""
        key.require(*_ENDPOINT_SCOPES)
        versions = self._ledger.endpoint_versions(name) if key.sees_endpoint(name) else []
        if not versions:
            raise EndpointNotFoundError(name)
        return versions

    def find_endpoint(self, name: str) -> Endpoint | None:
        """Return the current version of an endpoint, up to a second old, or None without one.

        It checks no rights.
        """
        return self._endpoints.find(name)

    def set_endpoint(self, key: ApiKey, name: str, table: Mapping[str, Any]) -> Endpoint:
        """Create or change an endpoint: `table` has the keys of `EndpointSettings`.

        Return its current version, which is a new one if the settings changed. A webhook that is
        repeated without its secret keeps the stored one.

        Raise ConfigError for invalid settings, ForbiddenError for an output in headrace's own store,
        and LimitError for too many endpoints.
        """
        key.require(Scope.ADMIN)
        settings = read_endpoint_settings(table, f"endpoints.{name}")
        if settings.output_uri:
            allowed = UriAllowList.read([settings.output_uri], reserved=self.settings.reserved_uris)
            allowed.require(settings.output_uri, "output")
        with self._changing_endpoint:
            current = {each.name: each for each in self._ledger.endpoints()}
            if name not in current and len(current) >= ENDPOINTS_MAX:
                raise LimitError(f"{ENDPOINTS_MAX} endpoints exist already: delete one first")
            stored = current.get(name)
            prepared = self._prepared(keep_secrets(settings, stored and stored.settings))
            endpoint = self._ledger.set_endpoint(name, prepared, by=key.name)
            self._endpoints.drop()
        if stored is None or stored.version != endpoint.version:
            self.audit.record(key, "endpoint.set", name, {"version": endpoint.version})
        return endpoint

    def delete_endpoint(self, key: ApiKey, name: str) -> None:
        """Delete an endpoint. Its jobs stay. Raise EndpointNotFoundError if there is none."""
        key.require(Scope.ADMIN)
        with self._changing_endpoint:
            deleted = self._ledger.delete_endpoint(name, by=key.name)
            self._endpoints.drop()
        if not deleted:
            raise EndpointNotFoundError(name)
        self.audit.record(key, "endpoint.delete", name)

    def _prepared(self, settings: EndpointSettings) -> EndpointSettings:
        """Return the settings of an endpoint as the ledger has them."""
        if self._prepare_endpoint is not None:
            return self._prepare_endpoint(settings)
        if settings.notify:
            raise DataError("notify: this server has no notifications; leave it out")
        return settings

    # Queues

    def queues(self, key: ApiKey) -> Sequence[QueueStatus]:
        """Return the queues that the client may see, by name, with the counts of its tenant's jobs.

        They are those that the key names, and those with unfinished jobs of its tenant. With the scope
        MONITOR they are all queues, with the counts of all jobs.
        """
        key.require(*QUEUE_SCOPES)
        queues, tenant = self._ledger.queues(), key.counted_tenant
        if tenant is None:
            return [QueueStatus(settings, self._ledger.counts(settings.name)) for settings in queues]
        counts = self._ledger.tenant_counts(tenant)
        visible = counts.keys() | (key.queues or frozenset())
        return [
            QueueStatus(settings, counts.get(settings.name, QueueCounts()))
            for settings in queues
            if settings.name in visible
        ]

    def queue(self, key: ApiKey, name: str) -> QueueStatus:
        """Return a queue, with the same counts as `queues`; an empty one if it is unknown.

        Raise ForbiddenError for a queue that the key may not use, whether or not it exists.
        """
        key.require(*QUEUE_SCOPES)
        if key.counted_tenant is not None:
            key.require_queue(name)
        counts = self._ledger.counts(name, tenant=key.counted_tenant)
        return QueueStatus(self._ledger.queue(name), counts)

    def change_queue(self, key: ApiKey, name: str, changes: Mapping[str, Any]) -> QueueStatus:
        """Pause, resume, drain or limit a queue: `changes` are fields of `QueueSettings`."""
        key.require(Scope.OPERATE)
        with self._changing_queue:
            settings = replace(self._ledger.queue(name), **changes)
            self._ledger.set_queue(settings)
        self.audit.record(key, "queue.change", name, changes)
        return QueueStatus(settings, self._ledger.counts(name))

    def delete_queue(self, key: ApiKey, name: str) -> None:
        """Delete a queue with its settings; do nothing for an unknown one.

        Raise QueueInUseError if it has unfinished jobs, of any tenant.
        """
        key.require(Scope.OPERATE)
        with self._changing_queue:
            deleted = self._ledger.delete_queue(name)
        if deleted:
            self.audit.record(key, "queue.delete", name)

    # Workers

    def workers(self, key: ApiKey) -> Sequence[WorkerRecord]:
        """Return the workers that the registry lists, by name."""
        key.require(Scope.MONITOR)
        return self._ledger.workers()

    def worker(self, key: ApiKey, name: str) -> WorkerRecord:
        """Return a worker with its running jobs. Raise ResourceNotFoundError."""
        key.require(Scope.MONITOR)
        return self._ledger.worker(name)

    def set_worker_draining(self, key: ApiKey, name: str, *, draining: bool) -> WorkerRecord:
        """Let a worker claim no more jobs, or claim again. Raise ResourceNotFoundError."""
        key.require(Scope.OPERATE)
        record = self._ledger.set_worker_draining(name, draining=draining, by=key.name)
        self.audit.record(key, "worker.drain" if draining else "worker.undrain", name)
        return record

    # Pools of workers

    def pools(self, key: ApiKey) -> Sequence[Pool]:
        """Return the pools of workers, each with its last decision, by name."""
        key.require(Scope.MONITOR)
        return self._ledger.pools()

    def pool_decision(self, key: ApiKey, pool: str) -> ScalingDecision:
        """Return the decision about a pool that other autoscalers follow.

        Raises as `published_decision` does, and JobLedgerUnavailableError instead of guessing 0.
        """
        key.require(Scope.MONITOR)
        return published_decision(self._ledger.pools(), pool)

    def decisions(self, key: ApiKey, *, pool: str = "", after: str = "", limit: int = 100) -> DecisionPage:
        """Return a page of decisions, as `JobLedger.decisions` does.

        Raise LimitError for more than DECISION_PAGE_MAX at once.
        """
        key.require(Scope.MONITOR)
        if not 0 < limit <= DECISION_PAGE_MAX:
            raise LimitError(f"limit: must be from 1 to {DECISION_PAGE_MAX}, not {limit}")
        return self._ledger.decisions(pool=pool, after=after, limit=limit)
