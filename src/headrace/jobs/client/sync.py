"""`Client`: the job API for threads."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from typing_extensions import override

from headrace.jobs.client.core import ApiCall, ApiOperations, ApiTransport, iterate, run
from headrace.jobs.client.messages import UNSET, ApiResponse, ApiStream, Filters, SubmitOptions
from headrace.jobs.client.transport import (
    FILE_BYTES,
    ClientSettings,
    ResultFile,
    api_response,
    base_url,
    connection_lost,
    httpx,
    httpx_options,
    request_options,
)
from headrace.jobs.job import HistoryEntry, Job


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
        self.base = base_url(url)
        self._http = httpx.Client(**httpx_options(self.settings))
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

    def save_result(self, job_id: str, path: Path) -> int:
        """Write a completed job's result to a file, which appears once complete.

        Return its size in bytes.
        """
        saving = ResultFile(path)
        try:
            for piece in self.stream_result(job_id):
                saving.write(piece)
            return saving.finish()
        finally:
            saving.close()

    def cancel(self, job_id: str) -> Job:
        """Cancel a job: a pending one at once, a running one soon. A second call does nothing."""
        return run(self._api.cancel(job_id))

    def retry(self, job_id: str) -> Job:
        """Requeue a job that ended without a result."""
        return run(self._api.retry(job_id))

    def delete(self, job_id: str) -> None:
        """Delete an ended job and the objects stored for it alone."""
        run(self._api.delete(job_id))

    def upload(self, source: bytes | Path) -> str:
        """Send a large payload to the store. Return the id for a submission's ``upload``."""
        return run(self._api.upload(source))

    def queues(self) -> Sequence[dict[str, Any]]:
        """Return all queues with their counts."""
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

    def scale(self, name: str) -> dict[str, Any]:
        """Return the number of workers that a queue needs."""
        return run(self._api.scale(name))


class _ThreadTransport(ApiTransport):
    """A transport that blocks the calling thread and never suspends."""

    def __init__(self, http: httpx.Client, base: httpx.URL, settings: ClientSettings) -> None:
        self._http = http
        self._base = base
        self._settings = settings

    @override
    async def send(self, call: ApiCall, *, stream: bool = False) -> ApiResponse:
        content = _pieces(call.content) if isinstance(call.content, Path) else call.content
        try:
            request = self._http.build_request(
                **request_options(self._base, self._settings, call), content=content
            )
            response = self._http.send(request, stream=stream)
            if stream and response.is_error:
                response.read()
        except httpx.HTTPError as error:
            raise connection_lost(error) from error
        return api_response(response, _ThreadStream(response) if stream else None)

    @override
    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks on purpose


class _ThreadStream(ApiStream):
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.iter_bytes()

    @override
    async def read(self) -> bytes | None:
        try:
            return next(self._chunks, None)
        except httpx.HTTPError as error:
            raise connection_lost(error) from error

    @override
    async def aclose(self) -> None:
        self._response.close()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(FILE_BYTES):
            yield piece
