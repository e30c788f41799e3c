"""`AsyncClient`: the job API for event loops, with the methods of `Client`."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

from typing_extensions import override

from headrace.jobs.client.core import ApiCall, ApiOperations, ApiTransport
from headrace.jobs.client.messages import ApiResponse, ApiStream
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


class AsyncClient(ApiOperations):
    """An asynchronous client of the job API, with the methods and errors of `Client`.

    For one event loop; an asynchronous context manager. Files are read and written in threads.
    """

    def __init__(self, url: str, *, api_key: str = "", settings: ClientSettings | None = None) -> None:
        self.settings = settings or ClientSettings()
        self.base = base_url(url)
        self._http = httpx.AsyncClient(**httpx_options(self.settings))
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
        saving = ResultFile(path)
        try:
            async for piece in self.stream_result(job_id):
                await asyncio.to_thread(saving.write, piece)
            return await asyncio.to_thread(saving.finish)
        finally:
            saving.close()


class _LoopTransport(ApiTransport):
    def __init__(self, http: httpx.AsyncClient, base: httpx.URL, settings: ClientSettings) -> None:
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
            response = await self._http.send(request, stream=stream)
            if stream and response.is_error:
                await response.aread()
        except httpx.HTTPError as error:
            raise connection_lost(error) from error
        return api_response(response, _LoopStream(response) if stream else None)

    @override
    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _LoopStream(ApiStream):
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.aiter_bytes()

    @override
    async def read(self) -> bytes | None:
        try:
            return await anext(self._chunks, None)
        except httpx.HTTPError as error:
            raise connection_lost(error) from error

    @override
    async def aclose(self) -> None:
        await self._response.aclose()


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, FILE_BYTES):
            yield piece
