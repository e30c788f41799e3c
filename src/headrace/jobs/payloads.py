"""Payloads and results between the HTTP routes and the store.

All functions block, stream, and use bounded memory.
"""

import hashlib
import logging
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self

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
from headrace.jobs.job import Job, new_job_id
from headrace.jobs.paths import JobPaths, is_below
from headrace.jobs.state import JobState
from headrace.storage import ObjectInfo, Stores, UrlSigner, Writer

_log = logging.getLogger("headrace.jobs")

_JOB_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


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
        uri = self.input_uri(job_id)
        with _transfer("a payload"):
            self._stores.for_uri(uri).put(uri, payload)
        return uri

    def input_uri(self, job_id: str) -> str:
        """Return the URI of a job's own payload."""
        return self._paths.input(job_id)

    def delete_payload(self, uri: str) -> None:
        """Delete a stored payload, or leave it to the sweeper."""
        try:
            self._stores.for_uri(uri).delete(uri)
        except (StorageError, ConfigError) as error:
            _log.warning("an unused payload could not be deleted", extra={"why": str(error)})

    def is_internal(self, uri: str) -> bool:
        """Return True if an object is below `store_uri`."""
        return is_below(uri, self._paths.store_uri)

    def begin_upload(self, tenant: str, now_ms: int, expires_s: float) -> Upload:
        """Return the location of a large payload, with a signed address if the store can sign."""
        upload_id = new_upload_id(tenant, now_ms)
        return Upload(upload_id, self._signed("PUT", self.input_uri(upload_id), expires_s), expires_s)

    def open_upload(self, tenant: str, upload_id: str) -> BoundedWriter:
        """Open an upload for writing. Raise DataError for an id that this tenant never received."""
        check_upload_id(tenant, upload_id)
        uri = self.input_uri(upload_id)
        with _transfer("an upload"):
            return BoundedWriter(self._stores.for_uri(uri).writer(uri), self._upload_bytes_max)

    def check_upload(self, tenant: str, upload_id: str) -> str:
        """Return the URI of a finished upload.

        Raise DataError if there is none, and UnavailableError.
        """
        check_upload_id(tenant, upload_id)
        uri = self.input_uri(upload_id)
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
        if job.spec.owned_input and self.is_internal(job.spec.input_uri):
            self.delete_payload(job.spec.input_uri)
        if job.result is not None and self.is_internal(job.result.uri):
            self.delete_payload(job.result.uri)

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
    if not _JOB_ID.fullmatch(upload_id) or upload_id[-8:] != _check(tenant, upload_id[:-8]):
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
