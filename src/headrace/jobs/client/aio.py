"""`AsyncClient`: the job API for event loops. What `Client` does, and says, with `await`; see there."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from headrace.jobs.client.answers import Answer
from headrace.jobs.client.calls import (
    FILE_BYTES,
    ClientSettings,
    address,
    answer_of,
    base_url,
    lost,
    options,
    timeouts,
)
from headrace.jobs.client.faces import Face, Saving
from headrace.jobs.client.orders import NOTHING, Filters, SubmitOptions, order_of, query_of
from headrace.jobs.client.talk import Call, Emit, LostError, Open, Pause, Read, Send, Step, Talk, advanced
from headrace.jobs.job import HistoryEntry, Job

T = TypeVar("T")


class AsyncClient(Face):
    """See `Client`. For one event loop; an asynchronous context manager. Files are read and written in threads."""

    def __init__(self, url: str, *, api_key: str = "", settings: ClientSettings | None = None) -> None:
        super().__init__(base_url(url), api_key, settings or ClientSettings())
        self._http = httpx.AsyncClient(**options(self.settings))

    async def close(self) -> None:
        """Let go of connections. Twice does nothing."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(self, model: str = "", input: Any = NOTHING, **options: Unpack[SubmitOptions]) -> Job:
        """See `Client.submit`."""
        return await self._run(self.talks.submit(order_of(model, input, options)))

    async def get(self, job_id: str) -> Job:
        """See `Client.get`."""
        return await self._run(self.talks.get(job_id))

    async def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """See `Client.wait`."""
        return await self._run(self.talks.wait(job_id, timeout_s))

    def events(self, job_id: str) -> AsyncIterator[Job]:
        """See `Client.events`."""
        return self._iterate(self.talks.events(job_id))

    def list(self, **wanted: Unpack[Filters]) -> AsyncIterator[Job]:
        """See `Client.list`."""
        return self._iterate(self.talks.listing(query_of(wanted)))

    async def history(self, job_id: str) -> Sequence[HistoryEntry]:
        """See `Client.history`."""
        return await self._run(self.talks.history(job_id))

    async def result(self, job_id: str) -> bytes:
        """See `Client.result`."""
        return b"".join([piece async for piece in self.stream_result(job_id)])

    def stream_result(self, job_id: str) -> AsyncIterator[bytes]:
        """See `Client.stream_result`."""
        return self._iterate(self.talks.result(job_id))

    async def save_result(self, job_id: str, path: Path) -> int:
        """See `Client.save_result`."""
        saving = Saving(path)
        try:
            async for piece in self.stream_result(job_id):
                await asyncio.to_thread(saving.write, piece)
            return await asyncio.to_thread(saving.finish)
        finally:
            saving.close()

    async def cancel(self, job_id: str) -> Job:
        """See `Client.cancel`."""
        return await self._run(self.talks.cancel(job_id))

    async def retry(self, job_id: str) -> Job:
        """See `Client.retry`."""
        return await self._run(self.talks.retry(job_id))

    async def delete(self, job_id: str) -> None:
        """See `Client.delete`."""
        await self._run(self.talks.delete(job_id))

    async def upload(self, source: bytes | Path) -> str:
        """See `Client.upload`."""
        return await self._run(self.talks.upload(source))

    async def queues(self) -> Sequence[dict[str, Any]]:
        """See `Client.queues`."""
        return (await self._run(self.talks.document("GET", "/v1/queues")))["queues"]

    async def queue(self, name: str) -> dict[str, Any]:
        """See `Client.queue`."""
        return await self._run(self._about_queue("GET", name))

    async def pause_queue(self, name: str) -> dict[str, Any]:
        """See `Client.pause_queue`."""
        return await self._run(self._about_queue("POST", name, "/pause"))

    async def resume_queue(self, name: str) -> dict[str, Any]:
        """See `Client.resume_queue`."""
        return await self._run(self._about_queue("POST", name, "/resume"))

    async def drain_queue(self, name: str) -> dict[str, Any]:
        """See `Client.drain_queue`."""
        return await self._run(self._about_queue("POST", name, "/drain"))

    async def bound_queue(self, name: str, pending_max: int | None) -> dict[str, Any]:
        """See `Client.bound_queue`."""
        return await self._run(self._bounding(name, pending_max))

    async def scale(self, name: str) -> dict[str, Any]:
        """See `Client.scale`."""
        return await self._run(self._about_queue("GET", name, "/scale"))

    # Doing what talks say

    async def _run(self, talk: Talk[T]) -> T:
        """What a talk returns; what it emits is nobody's."""
        session = _Session(self._http, self)
        try:
            step = next(talk)
            while True:
                step = advanced(talk, await session.outcome(step))
        except StopIteration as end:
            return end.value
        finally:
            talk.close()
            await session.close()

    async def _iterate(self, talk: Talk[None]) -> AsyncGenerator[Any, None]:
        """What a talk emits."""
        session = _Session(self._http, self)
        try:
            step = next(talk)
            while True:
                if isinstance(step, Emit):
                    yield step.value
                    step = talk.send(None)
                else:
                    step = advanced(talk, await session.outcome(step))
        except StopIteration:
            return
        finally:
            talk.close()
            await session.close()


class _Session:
    """One talk's hold on the network: at most one open response."""

    def __init__(self, http: httpx.AsyncClient, face: Face) -> None:
        self._http = http
        self._face = face
        self._open: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def outcome(self, step: Step) -> Any:
        """What came of one step; LostError as a value."""
        try:
            return await self.do(step)
        except LostError as error:
            return error

    async def do(self, step: Step) -> Any:
        """Do one step. LostError."""
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
        """Let go of what is open."""
        if self._open is not None:
            await self._open.aclose()
            self._open = None

    async def _send(self, call: Call, *, stream: bool) -> Answer:
        await self.close()
        settings, content = self._face.settings, call.content
        try:
            request = self._http.build_request(
                call.method,
                address(self._face.base, call),
                params=list(call.params) or None,
                headers=dict(call.headers),
                content=_pieces(content) if isinstance(content, Path) else content,
                timeout=timeouts(settings, call),
            )
            response = await self._http.send(request, stream=stream)
            if not stream or response.status_code >= 400:
                body = await response.aread()
                await response.aclose()
                return answer_of(response, body)
        except httpx.HTTPError as error:
            raise lost(error) from error
        self._open = response
        self._chunks = aiter(response.aiter_bytes())
        return answer_of(response, b"")

    async def _read(self) -> bytes | None:
        assert self._chunks is not None
        try:
            chunk = await anext(self._chunks, None)
        except httpx.HTTPError as error:
            raise lost(error) from error
        if chunk is None:
            await self.close()
        return chunk


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, FILE_BYTES):
            yield piece
