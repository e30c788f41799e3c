"""`AsyncClient`: the job API for event loops, with the methods of `Client`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
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


class AsyncClient(ClientBase):
    """An asynchronous client of the job API, with the methods and errors of `Client`.

    For one event loop; an asynchronous context manager. Files are read and written in threads.
    """

    def __init__(self, url: str, *, api_key: str = "", settings: ClientSettings | None = None) -> None:
        super().__init__(base_url(url), api_key, settings or ClientSettings())
        self._http = httpx.AsyncClient(**httpx_options(self.settings))

    async def close(self) -> None:
        """Close the connections. A second call does nothing."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(self, model: str = "", input: Any = UNSET, **options: Unpack[SubmitOptions]) -> Job:
        """Submit a job. Return once it is in the ledger. `input` is as in `Client.submit`."""
        return await self._run(self.core.submit(make_submit_request(model, input, options)))

    async def get(self, job_id: str) -> Job:
        """Return a job as it is now."""
        return await self._run(self.core.get(job_id))

    async def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """Return a job once it has ended in any state. Raise DeadlineError after `timeout_s`."""
        return await self._run(self.core.wait(job_id, timeout_s))

    def events(self, job_id: str) -> AsyncIterator[Job]:
        """Yield the job now and after each change of state or progress, until it has ended."""
        return self._iterate(self.core.events(job_id))

    def list(self, **wanted: Unpack[Filters]) -> AsyncIterator[Job]:
        """Yield matching jobs, newest first; pages are fetched as needed."""
        return self._iterate(self.core.listing(list_query(wanted)))

    async def history(self, job_id: str) -> Sequence[HistoryEntry]:
        """Return a job's failures, retries and manual changes, oldest first."""
        return await self._run(self.core.history(job_id))

    async def result(self, job_id: str) -> bytes:
        """Return a completed job's result. Raises as `Client.result` does."""
        return b"".join([piece async for piece in self.stream_result(job_id)])

    def stream_result(self, job_id: str) -> AsyncIterator[bytes]:
        """Yield a completed job's result as chunks; a broken connection is resumed."""
        return self._iterate(self.core.result(job_id))

    async def save_result(self, job_id: str, path: Path) -> int:
        """Write a completed job's result to a file, which appears once complete.

        Return its size in bytes.
        """
        saving = ResultFile(path)
        try:
            async for piece in self.stream_result(job_id):
                await asyncio.to_thread(saving.write, piece)
            return await asyncio.to_thread(saving.finish)
        finally:
            saving.close()

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job: a pending one at once, a running one soon. A second call does nothing."""
        return await self._run(self.core.cancel(job_id))

    async def retry(self, job_id: str) -> Job:
        """Requeue a job that ended without a result."""
        return await self._run(self.core.retry(job_id))

    async def delete(self, job_id: str) -> None:
        """Delete an ended job and the objects stored for it alone."""
        await self._run(self.core.delete(job_id))

    async def upload(self, source: bytes | Path) -> str:
        """Send a large payload to the store. Return the id for a submission's ``upload``."""
        return await self._run(self.core.upload(source))

    async def queues(self) -> Sequence[dict[str, Any]]:
        """Return all queues with their counts."""
        return (await self._run(self.core.document("GET", "/v1/queues")))["queues"]

    async def queue(self, name: str) -> dict[str, Any]:
        """Return one queue."""
        return await self._run(self._about_queue("GET", name))

    async def pause_queue(self, name: str) -> dict[str, Any]:
        """Stop giving out the queue's jobs."""
        return await self._run(self._about_queue("POST", name, "/pause"))

    async def resume_queue(self, name: str) -> dict[str, Any]:
        """Give out the queue's jobs and accept submissions again."""
        return await self._run(self._about_queue("POST", name, "/resume"))

    async def drain_queue(self, name: str) -> dict[str, Any]:
        """Refuse further submissions to the queue."""
        return await self._run(self._about_queue("POST", name, "/drain"))

    async def bound_queue(self, name: str, pending_max: int | None) -> dict[str, Any]:
        """Limit the queue's pending jobs; None for no limit."""
        return await self._run(self._bounding(name, pending_max))

    async def scale(self, name: str) -> dict[str, Any]:
        """Return the number of workers that a queue needs."""
        return await self._run(self._about_queue("GET", name, "/scale"))

    # Running exchanges

    async def _run(self, exchange: ApiExchange[T]) -> T:
        """Run an exchange and return its value; emitted values are ignored."""
        session = _Session(self._http, self)
        try:
            step = next(exchange)
            while True:
                step = next_step(exchange, await session.outcome(step))
        except StopIteration as end:
            return end.value
        finally:
            exchange.close()
            await session.close()

    async def _iterate(self, exchange: ApiExchange[None]) -> AsyncGenerator[Any, None]:
        """Yield the emitted values of an exchange."""
        session = _Session(self._http, self)
        try:
            step = next(exchange)
            while True:
                if isinstance(step, Emit):
                    yield step.value
                    step = exchange.send(None)
                else:
                    step = next_step(exchange, await session.outcome(step))
        except StopIteration:
            return
        finally:
            exchange.close()
            await session.close()


class _Session:
    """One exchange's network use: at most one open response."""

    def __init__(self, http: httpx.AsyncClient, client: ClientBase) -> None:
        self._http = http
        self._client = client
        self._open: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def outcome(self, step: Step) -> Any:
        """Perform one step; return a ConnectionLostError instead of raising it."""
        try:
            return await self.do(step)
        except ConnectionLostError as error:
            return error

    async def do(self, step: Step) -> Any:
        """Perform one step. Raise ConnectionLostError."""
        match step:
            case Send(call):
                return await self._send(call, stream=False)
            case Open(call):
                return await self._send(call, stream=True)
            case Read():
                return await self._read()
            case Pause(seconds):
                await asyncio.sleep(seconds)
                return None
            case Emit():
                return None

    async def close(self) -> None:
        """Close the open response."""
        if self._open is not None:
            await self._open.aclose()
            self._open = None

    async def _send(self, call: ApiCall, *, stream: bool) -> ApiResponse:
        await self.close()
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
            response = await self._http.send(request, stream=stream)
            if not stream or response.status_code >= 400:
                body = await response.aread()
                await response.aclose()
                return api_response(response, body)
        except httpx.HTTPError as error:
            raise connection_lost(error) from error
        self._open = response
        self._chunks = aiter(response.aiter_bytes())
        return api_response(response, b"")

    async def _read(self) -> bytes | None:
        assert self._chunks is not None
        try:
            chunk = await anext(self._chunks, None)
        except httpx.HTTPError as error:
            raise connection_lost(error) from error
        if chunk is None:
            await self.close()
        return chunk


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, FILE_BYTES):
            yield piece
