"""Payloads and results between a door and the store: what was sent with a submission, what is uploaded, what is fetched.

Everything here blocks, streams, and holds a bounded amount.
"""

import hashlib
import logging
import re
import zlib
from collections.abc import Iterator
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
from headrace.jobs.places import Places, below
from headrace.jobs.state import JobState
from headrace.storage import ObjectInfo, Signing, Stores, Writer

_log = logging.getLogger("headrace.jobs")

_JOB_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Upload:
    """Where a payload may be sent to by PUT. `url` is "" where it goes to the API itself, under `id`."""

    id: str
    """Also that of the job that will name it: an upload makes one job, and is removed with it."""
    url: str
    expires_s: float


@dataclass(frozen=True, slots=True)
class ResultStream:
    """A result's bytes, in pieces, none of them read yet. `size_bytes` is None where the store does not say."""

    uri: str
    content_type: str
    size_bytes: int | None
    """Of all of it, wherever this begins."""
    etag: str
    start: int
    pieces: Iterator[bytes]
    """Raises UnavailableError."""


class BoundedWriter:
    """An upload on its way to the store: nothing is seen of it before `close`. One thread at a time."""

    def __init__(self, writer: Writer, bytes_max: int) -> None:
        self._writer = writer
        self._bytes_max = bytes_max
        self.nbytes = 0

    def write(self, data: bytes) -> None:
        """Append. LimitError beyond the bound, UnavailableError where the store fails."""
        self.nbytes += len(data)
        if self.nbytes > self._bytes_max:
            raise LimitError(
                f"the upload is larger than {self._bytes_max} bytes, which is the most that is taken here"
            )
        try:
            self._writer.write(data)
        except StorageError as error:
            raise unavailable("an upload", error) from error

    def close(self) -> None:
        """Publish it."""
        try:
            self._writer.close()
        except StorageError as error:
            raise unavailable("an upload", error) from error

    def abort(self) -> None:
        """Forget it."""
        self._writer.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Payloads:
    """Objects below `store_uri`. Safe from any thread."""

    def __init__(self, stores: Stores, store_uri: str, *, upload_bytes_max: int, sign: bool) -> None:
        self._stores = stores
        self._places = Places(store_uri)
        self._upload_bytes_max = upload_bytes_max
        self._sign = sign

    def keep(self, job_id: str, payload: bytes) -> str:
        """Store a payload that came with a submission; where it is. UnavailableError."""
        uri = self.input_uri(job_id)
        try:
            self._stores.for_uri(uri).put(uri, payload)
        except StorageError as error:
            raise unavailable("a payload", error) from error
        return uri

    def input_uri(self, job_id: str) -> str:
        """Where a job's own payload is."""
        return self._places.input(job_id)

    def forget(self, uri: str) -> None:
        """Remove what `keep` stored, or leave it to whoever sweeps."""
        try:
            self._stores.for_uri(uri).delete(uri)
        except (StorageError, ConfigError) as error:
            _log.warning("a payload that no job names could not be removed", extra={"why": str(error)})

    def is_ours(self, uri: str) -> bool:
        """Whether an object is below `store_uri`."""
        return below(uri, self._places.store_uri)

    def begin_upload(self, tenant: str, now_ms: int, expires_s: float) -> Upload:
        """A place for a large payload, and the address that takes it, where the store can give one."""
        upload_id = new_upload_id(tenant, now_ms)
        return Upload(upload_id, self._signed("PUT", self.input_uri(upload_id), expires_s), expires_s)

    def open_upload(self, tenant: str, upload_id: str) -> BoundedWriter:
        """Write an upload through here. DataError for an id that this tenant was never given."""
        check_upload_id(tenant, upload_id)
        uri = self.input_uri(upload_id)
        try:
            return BoundedWriter(self._stores.for_uri(uri).writer(uri), self._upload_bytes_max)
        except StorageError as error:
            raise unavailable("an upload", error) from error

    def check_upload(self, tenant: str, upload_id: str) -> str:
        """Where an upload is that has come. DataError where none has, UnavailableError."""
        check_upload_id(tenant, upload_id)
        uri = self.input_uri(upload_id)
        try:
            self._stores.for_uri(uri).head(uri)
        except NotFoundError:
            raise DataError(f"upload: nothing has come for {upload_id}: PUT the payload first") from None
        except StorageError as error:
            raise unavailable("an upload", error) from error
        return uri

    def open_result(self, job: Job, start: int = 0, *, etag: str | None = None) -> ResultStream:
        """A completed job's result, from where it was asked for, or else from where it was first written.

        It begins at byte `start` where `etag` is that of this result, and at its begin where it is not.
        Raises JobStateError for a job that has none, ResultGoneError, UnavailableError.
        """
        info = self._found(job)
        assert job.result is not None
        size_bytes = job.result.size_bytes if info.size_bytes is None else info.size_bytes
        own_etag = f'"{job.lease}-{zlib.crc32(info.etag.encode()):08x}-{size_bytes or 0:x}"'
        if size_bytes is None or start >= size_bytes or etag != own_etag:
            start = 0
        pieces = self._stores.for_uri(info.uri).stream(info.uri, start=start, etag=info.etag)
        return ResultStream(info.uri, job.result.content_type, size_bytes, own_etag, start, _told(pieces))

    def result_url(self, job: Job, expires_s: float) -> str:
        """An address from which the result can be read without a key; "" where the store has none. Raises as `open_result`."""
        return self._signed("GET", self._found(job).uri, expires_s)

    def forget_job(self, job: Job) -> None:
        """Remove what was stored for a job alone: its payload, and its result where that is ours."""
        if job.spec.owned_input and self.is_ours(job.spec.input_uri):
            self.forget(job.spec.input_uri)
        if job.result is not None and self.is_ours(job.result.uri):
            self.forget(job.result.uri)

    def _found(self, job: Job) -> ObjectInfo:
        if job.state is not JobState.COMPLETED or job.result is None:
            raise JobStateError(job.id, job.state.value, _no_result(job))
        for uri in filter(None, (job.result.published_uri, job.result.uri)):
            try:
                return self._stores.for_uri(uri).head(uri)
            except (NotFoundError, AccessDeniedError):
                # Whose it is may have moved it, or taken our rights to it.
                continue
            except StorageError as error:
                raise unavailable("the result", error) from error
        raise ResultGoneError(job.id)

    def _signed(self, method: str, uri: str, expires_s: float) -> str:
        store = self._stores.for_uri(uri)
        if not self._sign or not isinstance(store, Signing):
            return ""
        try:
            return store.sign("GET" if method == "GET" else "PUT", uri, expires_s)
        except StorageError as error:
            # It goes through the API then.
            _log.warning("an address could not be signed", extra={"uri": uri, "why": str(error)})
            return ""


