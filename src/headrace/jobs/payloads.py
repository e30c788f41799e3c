"""Payloads and results of jobs in the stores: sent and read by clients, published by workers.

All functions block, stream, and use bounded memory.

Publication writes a job's end as ``KEY.out``, or as ``KEY.error`` with the reason. An attempt
writes under its lease number, and the ledger decides whose result counts, and which job owns the
public name. Only then is the result copied to that name. Readers of it therefore never see a result
that does not count, and repeating the publication is harmless. The API itself always reads the
object of the attempt, which no client can replace.
"""

import hashlib
import logging
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

import orjson

from headrace.core.errors import (
    AccessDeniedError,
    ConfigError,
    DataError,
    HeadraceError,
    JobLedgerUnavailableError,
    JobStateError,
    LimitError,
    NotFoundError,
    OutputTakenError,
    ResourceNotFoundError,
    ResultGoneError,
    StorageError,
    UnavailableError,
)
from headrace.jobs.access import format_digest
from headrace.jobs.job import Job, JobFailure, is_job_id, new_job_id
from headrace.jobs.kinds import client_message
from headrace.jobs.ledger import JobLedger
from headrace.jobs.paths import (
    ERROR_SUFFIX,
    FAILED_SUFFIX,
    RESULT_SUFFIX,
    JobPaths,
    is_below,
    output_location,
    without_query,
)
from headrace.jobs.state import RULES, WITH_RESULT, JobState, cause_of
from headrace.jobs.tracing import JobTracer, publication_span
from headrace.jobs.usage import ByteReservation
from headrace.storage import ObjectInfo, Stores, UrlSigner, Writer

_log = logging.getLogger("headrace.jobs")

