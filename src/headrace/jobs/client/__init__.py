"""The clients of the job API: `Client` for threads, `AsyncClient` for event loops.

Both have the operations of `ApiOperations`. Adapter module of httpx: it alone reports its absence.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, Unpack

from typing_extensions import override

from headrace.core.errors import ConfigError, HeadraceError, MissingExtraError
from headrace.jobs.client.core import RETRY_S, TIMEOUT_S, ApiOperations, ApiTransport, iterate, run
from headrace.jobs.client.messages import (
    UNSET,
    ApiCall,
    ApiResponse,
    ApiStream,
    ConnectionLostError,
    Filters,
    SubmitOptions,
)
from headrace.jobs.history import HistoryEntry
from headrace.jobs.job import Job

try:
    import httpx
except ImportError as _error:
    raise MissingExtraError("jobs", "the client of the job API") from _error

__all__ = ["AsyncClient", "Client", "ClientSettings"]

CONNECT_S: Final = 10.0
FILE_BYTES: Final = 1 << 20
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The timeouts of a client: `timeout_s` for a silent server, `retry_s` for all retries."""

    timeout_s: float = TIMEOUT_S
    retry_s: float = RETRY_S
    ca_file: Path | None = None
    """Trusted certificates instead of the system's."""


class Client:
    """A client of the job API: submits jobs, follows them, and fetches their results.

    Thread-safe; a context manager. Transient failures (no connection, a full queue, a stopping
    server) are retried for `retry_s`. A submission has an idempotency key, generated if not given,
    so that a repeated submission creates one job.

    Errors are those of `headrace.core.errors`, as the API raised them: JobNotFoundError,
    JobStateError, IdempotencyError, QueueFullError, QueueClosedError, DataError,
    UnauthenticatedError, ForbiddenError and others. EndpointUnavailableError means that the API was
    unreachable, EndpointRefusedError that a response is not a job API's.
    """

    def __init__(self, url: str, *, api_key: str = "", settings: ClientSettings | None = None) -> None:
        self.settings = settings or ClientSettings()
        self.base = _base_url(url)
        self._http = httpx.Client(**_httpx_options(self.settings))
        self._api = ApiOperations(
            str(self.base),
            _ThreadTransport(self._http, self.base, self.settings),
            api_key=api_key,
            retry_s=self.settings.retry_s,
        )

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, model: str = "", input: Any = UNSET, **options: Unpack[SubmitOptions]) -> Job:
        """Submit a job. Return once it is in the ledger.

        `input` is the payload: bytes, a `Path` to a file, text (with a `content_type` that is not
        JSON), or any JSON value. Large payloads are uploaded first.
        """
        return run(self._api.submit(model, input, **options))

    def submit_batch(
        self, jobs: Iterable[Mapping[str, Any]], *, all_or_nothing: bool = False
    ) -> Sequence[Job | HeadraceError]:
        """Submit many jobs, in requests of at most 1,000. Return the job or the error of each, in order.

        Each job is a mapping with the arguments of `submit`: ``model``, ``input`` and options. Payloads of
        bytes and files are uploaded one by one. With `all_or_nothing`, there is one request, and the error
        of the first refused job is raised: nothing was queued.

        If a request fails, its error is raised, and the jobs of earlier requests are queued: with
        idempotency keys, the call can be repeated.
        """
        return run(self._api.submit_batch(jobs, all_or_nothing=all_or_nothing))

    def get(self, job_id: str) -> Job:
        """Return a job as it is now."""
        return run(self._api.get(job_id))

    def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """Return a job once it has ended in any state. Raise DeadlineError after `timeout_s`."""
        return run(self._api.wait(job_id, timeout_s))

    def events(self, job_id: str) -> Iterator[Job]:
        """Yield the job now and after each change of state or progress, until it has ended.

        A broken connection is reopened and continues. Of several changes meanwhile only the last is
        yielded.
        """
        return iterate(self._api.events(job_id))

    def list(self, **wanted: Unpack[Filters]) -> Iterator[Job]:
        """Yield matching jobs, newest first; pages are fetched as needed."""
        return iterate(self._api.list(**wanted))

    def history(self, job_id: str) -> Sequence[HistoryEntry]:
        """Return a job's failures, retries and manual changes, oldest first."""
        return run(self._api.history(job_id))

    def result(self, job_id: str) -> bytes:
        """Return a completed job's result.

        Raise JobStateError for a job without a result, and ResultGoneError if it no longer exists.
        """
        return b"".join(self.stream_result(job_id))

    def stream_result(self, job_id: str) -> Iterator[bytes]:
        """Yield a completed job's result as chunks; a broken connection is resumed."""
        return iterate(self._api.stream_result(job_id))

    def stream_input(self, job_id: str) -> Iterator[bytes]:
        """Yield the payload of a job as chunks; a broken connection is resumed.

        Raise JobStateError for a job whose input is an object of its client, at `input_uri`.
        """
        return iterate(self._api.stream_input(job_id))

    def save_result(self, job_id: str, path: Path) -> int:
        """Write a completed job's result to a file, which appears once complete.

        Return its size in bytes.
        """
        return _save(self.stream_result(job_id), path)

    def save_input(self, job_id: str, path: Path) -> int:
        """Write the payload of a job to a file, as `save_result` does."""
        return _save(self.stream_input(job_id), path)

    def check_published(self, job_id: str) -> dict[str, Any]:
        """Compare the object at a job's published name with its result, by reading all of it.

        Return its ``status`` (equal, different or missing), ``uri``, ``digest``, ``found_digest`` and
        ``found_job_id``. Raise JobStateError for a job without a published result.
        """
        return run(self._api.check_published(job_id))

    def cancel(self, job_id: str) -> Job:
        """Cancel a job: a pending one at once, a running one soon. A second call does nothing."""
        return run(self._api.cancel(job_id))

    def retry(self, job_id: str) -> Job:
        """Requeue a job that ended without a result, or publish again a result that is not published."""
        return run(self._api.retry(job_id))

    def delete(self, job_id: str) -> None:
        """Delete an ended job and the objects stored for it alone."""
        run(self._api.delete(job_id))

    def bulk(
        self,
        action: str,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        all_jobs: bool = False,
        **wanted: Unpack[Filters],
    ) -> dict[str, Any]:
        """Apply ``cancel``, ``retry``, ``requeue`` or ``delete`` to all jobs that match, newest first.

        Return the numbers of jobs that matched, that were changed, and that were skipped, by reason.
        With `dry_run`, nothing is changed. `limit` limits the jobs of this call. A call without
        conditions needs `all_jobs`.

        Raise DataError for states to which the action does not apply. After a lost response, the error
        EndpointUnavailableError leaves open how many jobs were changed; call again.
        """
        return run(self._api.bulk(action, dry_run=dry_run, limit=limit, all_jobs=all_jobs, **wanted))

    def audit(self, *, done_by: str = "", action: str = "") -> Iterator[dict[str, Any]]:
        """Yield the entries of the audit log, newest first; pages are fetched as needed.

        `done_by` is the name of an API key, and `action` an action; "" matches all. The key needs the
        scope ``operate``.
        """
        return iterate(self._api.audit(done_by=done_by, action=action))

    def upload(self, source: bytes | Path) -> str:
        """Send a large payload to the store. Return the id for a submission's ``upload``."""
        return run(self._api.upload(source))

    def queues(self) -> Sequence[dict[str, Any]]:
        """Return the queues that the key may see, with their counts.

        A key without the scope ``monitor`` sees its own queues, and counts of its tenant's jobs.
        """
        return run(self._api.queues())

    def queue(self, name: str) -> dict[str, Any]:
        """Return one queue."""
        return run(self._api.queue(name))

    def pause_queue(self, name: str) -> dict[str, Any]:
        """Stop giving out the queue's jobs."""
        return run(self._api.pause_queue(name))

    def resume_queue(self, name: str) -> dict[str, Any]:
        """Give out the queue's jobs and accept submissions again."""
        return run(self._api.resume_queue(name))

    def drain_queue(self, name: str) -> dict[str, Any]:
        """Refuse further submissions to the queue."""
        return run(self._api.drain_queue(name))

    def bound_queue(self, name: str, pending_max: int | None) -> dict[str, Any]:
        """Limit the queue's pending jobs; None for no limit."""
        return run(self._api.bound_queue(name, pending_max))

    def delete_queue(self, name: str) -> None:
        """Remove a queue and its settings; its ended jobs stay. Do nothing for an unknown queue.

        Raise QueueInUseError for a queue with unfinished jobs.
        """
        run(self._api.delete_queue(name))

    def scale(self, name: str) -> dict[str, Any]:
        """Return the number of workers that a queue needs, as ``desired``, with its ``reason``.

        Without the scope ``monitor``, the jobs of the key's tenant count alone. Raise ForbiddenError for
        a queue that the key may not use, and JobLedgerUnavailableError instead of guessing 0.
        """
        return run(self._api.scale(name))

    def workers(self) -> Sequence[dict[str, Any]]:
        """Return the living workers, and those that ended or were lost in the last day, by name.

        Raise ForbiddenError for a key without the scope ``monitor``.
        """
        return run(self._api.workers())

    def worker(self, name: str) -> dict[str, Any]:
        """Return a worker with its running jobs. Raise ResourceNotFoundError."""
        return run(self._api.worker(name))

    def drain_worker(self, name: str) -> dict[str, Any]:
        """Let a worker claim no more jobs; its running jobs continue. Raise ResourceNotFoundError.

        Return it. Its ``state`` is ``drained`` once none of its jobs runs.
        """
        return run(self._api.drain_worker(name))

    def undrain_worker(self, name: str) -> dict[str, Any]:
        """Let a worker claim jobs again. Return it. Raise ResourceNotFoundError."""
        return run(self._api.undrain_worker(name))

    def pools(self) -> Sequence[dict[str, Any]]:
        """Return the pools of workers, each with its last decision, by name.

        Raise ForbiddenError for a key without the scope ``monitor``.
        """
        return run(self._api.pools())

    def pool_scale(self, pool: str) -> dict[str, Any]:
        """Return the number of workers that a pool is to have, as ``wanted``, with its ``reason``.

        The number is that of the last decision of the pool's controller, and ``at_ms`` its time. An
        unknown number is an error, never 0. The key needs the scope ``monitor``.

        Raises:
            ResourceNotFoundError: No controller has scaled the pool in the last 30 days.
            UncontrolledPoolError: No controller scales the pool now, or it has not decided yet. The
                client does not retry this error.
            JobLedgerUnavailableError: The job database does not respond.
        """
        return run(self._api.pool_scale(pool))

    def decisions(self, pool: str) -> Iterator[dict[str, Any]]:
        """Yield the decisions about a pool, newest first; pages are fetched as needed.

        An unknown pool has none. The key needs the scope ``monitor``.
        """
        return iterate(self._api.decisions(pool))

    def endpoints(self) -> Sequence[dict[str, Any]]:
        """Return the endpoints that the key may use, with their settings."""
        return run(self._api.endpoints())

    def endpoint(self, name: str, version: int | None = None) -> dict[str, Any]:
        """Return an endpoint, or one of its versions. Raise EndpointNotFoundError."""
        return run(self._api.endpoint(name, version))

    def endpoint_versions(self, name: str) -> Sequence[dict[str, Any]]:
        """Return the versions of an endpoint, newest first. Raise EndpointNotFoundError."""
        return run(self._api.endpoint_versions(name))

    def set_endpoint(self, name: str, **settings: Any) -> dict[str, Any]:
        """Create an endpoint, or replace all its settings. Return it.

        The settings are those of docs/jobs.md. Settings that are left out have their defaults.
        """
        return run(self._api.set_endpoint(name, **settings))

    def delete_endpoint(self, name: str) -> None:
        """Delete an endpoint; its jobs stay. Raise EndpointNotFoundError if there is none."""
        run(self._api.delete_endpoint(name))

    def schedules(self, *, tenant: str | None = None) -> Sequence[dict[str, Any]]:
        """Return the schedules that the key may see, without their jobs."""
        return run(self._api.schedules(tenant=tenant))

    def schedule(self, name: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Return a schedule with its next times. Raise ResourceNotFoundError."""
        return run(self._api.schedule(name, tenant=tenant))

    def set_schedule(self, name: str, **settings: Any) -> dict[str, Any]:
        """Create a schedule, or replace all its settings. Return it.

        The settings are ``cron``, ``time_zone``, ``overlap`` and ``job``, a submission as a dict.
        Settings that are left out have their defaults. Raise DataError for an invalid one.
        """
        return run(self._api.set_schedule(name, **settings))

    def delete_schedule(self, name: str, *, tenant: str | None = None) -> None:
        """Delete a schedule; its jobs stay. Raise ResourceNotFoundError if there is none."""
        run(self._api.delete_schedule(name, tenant=tenant))

    def pause_schedule(self, name: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Submit no jobs of a schedule until it is resumed. Return it. Raise ResourceNotFoundError."""
        return run(self._api.pause_schedule(name, tenant=tenant))

    def resume_schedule(self, name: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Submit jobs of a schedule again. Return it. Raise ResourceNotFoundError."""
        return run(self._api.resume_schedule(name, tenant=tenant))

    def run_schedule(self, name: str) -> Job:
        """Submit the job of a schedule now, and return it. Raises as `submit` does."""
        return run(self._api.run_schedule(name))

    def failures(self, *, limit: int = 100) -> Sequence[dict[str, Any]]:
        """Return the failed jobs in groups of equal failures, the largest group first."""
        return run(self._api.failures(limit=limit))

    def deliveries(self, job_id: str) -> Sequence[dict[str, Any]]:
        """Return the deliveries of a job's notifications, oldest first."""
        return run(self._api.deliveries(job_id))

    def dead_deliveries(self, *, limit: int = 100) -> Sequence[dict[str, Any]]:
        """Return the deliveries of all jobs that were given up, the latest first."""
        return run(self._api.dead_deliveries(limit=limit))

    def redeliver(self, delivery_id: str) -> dict[str, Any]:
        """Deliver a notification again, at once. Return the delivery. Raise ResourceNotFoundError."""
        return run(self._api.redeliver(delivery_id))

    def failing_receivers(self, *, limit: int = 100) -> Sequence[dict[str, Any]]:
        """Return the receivers that are disabled, or whose last delivery failed."""
        return run(self._api.failing_receivers(limit=limit))

    def enable_receiver(self, name: str) -> dict[str, Any]:
        """Resume the deliveries to a receiver. Return it. Raise ResourceNotFoundError."""
        return run(self._api.enable_receiver(name))


class AsyncClient(ApiOperations):
    """An asynchronous client of the job API, with the methods and errors of `Client`.

    For one event loop; an asynchronous context manager. Files are read and written in threads.
    """

    def __init__(self, url: str, *, api_key: str = "", settings: ClientSettings | None = None) -> None:
        self.settings = settings or ClientSettings()
        self.base = _base_url(url)
        self._http = httpx.AsyncClient(**_httpx_options(self.settings))
        transport = _LoopTransport(self._http, self.base, self.settings)
        super().__init__(str(self.base), transport, api_key=api_key, retry_s=self.settings.retry_s)

    async def close(self) -> None:
        """Close the connections. A second call does nothing."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def save_result(self, job_id: str, path: Path) -> int:
        """Write a completed job's result to a file, which appears once complete.

        Return its size in bytes.
        """
        return await _save_async(self.stream_result(job_id), path)

    async def save_input(self, job_id: str, path: Path) -> int:
        """Write the payload of a job to a file, as `save_result` does."""
        return await _save_async(self.stream_input(job_id), path)


def _save(pieces: Iterator[bytes], path: Path) -> int:
    saving = _DownloadedFile(path)
    try:
        for piece in pieces:
            saving.write(piece)
        return saving.finish()
    finally:
        saving.close()


async def _save_async(pieces: AsyncGenerator[bytes, None], path: Path) -> int:
    saving = _DownloadedFile(path)
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                await asyncio.to_thread(saving.write, piece)
        return await asyncio.to_thread(saving.finish)
    finally:
        saving.close()


class _ThreadTransport(ApiTransport):
    """A transport that blocks the calling thread and never suspends."""

    def __init__(self, http: httpx.Client, base: httpx.URL, settings: ClientSettings) -> None:
        self._http = http
        self._base = base
        self._settings = settings

    @override
    async def send(self, call: ApiCall, *, stream: bool = False) -> ApiResponse:
        content = _pieces(call.content) if isinstance(call.content, Path) else call.content
        with _connection_errors():
            request = self._http.build_request(
                **_request_options(self._base, self._settings, call), content=content
            )
            response = self._http.send(request, stream=stream)
            if stream and response.is_error:
                response.read()
        return _api_response(response, _ThreadStream(response) if stream else None)

    @override
    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks on purpose


class _ThreadStream(ApiStream):
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.iter_bytes()

    @override
    async def read(self) -> bytes | None:
        with _connection_errors():
            return next(self._chunks, None)

    @override
    async def aclose(self) -> None:
        self._response.close()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(FILE_BYTES):
            yield piece


class _LoopTransport(ApiTransport):
    def __init__(self, http: httpx.AsyncClient, base: httpx.URL, settings: ClientSettings) -> None:
        self._http = http
        self._base = base
        self._settings = settings

    @override
    async def send(self, call: ApiCall, *, stream: bool = False) -> ApiResponse:
        content = _pieces_async(call.content) if isinstance(call.content, Path) else call.content
        with _connection_errors():
            request = self._http.build_request(
                **_request_options(self._base, self._settings, call), content=content
            )
            response = await self._http.send(request, stream=stream)
            if stream and response.is_error:
                await response.aread()
        return _api_response(response, _LoopStream(response) if stream else None)

    @override
    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _LoopStream(ApiStream):
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.aiter_bytes()

    @override
    async def read(self) -> bytes | None:
        with _connection_errors():
            return await anext(self._chunks, None)

    @override
    async def aclose(self) -> None:
        await self._response.aclose()


async def _pieces_async(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, FILE_BYTES):
            yield piece


def _base_url(url: str) -> httpx.URL:
    """Return the API's address. Raise ConfigError for an invalid one."""
    try:
        found = httpx.URL(url.rstrip("/"))
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url}: not an address: {error}") from None
    if found.scheme not in ("http", "https") or not found.host:
        raise ConfigError(f"{url}: not an address of a job API; write http://HOST:PORT")
    if found.userinfo:
        raise ConfigError("an address with credentials: pass the key as api_key")
    return found


def _httpx_options(settings: ClientSettings) -> dict[str, Any]:
    """Return the arguments of an httpx client."""
    arguments: dict[str, Any] = {"timeout": settings.timeout_s, "follow_redirects": True}
    if settings.ca_file is not None:
        import ssl  # noqa: PLC0415 - rarely needed

        try:
            arguments["verify"] = ssl.create_default_context(cafile=str(settings.ca_file))
        except OSError as error:
            raise ConfigError(f"the certificates in {settings.ca_file} cannot be read: {error}") from error
    return arguments


def _request_options(base: httpx.URL, settings: ClientSettings, call: ApiCall) -> dict[str, Any]:
    """Return the arguments of an httpx request, without its content."""
    timeout_s = settings.timeout_s + call.extra_s
    return {
        "method": call.method,
        "url": httpx.URL(call.url) if "://" in call.url else httpx.URL(f"{base}{call.url}"),
        "params": list(call.params) or None,
        "headers": dict(call.headers),
        "timeout": httpx.Timeout(timeout_s, connect=min(CONNECT_S, settings.timeout_s)),
    }


def _api_response(response: httpx.Response, stream: ApiStream | None) -> ApiResponse:
    """Return an httpx response as an `ApiResponse`, with its body if that was read."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    body = response.content if response.is_closed else b""
    url = str(response.request.url.copy_with(query=None))
    return ApiResponse(response.status_code, headers, body, url, stream)


@contextmanager
def _connection_errors() -> Generator[None]:
    """Convert httpx's errors to ConnectionLostError."""
    try:
        yield
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        raise ConnectionLostError(why, sent=not isinstance(error, _NEVER_SENT)) from error


class _DownloadedFile:
    """A file that is written under a temporary name and renamed once it is complete.

    Raises ConfigError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        self._nbytes = 0
        with self._errors():
            self._file = self._partial.open("wb")

    def write(self, piece: bytes) -> None:
        """Append a chunk."""
        with self._errors():
            self._nbytes += self._file.write(piece)

    def finish(self) -> int:
        """Rename the file to its name. Return its size in bytes."""
        with self._errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self._path)
        return self._nbytes

    def close(self) -> None:
        """Delete an unfinished file."""
        self._file.close()
        self._partial.unlink(missing_ok=True)

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror or error}") from error
