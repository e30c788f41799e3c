"""The routes of payloads and results. Both are streamed in bounded memory."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from headrace.core.errors import DataError, LimitError, OverloadedError
from headrace.jobs.access import JobKey, Scope
from headrace.jobs.payloads import BoundedWriter, ResultStream
from headrace.server.http import DisconnectedError, SlowBodyError
from headrace.server.jobs.api import Api, error_responses, json_response, parse_job_id
from headrace.server.jobs.job_routes import Wait
from headrace.server.jobs.models import UploadedModel, UploadModel

UPLOAD_CHUNK_BYTES: Final = 1 << 20
"""The size of the chunks that uploads write to the store. A thread call per packet would cost more
than the write.
"""
RETRY_AFTER_S: Final = 5.0
TEMPORARY_REDIRECT: Final = 307
PARTIAL_CONTENT: Final = 206
_RANGE_FROM: Final = re.compile(r"bytes=(\d{1,18})-")


def payload_routes(api: Api) -> APIRouter:
    """Return the routes for one API."""
    router = APIRouter(prefix="/v1")
    service, run = api.service, api.thread_pool.run

    @router.get(
        "/jobs/{job_id}/result",
        summary="Get a job's result",
        tags=["jobs"],
        response_class=Response,
        responses={
            200: {
                "description": "The result, with its content type.",
                "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
            },
            206: {"description": "The rest of the result, for `Range: bytes=N-` with `If-Range`."},
            307: {
                "description": "`Location` is a URL that reads the result without a key for a limited time."
            },
            **error_responses(404, 409, 410),
        },
    )
    async def result(
        request: Request,
        job_id: str,
        wait: Wait = 0,
        redirect: Annotated[
            bool, Query(description="Redirect to the object store if it supports signed URLs.")
        ] = False,
    ) -> Response:
        """Return the result of a completed job."""
        key = api.authorize(request, Scope.READ)
        parsed_id = parse_job_id(job_id)
        if wait:
            await api.wait_for_job(key, parsed_id, wait)
        if redirect and (url := await run(service.result_url, key, parsed_id)):
            return Response(status_code=TEMPORARY_REDIRECT, headers={"location": url})
        stream, first = await run(_open_result, api, key, parsed_id, request.headers)
        status = PARTIAL_CONTENT if stream.start else 200
        return StreamingResponse(_result_chunks(api, first, stream.pieces), status, _headers(stream))

    @router.post(
        "/uploads",
        summary="Begin an upload",
        tags=["uploads"],
        status_code=201,
        response_model=UploadModel,
        responses=error_responses(),
    )
    async def begin_upload(request: Request) -> Response:
        """Request a URL for a payload that is too large for a submission.

        Name the finished upload in the submission as `upload`.
        """
        key = api.authorize(request, Scope.SUBMIT)
        upload = await run(service.begin_upload, key)
        url = upload.url or f"/v1/uploads/{upload.id}"
        document = {"id": upload.id, "method": "PUT", "url": url, "expires_in_s": upload.expires_s}
        return json_response(document, 201, {"location": url})

    @router.put(
        "/uploads/{upload_id}",
        summary="Upload a payload",
        tags=["uploads"],
        status_code=201,
        response_model=UploadedModel,
        responses=error_responses(408, 409, 413),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            }
        },
    )
    async def upload(request: Request, upload_id: str) -> Response:
        """Upload a payload through the API.

        It becomes visible when it is complete. A repeated upload replaces the earlier one.
        """
        key = api.authorize(request, Scope.SUBMIT)
        _check_upload(request, service.settings.upload_bytes_max)
        if api.uploads.locked():
            raise OverloadedError("too many uploads are running", retry_after_s=RETRY_AFTER_S)
        async with api.uploads:
            writer = await run(service.open_upload, key, upload_id)
            await _receive_upload(api, request, writer)
        return json_response({"id": upload_id, "size_bytes": writer.nbytes}, 201)

    return router


def _open_result(
    api: Api, key: JobKey, job_id: str, headers: Mapping[str, str]
) -> tuple[ResultStream, bytes]:
    """Return the result stream and its first chunk.

    An error before the first chunk is an error response, not half a response.
    """
    range_match = _RANGE_FROM.fullmatch(headers.get("range", ""))
    # Without the tag, the range could belong to another result.
    start = int(range_match[1]) if range_match else 0
    stream = api.service.open_result(key, job_id, start, etag=headers.get("if-range", "") if start else None)
    return stream, next(stream.pieces, b"")


async def _result_chunks(api: Api, first: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
    chunk: bytes | None = first
    while chunk is not None:
        if chunk:
            yield chunk
        chunk = await api.thread_pool.run(next, rest, None)


def _headers(stream: ResultStream) -> dict[str, str]:
    # A browser must not render the output of a model as a page.
    headers = {
        "content-type": stream.content_type or "application/octet-stream",
        "content-disposition": "attachment",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    headers["etag"] = stream.etag
    if stream.size_bytes is not None:
        headers["content-length"] = str(stream.size_bytes - stream.start)
        if stream.start:
            size = stream.size_bytes
            headers["content-range"] = f"bytes {stream.start}-{size - 1}/{size}"
    return headers


def _check_upload(request: Request, bytes_max: int) -> None:
    if request.headers.get("content-encoding", "identity") != "identity":
        raise DataError("Content-Encoding: not supported for uploads; leave it out")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise LimitError(f"the upload is larger than the limit of {bytes_max} bytes")


async def _receive_upload(api: Api, request: Request, writer: BoundedWriter) -> None:
    run = api.thread_pool.run
    try:
        async with asyncio.timeout(api.settings.upload_s_max):
            async for data in _upload_chunks(request, api.settings.upload_idle_s):
                await run(writer.write, data)
        await run(writer.close)
    except TimeoutError:
        await run(writer.abort)
        raise SlowBodyError from None
    except BaseException:
        # This includes cancellation. The writing thread finishes first.
        await asyncio.shield(run(writer.abort))
        raise


async def _upload_chunks(request: Request, idle_s: float) -> AsyncIterator[bytes]:
    buffer = bytearray()
    more = True
    while more:
        message = await asyncio.wait_for(request.receive(), idle_s)
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        buffer += message.get("body", b"")
        more = message.get("more_body", False)
        if len(buffer) >= UPLOAD_CHUNK_BYTES or (buffer and not more):
            yield bytes(buffer)
            buffer.clear()
