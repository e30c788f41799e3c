"""Publication of a job's end: ``KEY.out``, or ``KEY.error`` with the reason.

An attempt writes under its lease number, and the ledger decides whose result counts. Only then is
it copied to the public name. Readers of that name therefore never see a result that does not count,
and repeating the publication is harmless.
"""

import logging
from contextlib import suppress
from typing import Any, Final

import orjson

from headrace.core.errors import AccessDeniedError, NotFoundError
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobLedger
from headrace.jobs.paths import error_uri, result_uri, without_query
from headrace.jobs.state import JobState
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.jobs")

FAILED_SUFFIX: Final = ".failed"
_TIMES_MAX: Final = 10
"""How often a job may be requeued and end during its publication; then the maintenance task
publishes it.
"""


class Publication:
    """A publisher of ended jobs. Thread-safe."""

    def __init__(self, ledger: JobLedger, stores: Stores) -> None:
        self._ledger = ledger
        self._stores = stores

    def publish(self, job: Job) -> str:
        """Publish a job's end and record it in the ledger.

        Return the object's URI, "" if there is none.

        If the job was requeued and ended again meanwhile, its latest end is published. The last
        writer reads the ledger after writing, so that the last end stays. If the job was requeued
        earlier, the output of its earlier end is removed.

        Publication releases the notifications of the end. A result that no longer exists is given
        up, with a log message.

        Raises ConfigError for an invalid location, storage errors, and JobLedgerUnavailableError;
        the call may then be repeated.
        """
        uri = ""
        for _ in range(_TIMES_MAX):
            if not job.needs_publication:
                return ""
            uri = self._result(job) if job.state is JobState.COMPLETED else self._error(job)
            if self._ledger.mark_published(job.id, job.lease, uri):
                return uri
            _log.warning("a job was requeued while its end was published", extra={"job": job.id, "uri": uri})
            now = self._ledger.get_many([job.id]).get(job.id)
            if now is None:
                return uri
            job = now
        return uri

    def give_up(self, job: Job) -> None:
        """Record that publication is impossible. This releases the notifications of the end."""
        _log.error("a job's end is not published, giving up", extra={"job": job.id})
        self._ledger.mark_published(job.id, job.lease, "")

    def _result(self, job: Job) -> str:
        assert job.result is not None, "completed jobs have one"
        uri = result_uri(job.spec.output_uri, job.spec.key or job.id)
        if not self._exists(job.result.uri):
            _log.error("a job's result no longer exists", extra={"job": job.id, "uri": job.result.uri})
            return ""
        # The result is written last: a reader that waits for it finds the other objects complete.
        failed = job.result.uri + FAILED_SUFFIX
        if self._exists(failed):
            self._copy(failed, uri + FAILED_SUFFIX)
        elif _was_requeued(job):
            self._remove(uri + FAILED_SUFFIX)
        if _was_requeued(job):
            self._remove(error_uri(job.spec.output_uri, job.spec.key or job.id))
        self._copy(job.result.uri, uri)
        return uri

    def _error(self, job: Job) -> str:
        key = job.spec.key or job.id
        uri = error_uri(job.spec.output_uri, key)
        if _was_requeued(job) and job.spec.kind == "infer":
            result = result_uri(job.spec.output_uri, key)
            self._remove(result)
            self._remove(result + FAILED_SUFFIX)
        self._stores.for_uri(uri).put(uri, orjson.dumps(error_document(job), option=orjson.OPT_INDENT_2))
        return uri

    def _exists(self, uri: str) -> bool:
        try:
            self._stores.for_uri(uri).head(uri)
        except NotFoundError:
            return False
        return True

    def _copy(self, source: str, target: str) -> None:
        with self._stores.for_uri(target).writer(target) as writer:
            for piece in self._stores.for_uri(source).stream(source):
                writer.write(piece)

    def _remove(self, uri: str) -> None:
        """Delete an object if permitted.

        Many keys may only write; the ledger then tells which end is the last.
        """
        with suppress(AccessDeniedError):
            self._stores.for_uri(uri).delete(uri)


def _was_requeued(job: Job) -> bool:
    """Return True if the job was due more than once and may have ended before.

    For most jobs this is False and saves requests to the store.
    """
    return job.due_at_ms != job.created_at_ms + job.spec.delay_ms


def error_document(job: Job) -> dict[str, Any]:
    """Return the content of ``KEY.error``."""
    failure = job.failure
    return {
        "v": 1,
        "job": job.id,
        "state": job.state.value,
        "cause": failure.cause.value if failure else job.state.value,
        "error": failure.error if failure else "",
        "message": failure.message if failure else f"the job was {job.state.value}",
        "attempts": job.attempt,
        "input_uri": "" if job.spec.owned_input else without_query(job.spec.input_uri),
        "correlation_id": job.spec.correlation_id,
        "ended_at_ms": job.ended_at_ms,
    }