JOB_METADATA: Final = "headracejob"
"""The name of the metadata of published objects that has the job's id."""
DIGEST_METADATA: Final = "headracedigest"
"""The name of the metadata of published objects that has their digest."""
PUBLISH_TRIES_MAX: Final = 30
"""Tries of `JobLedger.claim_publications`, about a day, after which a publication fails for good."""
_IN_MEMORY_BYTES: Final = 8 << 20
"""Smaller results are read once: for their digest and to be copied."""
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
    """The bytes of a result, or of a payload, as chunks, none of them read yet.

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


@dataclass(frozen=True, slots=True)
class PublishedCheck:
    """The comparison of the object at a job's published name with the job's result.

    `status` is ``equal``, ``different`` or ``missing``. `found_job_id` is the job that wrote the
    object by its metadata, "" if unknown.
    """

    status: Literal["equal", "different", "missing"]
    uri: str
    digest: str
    found_digest: str = ""
    found_job_id: str = ""


class BoundedWriter:
    """An upload with a size limit. Nothing is visible before `close`. One thread at a time.

    `reservation` counts its bytes for the day's limit of the client's key.
    """

    def __init__(self, writer: Writer, bytes_max: int, reservation: ByteReservation | None = None) -> None:
        self._writer = writer
        self._bytes_max = bytes_max
        self._reservation = reservation
        self.nbytes = 0

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raise LimitError beyond the limit, UnavailableError if the store fails, and the errors of
        `ByteReservation.receive`.
        """
        self.nbytes += len(data)
        if self._reservation is not None:
            self._reservation.receive(len(data))
        if self.nbytes > self._bytes_max:
            raise LimitError(f"the upload exceeds the limit of {self._bytes_max} bytes")
        with _transfer("an upload"):
            self._writer.write(data)

    def close(self) -> None:
        """Publish the upload."""
        try:
            with _transfer("an upload"):
                self._writer.close()
        finally:
            self._end(0)

    def abort(self, unwritten_bytes: int = 0) -> None:
        """Discard the upload, and `unwritten_bytes` that were received after the last write."""
        try:
            self._writer.abort()
        finally:
            self._end(unwritten_bytes)

    def _end(self, unwritten_bytes: int) -> None:
        if self._reservation is not None:
            self._reservation.close(unwritten_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Payloads:
    """Payloads and results below `store_uri`. Thread-safe."""

    def __init__(self, stores: Stores, store_uri: str, *, upload_bytes_max: int, signed_urls: bool) -> None:
        self._stores = stores
        self._paths = JobPaths(store_uri)
        self._upload_bytes_max = upload_bytes_max
        self._signed_urls = signed_urls

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

    def begin_upload(
        self, tenant: str, now_ms: int, expires_s: float, *, through_api: bool = False
    ) -> Upload:
        """Return the location of a large payload.

        It has a signed address if the store can sign, unless `through_api` is true.
        """
        upload_id = new_upload_id(tenant, now_ms)
        url = "" if through_api else self._signed("PUT", self._paths.input(upload_id), expires_s)
        return Upload(upload_id, url, expires_s)

    def open_upload(
        self, tenant: str, upload_id: str, reservation: ByteReservation | None = None
    ) -> BoundedWriter:
        """Open an upload for writing, which owns `reservation` from then on.

        Raise ResourceNotFoundError for an id that this tenant never received.
        """
        check_upload_id(tenant, upload_id)
        uri = self._paths.input(upload_id)
        with _transfer("an upload"):
            return BoundedWriter(self._stores.for_uri(uri).writer(uri), self._upload_bytes_max, reservation)

    def check_upload(self, tenant: str, upload_id: str) -> tuple[str, int]:
        """Return the URI and the size in bytes of a finished upload.

        Raise ResourceNotFoundError for an id that this tenant never received, DataError for an upload
        that has not finished, and UnavailableError.
        """
        check_upload_id(tenant, upload_id)
        uri = self._paths.input(upload_id)
        with _transfer("an upload"):
            try:
                size_bytes = self._stores.for_uri(uri).head(uri).size_bytes
            except NotFoundError:
                raise DataError(f"upload: {upload_id} has no payload yet: PUT it first") from None
        return uri, size_bytes or 0

    def open_result(self, job: Job, start: int = 0, *, etag: str | None = None) -> ResultStream:
        """Open a completed job's result: the object of the attempt, never the published one.

        The stream begins at byte `start` if `etag` is this result's, and at 0 otherwise. Raise
        JobStateError for a job without a result, ResultGoneError and UnavailableError.
        """
        info = self._find_object(job)
        assert job.result is not None
        if info.size_bytes is None:
            info = replace(info, size_bytes=job.result.size_bytes)
        return self._open(info, job.result.content_type, job.lease, start, etag)

    def open_input(self, job: Job, start: int = 0, *, etag: str | None = None) -> ResultStream:
        """Open the payload that was stored for a job, as `open_result` does.

        Raise JobStateError for a job whose input is an object of its client.
        """
        uri = job.spec.input_uri
        if not job.spec.owned_input:
            raise JobStateError(
                job.id, job.state.value, f"its input is not stored with it: read it at input_uri ({uri})"
            )
        info = self._head(job, uri, "payload")
        return self._open(info, job.spec.content_type, 0, start, etag)

    def _open(
        self, info: ObjectInfo, content_type: str, lease: int, start: int, etag: str | None
    ) -> ResultStream:
        size_bytes = info.size_bytes
        own_etag = f'"{lease}-{zlib.crc32(info.etag.encode()):08x}-{size_bytes or 0:x}"'
        if size_bytes is None or start >= size_bytes or etag != own_etag:
            start = 0
        pieces = self._stores.for_uri(info.uri).stream(info.uri, start=start, etag=info.etag)
        return ResultStream(info.uri, content_type, size_bytes, own_etag, start, _transferred(pieces))

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

    def check_published(self, job: Job) -> PublishedCheck:
        """Compare the published object with the result, by reading all of it.

        Raise JobStateError for a job without a published result, and UnavailableError.
        """
        result = job.result
        if result is None or not result.published_uri or not result.digest:
            raise JobStateError(job.id, job.state.value, "headrace has published no result of it")
        uri = result.published_uri
        store = self._stores.for_uri(uri)
        with _transfer("the published result"):
            try:
                found = digest_of_pieces(store.stream(uri))
                found_job_id = store.metadata(uri).get(JOB_METADATA, "")
            except NotFoundError:
                return PublishedCheck("missing", uri, result.digest)
        status: Literal["equal", "different"] = "equal" if found == result.digest else "different"
        return PublishedCheck(status, uri, result.digest, found, found_job_id)

    def _find_object(self, job: Job) -> ObjectInfo:
        if job.state not in WITH_RESULT or job.result is None:
            raise JobStateError(job.id, job.state.value, _no_result(job))
        return self._head(job, job.result.uri, "result")

    def _head(self, job: Job, uri: str, what: str) -> ObjectInfo:
        # The store's owner may have deleted the object, or revoked the permission to read it.
        with _transfer(f"the {what}"), suppress(NotFoundError, AccessDeniedError):
            return self._stores.for_uri(uri).head(uri)
        raise ResultGoneError(job.id, what)

    def _signed(self, method: str, uri: str, expires_s: float) -> str:
        store = self._stores.for_uri(uri)
        if not self._signed_urls or not isinstance(store, UrlSigner):
            return ""
        try:
            return store.sign("GET" if method == "GET" else "PUT", uri, expires_s)
        except StorageError as error:
            # The transfer goes through the API instead.
            _log.warning("an address could not be signed", extra={"uri": uri, "why": str(error)})
            return ""


class Publication:
    """A publisher of the ends of jobs. Thread-safe.

    `hide` is a URI prefix to hide in messages. `tracer` traces each try, if it is given.
    """

    def __init__(
        self, ledger: JobLedger, stores: Stores, *, hide: str = "", tracer: JobTracer | None = None
    ) -> None:
        self._ledger = ledger
        self._stores = stores
        self._hide = hide
        self._tracer = tracer

    def publish(self, job: Job) -> str:
        """Publish a job's end and record it in the ledger. Return the object's URI, "" if there is none.

        The last writer of a name reads its owner from the ledger after writing. If that is another
        job by now, or the same job after another attempt, the owner's end is published instead, so
        that the end of the owner stays. So it is if another job owns the name from the beginning: a
        publisher that was killed may have written this job's end after the owner's. The objects of
        an earlier end at this name are removed.

        Raises OutputTakenError for a job that no longer owns its name, ResultGoneError for a result
        that no longer exists, ConfigError for an invalid location, storage errors, and
        JobLedgerUnavailableError. Except for the first two, the call may be repeated.
        """
        owner, uri = self._ledger.output_owner(job), ""
        for _ in range(_TIMES_MAX):
            if owner is None or not _publishes(owner):
                break
            with publication_span(self._tracer, owner):
                uri, digest = self._result(owner) if owner.result is not None else self._error(owner)
                is_last = self._ledger.mark_published(owner.id, owner.lease, uri, digest)
            if is_last:
                break
            _log.warning("an output got another end meanwhile", extra={"job": job.id, "uri": uri})
            owner, uri = self._ledger.output_owner(job), ""
        if owner is not None and owner.id != job.id:
            raise OutputTakenError(job.spec.key, owner.id, f"job {owner.id} owns this key by now")
        return uri

    def publish_or_record(self, job: Job) -> bool:
        """Publish a job's end, or record the failure in the ledger. Return False if it is to be retried.

        A failure is final if a retry is pointless, such as a missing permission, and after
        `PUBLISH_TRIES_MAX` tries. Raise JobLedgerUnavailableError.
        """
        try:
            self.publish(job)
        except JobLedgerUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - every failure is recorded
            cause = cause_of(error)
            final = RULES[cause] is None or job.publish_tries >= PUBLISH_TRIES_MAX
            _log.warning(
                "a job's end could not be published, %s: %s",
                "giving up" if final else "retrying",
                error,
                extra={"job": job.id},
                exc_info=None if isinstance(error, HeadraceError) else error,
            )
            message = f"the result could not be published: {client_message(error, self._hide)}"
            failure = JobFailure(cause, message, type(error).__name__)
            self._ledger.mark_publish_failed(job.id, job.lease, failure, final=final)
            return final
        return True

    def _result(self, job: Job) -> tuple[str, str]:
        assert job.result is not None, "the caller checks it"
        location, source = output_location(job.spec), self._head(job.result.uri)
        if source is None:
            raise ResultGoneError(job.id)
        uri = location + RESULT_SUFFIX
        # The result is written last: a reader that waits for it finds the other objects complete.
        if (failed := self._head(source.uri + FAILED_SUFFIX)) is not None:
            self._copy(job, failed, uri + FAILED_SUFFIX)
        elif _had_earlier_end(job):
            self._remove(uri + FAILED_SUFFIX)
        if _had_earlier_end(job):
            self._remove(location + ERROR_SUFFIX)
        return uri, self._copy(job, source, uri)

    def _error(self, job: Job) -> tuple[str, str]:
        location = output_location(job.spec)
        if _had_earlier_end(job) and job.spec.kind == "infer":
            self._remove(location + RESULT_SUFFIX)
            self._remove(location + RESULT_SUFFIX + FAILED_SUFFIX)
        data = orjson.dumps(error_document(job), option=orjson.OPT_INDENT_2)
        uri = location + ERROR_SUFFIX
        return uri, self._write(job, uri, digest_of_pieces([data]), [data])

    def _head(self, uri: str) -> ObjectInfo | None:
        with suppress(NotFoundError):
            return self._stores.for_uri(uri).head(uri)
        return None

    def _copy(self, job: Job, source: ObjectInfo, target: str) -> str:
        """Copy an object and return its digest. The metadata of the copy, which goes first, has it."""
        store = self._stores.for_uri(source.uri)
        if source.size_bytes is not None and source.size_bytes <= _IN_MEMORY_BYTES:
            data = store.get(source.uri)
            return self._write(job, target, digest_of_pieces([data]), [data])
        digest = digest_of_pieces(store.stream(source.uri, etag=source.etag))
        return self._write(job, target, digest, store.stream(source.uri, etag=source.etag))

    def _write(self, job: Job, uri: str, digest: str, pieces: Iterable[bytes]) -> str:
        metadata = {JOB_METADATA: job.id, DIGEST_METADATA: digest}
        with self._stores.for_uri(uri).writer(uri, metadata) as writer:
            for piece in pieces:
                writer.write(piece)
        return digest

    def _remove(self, uri: str) -> None:
        """Delete an object if permitted.

        Many keys may only write; the ledger then tells which end is the last.
        """
        with suppress(AccessDeniedError):
            self._stores.for_uri(uri).delete(uri)


def digest_of_pieces(pieces: Iterable[bytes]) -> str:
    """Return ``sha256:`` and the hexadecimal hash of the bytes."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return format_digest(digest.digest())


def _publishes(job: Job) -> bool:
    """Return True if headrace writes the job's result, or the reason of its end, to its output."""
    return job.needs_publication or (job.state is JobState.COMPLETED and job.spec.publishes_result)


def _had_earlier_end(job: Job) -> bool:
    """Return True if the job, or another owner of its name, may have published another end before.

    A job with a key may follow another owner; a job that was due more than once may have been
    requeued. For other jobs this is False and saves requests to the store.
    """
    return bool(job.spec.key) or job.due_at_ms != job.created_at_ms + job.spec.delay_ms


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
    """Raise ResourceNotFoundError unless `new_upload_id` could have returned this id for this tenant."""
    if not is_job_id(upload_id) or upload_id[-8:] != _check(tenant, upload_id[:-8]):
        raise ResourceNotFoundError("upload", upload_id)


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
