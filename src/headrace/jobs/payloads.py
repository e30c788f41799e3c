"""Payloads and results of jobs in the stores: sent and read by clients, published by workers.

All functions block, stream, and use bounded memory.

Publication writes a job's end as ``KEY.out``, or as ``KEY.error`` with the reason. An attempt
writes under its lease number, and the ledger decides whose result counts. Only then is it copied to
the public name. Readers of that name therefore never see a result that does not count, and
repeating the publication is harmless.
"""

import hashlib
import logging
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from headrace.core.errors import (
    AccessDeniedError,
    ConfigError,
    DataError,
    JobStateError,
    LimitError,
    NotFoundError,
    ResultGoneError,
    StorageError,
    UnavailableError,
)
from headrace.jobs.job import Job, is_job_id, new_job_id
from headrace.jobs.ledger import JobLedger
from headrace.jobs.paths import JobPaths, error_uri, is_below, result_uri, without_query
from headrace.jobs.state import JobState
from headrace.storage import ObjectInfo, Stores, UrlSigner, Writer

_log = logging.getLogger("headrace.jobs")

FAILED_SUFFIX: Final = ".failed"
_TIMES_MAX: Final = 10
"""How often a job may be requeued and end during its publication; then the maintenance task
publishes it.
"""


@dataclass(frozen=True, slots=True)
class Upload:
    """A location for a payload to be sent by PUT. `url` is "" if it is the API itself, under `id`."""

    id: str
    """Also the id of the job that will use it: an upload belongs to one job and is deleted with it.
    """
    url: str
    expires_s: float


@dataclass(frozen=True, slots=True)
class ResultStream:
    """A result's bytes as chunks, none of them read yet.

    `size_bytes` is None if the store does not know it.
    """

    uri: str
    content_type: str
    size_bytes: int | None
    """The size of the whole result, wherever the stream begins."""
    etag: str
    start: int
    pieces: Iterator[bytes]
    """The chunks; iteration raises UnavailableError."""


