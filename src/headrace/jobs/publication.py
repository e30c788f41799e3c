"""How a job's end gets to where it was asked for: ``KEY.out``, or ``KEY.error`` with the reason.

The attempt has written under its lease's number, and the ledger says which lease's result counts. Only then is it put
under the name that others look for; so nobody sees there what does not count, and doing it twice does no harm.
"""

import logging
from contextlib import suppress
from typing import Any, Final

import orjson

from headrace.core.errors import AccessDeniedError, NotFoundError
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobLedger
from headrace.jobs.places import error_uri, result_uri, told
from headrace.jobs.state import JobState
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.jobs")

FAILED_SUFFIX: Final = ".failed"
_TIMES_MAX: Final = 10
"""How often a job may be put back, and end, while it is published; then the publisher does the rest."""


class Publication:
    """Publishes ended jobs; from any thread."""

    def __init__(self, ledger: JobLedger, stores: Stores) -> None:
        self._ledger = ledger
        self._stores = stores

    def publish(self, job: Job) -> str:
        """Put the end of a job where it was asked for, and say so in the ledger; the object's URI, "" where there is none.

        A job that was put back meanwhile, and has ended again, is published as it has ended by then: whoever writes last
        has looked after writing, so that what stands there in the end is its last end. Of a job that was put back before,
        what its earlier end left there is removed.

        Those who are to be told of the end are told then. A result that is gone is given up, with a line in the log.

        Raises ConfigError for a place that cannot be, storage errors, and JobLedgerUnavailableError; then it can be done again.
        """
        uri = ""
        for _ in range(_TIMES_MAX):
            if not job.wants_publishing:
                return ""
            uri = self._result(job) if job.state is JobState.COMPLETED else self._error(job)
            if self._ledger.published(job.id, job.lease, uri):
                return uri
            _log.warning("a job was put back while its end was published", extra={"job": job.id, "uri": uri})
            now = self._ledger.get_many([job.id]).get(job.id)
            if now is None:
                return uri
            job = now
        return uri

    def give_up(self, job: Job) -> None:
        """It will never be where it was asked for; those who are to be told of the end are told all the same."""
        _log.error("a job's end is not put where it was asked for", extra={"job": job.id})
        self._ledger.published(job.id, job.lease, "")

    def _result(self, job: Job) -> str:
        assert job.result is not None, "completed jobs have one"
        uri = result_uri(job.spec.output_uri, job.spec.key or job.id)
        if not self._exists(job.result.uri):
            _log.error("a job's result is gone", extra={"job": job.id, "uri": job.result.uri})
            return ""
        # The result comes last: whoever waits for that finds the other objects as they stay.
        failed = job.result.uri + FAILED_SUFFIX
        if self._exists(failed):
            self._copy(failed, uri + FAILED_SUFFIX)
        elif _began_anew(job):
            self._remove(uri + FAILED_SUFFIX)
        if _began_anew(job):
            self._remove(error_uri(job.spec.output_uri, job.spec.key or job.id))
        self._copy(job.result.uri, uri)
        return uri

    def _error(self, job: Job) -> str:
        key = job.spec.key or job.id
        uri = error_uri(job.spec.output_uri, key)
        if _began_anew(job) and job.spec.kind == "infer":
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
        """Where we may: many are given the right to write only, and then the ledger tells which of both is the last."""
        with suppress(AccessDeniedError):
            self._stores.for_uri(uri).delete(uri)


def _began_anew(job: Job) -> bool:
    """Whether it has been due more than once, so that it may have ended before. Most have not, which saves their stores a request."""
    return job.due_at_ms != job.created_at_ms + job.spec.delay_ms


def error_document(job: Job) -> dict[str, Any]:
    """What stands in ``KEY.error``."""
    failure = job.failure
    return {
        "v": 1,
        "job": job.id,
        "state": job.state.value,
        "cause": failure.cause.value if failure else job.state.value,
        "error": failure.error if failure else "",
        "message": failure.message if failure else f"the job was {job.state.value}",
        "attempts": job.attempt,
        "input_uri": "" if job.spec.owned_input else told(job.spec.input_uri),
        "correlation_id": job.spec.correlation_id,
        "ended_at_ms": job.ended_at_ms,
    }
