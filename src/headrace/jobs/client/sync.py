"""`Client`: the job API for threads."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from headrace.jobs.client.core import (
    ApiCall,
    ApiExchange,
    ConnectionLostError,
    Emit,
    Open,
    Pause,
    Read,
    Send,
    Step,
    next_step,
)
from headrace.jobs.client.messages import (
    UNSET,
    ApiResponse,
    Filters,
    SubmitOptions,
    list_query,
    make_submit_request,
)
from headrace.jobs.client.transport import (
    FILE_BYTES,
    ClientBase,
    ClientSettings,
    ResultFile,
    address,
    api_response,
    base_url,
    connection_lost,
    httpx,
    httpx_options,
    timeouts,
)
from headrace.jobs.job import HistoryEntry, Job

T = TypeVar("T")


class Client(ClientBase):
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
        super().__init__(base_url(url), api_key, settings or ClientSettings())
        self._http = httpx.Client(**httpx_options(self.settings))

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
        return self._run(self.core.submit(make_submit_request(model, input, options)))

    def get(self, job_id: str) -> Job:
        """Return a job as it is now."""
        return self._run(self.core.get(job_id))

    def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """Return a job once it has ended in any state. Raise DeadlineError after `timeout_s`."""
        return self._run(self.core.wait(job_id, timeout_s))

    def events(self, job_id: str) -> Iterator[Job]:
        """Yield the job now and after each change of state or progress, until it has ended.

        A broken connection is reopened and continues. Of several changes meanwhile only the last is
        yielded.
        """
        return self._iterate(self.core.events(job_id))

    def list(self, **wanted: Unpack[Filters]) -> Iterator[Job]:
        """Yield matching jobs, newest first; pages are fetched as needed."""
        return self._iterate(self.core.listing(list_query(wanted)))

    def history(self, job_id: str) -> Sequence[HistoryEntry]:
        """Return a job's failures, retries and manual changes, oldest first."""
        return self._run(self.core.history(job_id))

    def result(self, job_id: str) -> bytes:
        """Return a completed job's result.

        Raise JobStateError for a job without a result, and ResultGoneError if it no longer exists.
        """
        return b"".join(self.stream_result(job_id))

    def stream_result(self, job_id: str) -> Iterator[bytes]:
        """Yield a completed job's result as chunks; a broken connection is resumed."""
        return self._iterate(self.core.result(job_id))

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
        return self._run(self.core.cancel(job_id))

    def retry(self, job_id: str) -> Job:
        """Requeue a job that ended without a result."""
        return self._run(self.core.retry(job_id))

    def delete(self, job_id: str) -> None:
        """Delete an ended job and the objects stored for it alone."""
        self._run(self.core.delete(job_id))

    def upload(self, source: bytes | Path) -> str:
        """Send a large payload to the store. Return the id for a submission's ``upload``."""
        return self._run(self.core.upload(source))

    def queues(self) -> Sequence[dict[str, Any]]:
        """Return all queues with their counts."""
        return self._run(self.core.document("GET", "/v1/queues"))["queues"]

    def queue(self, name: str) -> dict[str, Any]:
        """Return one queue."""
        return self._run(self._about_queue("GET", name))

    def pause_queue(self, name: str) -> dict[str, Any]:
        """Stop giving out the queue's jobs."""
        return self._run(self._about_queue("POST", name, "/pause"))

    def resume_queue(self, name: str) -> dict[str, Any]:
        """Give out the queue's jobs and accept submissions again."""
        return self._run(self._about_queue("POST", name, "/resume"))

    def drain_queue(self, name: str) -> dict[str, Any]:
        """Refuse further submissions to the queue."""
        return self._run(self._about_queue("POST", name, "/drain"))

    def bound_queue(self, name: str, pending_max: int | None) -> dict[str, Any]:
        """Limit the queue's pending jobs; None for no limit."""
        return self._run(self._bounding(name, pending_max))

    def scale(self, name: str) -> dict[str, Any]:
        """Return the number of workers that a queue needs."""
        return self._run(self._about_queue("GET", name, "/scale"))

    # Running exchanges

    def _run(self, exchange: ApiExchange[T]) -> T:
        """Run an exchange and return its value; emitted values are ignored."""
        session = _Session(self._http, self)
        try:
            step = next(exchange)
            while True:
                step = next_step(exchange, session.outcome(step))
        except StopIteration as end:
            return end.value
        finally:
            exchange.close()
            session.close()

    def _iterate(self, exchange: ApiExchange[None]) -> Iterator[Any]:
        """Yield the emitted values of an exchange."""
        session = _Session(self._http, self)
        try:
            step = next(exchange)
            while True:
                if isinstance(step, Emit):
                    yield step.value
                    step = exchange.send(None)
                else:
                    step = next_step(exchange, session.outcome(step))
        except StopIteration:
            return
        finally:
            exchange.close()
            session.close()


class _Session:
    """One exchange's network use: at most one open response."""

    def __init__(self, http: httpx.Client, client: ClientBase) -> None:
        self._http = http
        self._client = client
        self._open: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def outcome(self, step: Step) -> Any:
        """Perform one step; return a ConnectionLostError instead of raising it."""
        try:
            return self.do(step)
        except ConnectionLostError as error:
            return error

    def do(self, step: Step) -> Any:
        """Perform one step. Raise ConnectionLostError."""
        match step:
            case Send(call):
                return self._send(call, stream=False)
            case Open(call):
                return self._send(call, stream=True)
            case Read():
                return self._read()
            case Pause(seconds):
                time.sleep(seconds)
                return None
            case Emit():
                return None

    def close(self) -> None:
        """Close the open response."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _send(self, call: ApiCall, *, stream: bool) -> ApiResponse:
        self.close()
        settings, content = self._client.settings, call.content
        try:
            request = self._http.build_request(
                call.method,
                address(self._client.base, call),
                params=list(call.params) or None,
                headers=dict(call.headers),
                content=_pieces(content) if isinstance(content, Path) else content,
                timeout=timeouts(settings, call),
            )
            response = self._http.send(request, stream=stream)
            if not stream or response.status_code >= 400:
                body = response.read()
                response.close()
                return api_response(response, body)
        except httpx.HTTPError as error:
            raise connection_lost(error) from error
        self._open = response
        self._chunks = response.iter_bytes()
        return api_response(response, b"")

    def _read(self) -> bytes | None:
        try:
            chunk = next(self._chunks, None)
        except httpx.HTTPError as error:
            raise connection_lost(error) from error
        if chunk is None:
            self.close()
        return chunk


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(FILE_BYTES):
            yield piece
