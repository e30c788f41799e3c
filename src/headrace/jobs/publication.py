"""How a job's end gets to where it was asked for: ``KEY.out``, or ``KEY.error`` with the reason.

The attempt has written under its lease's number, and the ledger says which lease's result counts. Only then is it put
under the name that others look for; so nobody sees there what does not count, and doing it twice does no harm.
"""

import logging
from contextlib import suppress
from typing import Any, Final

import orjson

from headrace.core.errors import NotFoundError
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobLedger
from headrace.jobs.places import Places
from headrace.jobs.state import JobState
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.jobs")

FAILED_SUFFIX: Final = ".failed"


class Publication:
    """Publishes ended jobs; from any thread."""

    def __init__(self, ledger: JobLedger, stores: Stores, places: Places) -> None:
        self._ledger = ledger
        self._stores = stores
        self._places = places

    def publish(self, job: Job) -> str:
        """Put the end of a job where it was asked for, and say so in the ledger; the object's URI, "" where there is none.

        Raises storage errors; then it can be done again.
        """
        if not wants_publication(job):
            return ""
        uri = self._result(job) if job.state is JobState.COMPLETED else self._error(job)
        if uri and not self._ledger.published(job.id, job.lease, uri):
            _log.warning("a job was put back while its end was published", extra={"job": job.id, "uri": uri})
        return uri

    def _result(self, job: Job) -> str:
        assert job.result is not None, "completed jobs have one"
        uri = self._places.result(job.spec.output_uri, job.spec.key or job.id)
        try:
            self._copy(job.result.uri, uri)
        except NotFoundError:
            _log.error("a job's result is gone", extra={"job": job.id, "uri": job.result.uri})
            return ""
        with suppress(NotFoundError):  # Where no record of it failed.
            self._copy(job.result.uri + FAILED_SUFFIX, uri + FAILED_SUFFIX)
        return uri

    def _error(self, job: Job) -> str:
        uri = self._places.error(job.spec.output_uri, job.spec.key or job.id)
        self._stores.for_uri(uri).put(uri, orjson.dumps(error_document(job), option=orjson.OPT_INDENT_2))
        return uri

    def _copy(self, source: str, target: str) -> None:
        with self._stores.for_uri(target).writer(target) as writer:
            for piece in self._stores.for_uri(source).stream(source):
                writer.write(piece)


def wants_publication(job: Job) -> bool:
    """Whether its end is to be put somewhere, and is not there by itself."""
    if not job.spec.output_uri or not job.state.ended:
        return False
    return job.spec.kind == "infer" or job.state is not JobState.COMPLETED


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
        "input_uri": "" if job.spec.owned_input else job.spec.input_uri,
        "correlation_id": job.spec.correlation_id,
        "ended_at_ms": job.ended_at_ms,
    }