def new_upload_id(tenant: str, now_ms: int) -> str:
    """A job's id that only this tenant can use: its last bits are a digest of the others and the tenant.

    So whose an upload is needs no table. What an id may be guessed by is not weaker for it: whoever has no key of the tenant
    cannot use it, guessed or not.
    """
    made = new_job_id(now_ms)
    return made[:-8] + _check(tenant, made[:-8])


def check_upload_id(tenant: str, upload_id: str) -> None:
    """DataError for what `new_upload_id` never gave for this tenant."""
    if not _JOB_ID.fullmatch(upload_id) or upload_id[-8:] != _check(tenant, upload_id[:-8]):
        raise DataError(f"upload: {ascii(upload_id)[:80]} is none of yours; POST /v1/uploads gives one")


def _check(tenant: str, head: str) -> str:
    return hashlib.sha256(f"{head}\0{tenant}".encode()).hexdigest()[:8]


def unavailable(what: str, error: StorageError) -> UnavailableError:
    """What a caller is told of a store of ours: nothing of where it is, or what it said."""
    _log.warning("the store failed", extra={"what": what, "why": str(error)})
    return UnavailableError("the object store", f"{what} could not be moved now; try again later")


def _told(pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except StorageError as error:
        raise unavailable("the result", error) from error


def _no_result(job: Job) -> str:
    if not job.state.ended:
        return "there is no result yet: ask again, or with ?wait=SECONDS"
    if job.failure is not None:
        return f"there is no result: {job.failure.message}"
    return "there is no result"
