"""Routes of payloads and results: large uploads in, results out, each as a stream that holds a bounded amount."""

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
from headrace.server.jobs.api import Api, answer, job_id_of, problems
from headrace.server.jobs.job_routes import Wait
from headrace.server.jobs.models import UploadedModel, UploadModel

GATHERED_BYTES: Final = 1 << 20
"""Of an upload, before it is handed to the store: a thread for each packet would cost more than the writing."""
RETRY_AFTER_S: Final = 5.0
TEMPORARY_REDIRECT: Final = 307
PARTIAL_CONTENT: Final = 206
_GOING_ON: Final = re.compile(r"bytes=(\d{1,18})-")


def payload_routes(api: Api) -> APIRouter:
    """All of them, for one API."""
    router = APIRouter(prefix="/v1")
    desk, run = api.desk, api.workroom.run

    @router.get(
        "/jobs/{job_id}/result",
        tags=["jobs"],
        response_class=Response,
        responses={
            200: {
                "description": "The result, as its content type says.",
                "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
            },
            206: {"description": "The rest, where `Range: bytes=N-` was asked for with `If-Range`."},
            307: {"description": "Where the result can be read without a key, for a while."},
            **problems(404, 409, 410),
        },
    )
    async def result(
        request: Request,
        job_id: str,
        wait: Wait = 0,
        redirect: Annotated[
            bool, Query(description="To the object store, where that can be done; else the result.")
        ] = False,
    ) -> Response:
        """A completed job's result."""
        caller = api.caller(request, Scope.READ)
        known_id = job_id_of(job_id)
        if wait:
            await api.waited(caller, known_id, wait)
        if redirect and (url := await run(desk.result_url, caller, known_id)):
            return Response(status_code=TEMPORARY_REDIRECT, headers={"location": url})
        stream, first = await run(_begun, api, caller, known_id, request.headers)
        status = PARTIAL_CONTENT if stream.start else 200
        return StreamingResponse(_pieces(api, first, stream.pieces), status, _headers(stream))

    @router.post(
        "/uploads", tags=["uploads"], status_code=201, response_model=UploadModel, responses=problems()
    )
    async def begin_upload(request: Request) -> Response:
        """Ask for a place for a payload that is too large for a submission; then name it there as `upload`."""
        caller = api.caller(request, Scope.SUBMIT)
        upload = await run(desk.begin_upload, caller)
        url = upload.url or f"/v1/uploads/{upload.id}"
        document = {"id": upload.id, "method": "PUT", "url": url, "expires_in_s": upload.expires_s}
        return answer(document, 201, {"location": url})

    @router.put(
        "/uploads/{upload_id}",
        tags=["uploads"],
        status_code=201,
        response_model=UploadedModel,
        responses=problems(408, 409, 413),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            }
        },
    )
    async def upload(request: Request, upload_id: str) -> Response:
        """Send a payload through the API. Nothing of it is seen before it is whole; sent again, it replaces what was sent."""
        caller = api.caller(request, Scope.SUBMIT)
        _check_upload(request, desk.settings.upload_bytes_max)
        if api.uploads.locked():
            raise OverloadedError("too many uploads are under way here", retry_after_s=RETRY_AFTER_S)
        async with api.uploads:
            writer = await run(desk.open_upload, caller, upload_id)
            await _received(api, request, writer)
        return answer({"id": upload_id, "size_bytes": writer.nbytes}, 201)

    return router


def _begun(api: Api, caller: JobKey, job_id: str, headers: Mapping[str, str]) -> tuple[ResultStream, bytes]:
    """The stream and its first piece, so that what is not there is an error, not half a response."""
    going_on = _GOING_ON.fullmatch(headers.get("range", ""))
    # Without the tag it could be another result's end.
    start = int(going_on[1]) if going_on else 0
    stream = api.desk.open_result(caller, job_id, start, etag=headers.get("if-range", "") if start else None)
    return stream, next(stream.pieces, b"")


async def _pieces(api: Api, first: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
    piece: bytes | None = first
    while piece is not None:
        if piece:
            yield piece
        piece = await api.workroom.run(next, rest, None)


def _headers(stream: ResultStream) -> dict[str, str]:
    # What a model wrote is nobody's page.
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
        raise DataError("Content-Encoding: an upload is stored as it comes; leave it out")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise LimitError(f"the upload is larger than {bytes_max} bytes, which is the most that is taken here")


async def _received(api: Api, request: Request, writer: BoundedWriter) -> None:
    run = api.workroom.run
    try:
        async with asyncio.timeout(api.settings.upload_s_max):
            async for data in _gathered(request, api.settings.upload_idle_s):
                await run(writer.write, data)
        await run(writer.close)
    except TimeoutError:
        await run(writer.abort)
        raise SlowBodyError from None
    except BaseException:
        # Also when it is cancelled; the thread that writes is let finish first.
        await asyncio.shield(run(writer.abort))
        raise


async def _gathered(request: Request, idle_s: float) -> AsyncIterator[bytes]:
    gathered = bytearray()
    more = True
    while more:
        message = await asyncio.wait_for(request.receive(), idle_s)
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        gathered += message.get("body", b"")
        more = message.get("more_body", False)
        if len(gathered) >= GATHERED_BYTES or (gathered and not more):
            yield bytes(gathered)
            gathered.clear()