class BoundedWriter:
    """An upload with a size limit. Nothing is visible before `close`. One thread at a time."""

    def __init__(self, writer: Writer, bytes_max: int) -> None:
        self._writer = writer
        self._bytes_max = bytes_max
        self.nbytes = 0

    def write(self, data: bytes) -> None:
        """Append bytes. Raise LimitError beyond the limit, and UnavailableError if the store fails."""
        self.nbytes += len(data)
        if self.nbytes > self._bytes_max:
            raise LimitError(f"the upload exceeds the limit of {self._bytes_max} bytes")
        with _transfer("an upload"):
            self._writer.write(data)

    def close(self) -> None:
        """Publish the upload."""
        with _transfer("an upload"):
            self._writer.close()

    def abort(self) -> None:
        """Discard the upload."""
        self._writer.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Payloads:
    """Payloads and results below `store_uri`. Thread-safe."""

    def __init__(self, stores: Stores, store_uri: str, *, upload_bytes_max: int, sign: bool) -> None:
        self._stores = stores
        self._paths = JobPaths(store_uri)
        self._upload_bytes_max = upload_bytes_max
        self._sign = sign

    def store_payload(self, job_id: str, payload: bytes) -> str:
        """Store a submitted payload; return its URI. Raise UnavailableError."""
        uri = self._paths.input(job_id)
        with _transfer("a payload"):
            self._stores.for_uri(uri).put(uri, payload)
        return uri

    def delete_payload(self, uri: str) -> None:
        """Delete a stored payload, or leave it to the sweeper."""
        try:
            self._stores.for_uri(uri).delete(uri)
        except (StorageError, ConfigError) as error:
            _log.warning("an unused payload could not be deleted", extra={"why": str(error)})

    def begin_upload(self, tenant: str, now_ms: int, expires_s: float) -> Upload:
        """Return the location of a large payload, with a signed address if the store can sign."""
        upload_id = new_upload_id(tenant, now_ms)
        return Upload(upload_id, self._signed("PUT", self._paths.input(upload_id), expires_s), expires_s)

    def open_upload(self, tenant: str, upload_id: str) -> BoundedWriter:
        """Open an upload for writing. Raise DataError for an id that this tenant never received."""
        check_upload_id(tenant, upload_id)
        uri = self._paths.input(upload_id)
        with _transfer("an upload"):
            return BoundedWriter(self._stores.for_uri(uri).writer(uri), self._upload_bytes_max)

    def check_upload(self, tenant: str, upload_id: str) -> str:
        """Return the URI of a finished upload.

        Raise DataError if there is none, and UnavailableError.
        """
        check_upload_id(tenant, upload_id)
        uri = self._paths.input(upload_id)
        with _transfer("an upload"):
            try:
                self._stores.for_uri(uri).head(uri)
            except NotFoundError:
                raise DataError(f"upload: {upload_id} has no payload yet: PUT it first") from None
        return uri

    def open_result(self, job: Job, start: int = 0, *, etag: str | None = None) -> ResultStream:
        """Open a completed job's result: the published object, or else the one of the attempt.

        The stream begins at byte `start` if `etag` is this result's, and at 0 otherwise. Raise
        JobStateError for a job without a result, ResultGoneError and UnavailableError.
        """
        info = self._find_object(job)
        assert job.result is not None
        size_bytes = job.result.size_bytes if info.size_bytes is None else info.size_bytes
        own_etag = f'"{job.lease}-{zlib.crc32(info.etag.encode()):08x}-{size_bytes or 0:x}"'
        if size_bytes is None or start >= size_bytes or etag != own_etag:
            start = 0
        pieces = self._stores.for_uri(info.uri).stream(info.uri, start=start, etag=info.etag)
        return ResultStream(
            info.uri, job.result.content_type, size_bytes, own_etag, start, _transferred(pieces)
        )

    def result_url(self, job: Job, expires_s: float) -> str:
        """Return an address of the result that needs no key; "" if the store has none.

        Raises as `open_result` does.
        """
        return self._signed("GET", self._find_object(job).uri, expires_s)

    def delete_job_objects(self, job: Job) -> None:
        """Delete the objects stored for a job alone: its payload, and its internal result."""
        uris = [job.spec.input_uri] if job.spec.owned_input else []
        if job.result is not None:
            uris.append(job.result.uri)
        for uri in uris:
            if is_below(uri, self._paths.store_uri):
                self.delete_payload(uri)

    def _find_object(self, job: Job) -> ObjectInfo:
        if job.state is not JobState.COMPLETED or job.result is None:
            raise JobStateError(job.id, job.state.value, _no_result(job))
        for uri in filter(None, (job.result.published_uri, job.result.uri)):
            # The owner may have moved the object, or revoked the permission to read it.
            with _transfer("the result"), suppress(NotFoundError, AccessDeniedError):
                return self._stores.for_uri(uri).head(uri)
        raise ResultGoneError(job.id)

    def _signed(self, method: str, uri: str, expires_s: float) -> str:
        store = self._stores.for_uri(uri)
        if not self._sign or not isinstance(store, UrlSigner):
            return ""
        try:
            return store.sign("GET" if method == "GET" else "PUT", uri, expires_s)
        except StorageError as error:
            # The transfer goes through the API instead.
            _log.warning("an address could not be signed", extra={"uri": uri, "why": str(error)})
            return ""


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


def new_upload_id(tenant: str, now_ms: int) -> str:
    """Return a job id that only this tenant can use.

    Its last bits are a digest of the tenant and the rest.

    The owner of an upload therefore needs no table. A client without a key of the tenant cannot use
    the id, even if it guesses it.
    """
    made = new_job_id(now_ms)
    return made[:-8] + _check(tenant, made[:-8])


def check_upload_id(tenant: str, upload_id: str) -> None:
    """Raise DataError unless `new_upload_id` could have returned this id for this tenant."""
    if not is_job_id(upload_id) or upload_id[-8:] != _check(tenant, upload_id[:-8]):
        raise DataError(f"upload: {ascii(upload_id)[:80]} is unknown; POST /v1/uploads returns an id")


def _check(tenant: str, head: str) -> str:
    return hashlib.sha256(f"{head}\0{tenant}".encode()).hexdigest()[:8]


@contextmanager
def _transfer(what: str) -> Generator[None]:
    """Convert the errors of a store for clients, without locations and server messages."""
    try:
        yield
    except StorageError as error:
        _log.warning("the store failed", extra={"what": what, "why": str(error)})
        why = f"{what} could not be transferred; try again later"
        raise UnavailableError("the object store", why) from error


def _transferred(pieces: Iterator[bytes]) -> Iterator[bytes]:
    with _transfer("the result"):
        yield from pieces


def _no_result(job: Job) -> str:
    if not job.state.ended:
        return "there is no result yet: retry later, or use ?wait=SECONDS"
    if job.failure is not None:
        return f"there is no result: {job.failure.message}"
    return "there is no result"
