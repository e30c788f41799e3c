"""The job API as an application: all its routes, and the handlers of payloads, events and health.

Payloads and results are streamed in bounded memory.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from secrets import token_bytes
from typing import Any, Final, cast

import orjson

from headrace.core.errors import DataError, LimitError, OverloadedError
from headrace.jobs.access import Access, Scope
from headrace.jobs.payloads import BoundedWriter, ResultStream
from headrace.jobs.service import JobService
from headrace.jobs.trigger import EventSubmitter, Triggers
from headrace.protocols.object_events import NOTICE_BYTES_MAX, object_events
from headrace.server.application import Guard, WebApp
from headrace.server.http import DisconnectedError, Exchange, SlowBodyError
from headrace.server.jobs.api import (
    ERRORS,
    Api,
    ApiHandlers,
    ApiSettings,
    BoundedThreadPool,
    job_id_of,
    respond_json,
)
from headrace.server.jobs.bulk_routes import BulkHandlers
from headrace.server.jobs.documents import (
    EventOutcomesDocument,
    HealthDocument,
    PublishedCheckDocument,
    ResultQuery,
    UploadDocument,
    UploadedDocument,
)
from headrace.server.jobs.endpoint_routes import EndpointHandlers
from headrace.server.jobs.failure_routes import FailureHandlers
from headrace.server.jobs.job_routes import JobHandlers, QueueHandlers
from headrace.server.jobs.pool_routes import PoolHandlers
from headrace.server.jobs.sagemaker import SageMakerSettings, sagemaker_routes
from headrace.server.jobs.schedule_routes import ScheduleHandlers
from headrace.server.jobs.worker_routes import WorkerHandlers
from headrace.server.observation import Observer
from headrace.server.openapi import documentation_routes
from headrace.server.routes import BINARY, Json, Route, read_query, route, routes_of
from headrace.server.sessions import Sessions, session_routes

UPLOAD_CHUNK_BYTES: Final = 1 << 20
"""The size of the chunks that uploads write to the store. A thread call per packet would cost more
than the write.
"""
RETRY_AFTER_S: Final = 5.0
TEMPORARY_REDIRECT: Final = 307
PARTIAL_CONTENT: Final = 206
_RANGE_FROM: Final = re.compile(r"bytes=(\d{1,18})-")
_RESULT: Final[Json] = {"*/*": {}}
_OTHER_RESULTS: Final[Json] = {
    "206": {"description": "The rest of the result, for `Range: bytes=N-` with `If-Range`."},
    "307": {"description": "`Location` is a URL that reads the result without a key for a limited time."},
}
_RANGE_PARAMETERS: Final[tuple[Json, ...]] = (
    {
        "name": "Range",
        "in": "header",
        "required": False,
        "description": "`bytes=N-`, the bytes from N on, with `If-Range`; everything else is ignored.",
        "schema": {"type": "string"},
    },
    {
        "name": "If-Range",
        "in": "header",
        "required": False,
        "description": "The `ETag` of an earlier response. Without it, or with another one, the response "
        "is whole: the bytes could belong to another result.",
        "schema": {"type": "string"},
    },
)
_NOTICE: Final[Json] = {
    "application/json": {
        "schema": {
            "type": "object",
            "anyOf": [
                {"required": [name], "properties": {name: {"type": kind}}}
                for name, kind in (
                    ("Records", "array"),
                    ("Message", "string"),
                    ("body", "string"),
                    ("Body", "string"),
                    ("detail", "object"),
                    ("Event", "string"),
                )
            ],
        }
    },
    # SNS sends JSON as text.
    "text/plain": {"schema": {"type": "string"}},
}
_CONFIRMATION: Final = "SubscriptionConfirmation"

_log = logging.getLogger("headrace.jobs.events")


def job_routes(
    service: JobService,
    *,
    settings: ApiSettings | None = None,
    thread_pool: BoundedThreadPool | None = None,
    sagemaker: SageMakerSettings | None = None,
    event_submitter: EventSubmitter | None = None,
) -> list[Route]:
    """Return the routes of the job API for one event loop.

    The caller starts `service` before it serves the routes and stops it afterwards. The caller closes
    `thread_pool` if it passed one. With `sagemaker` there is a route for SageMaker clients. With
    `event_submitter`, object events submit jobs.
    """
    api = Api(service, settings, thread_pool)
    submitter = event_submitter or EventSubmitter(Triggers(()), service.submit_internal)
    groups: list[object] = [
        JobHandlers(api),
        PayloadHandlers(api),
        BulkHandlers(api),
        QueueHandlers(api),
        EndpointHandlers(api),
        ScheduleHandlers(api),
        FailureHandlers(api),
        WorkerHandlers(api),
        PoolHandlers(api),
        OtherHandlers(api, submitter),
    ]
    routes = [found for handlers in groups for found in routes_of(handlers)]
    if sagemaker is not None:
        routes += sagemaker_routes(api, sagemaker)
    return [replace(found, has_request_id=True) for found in routes]


def jobs_app(
    service: JobService,
    access: Access,
    *,
    version: str,
    settings: ApiSettings | None = None,
    thread_pool: BoundedThreadPool | None = None,
    sagemaker: SageMakerSettings | None = None,
    event_submitter: EventSubmitter | None = None,
    observers: Sequence[Observer] | None = None,
) -> WebApp:
    """Return an application with the job API alone; see `job_routes`."""
    settings = settings or ApiSettings()
    sessions = Sessions(access, token_bytes())
    guard = Guard(access, sessions=sessions)
    routes = job_routes(
        service,
        settings=settings,
        thread_pool=thread_pool,
        sagemaker=sagemaker,
        event_submitter=event_submitter,
    ) + session_routes(sessions, access)
    documentation = documentation_routes(routes, guard, version=version)
    return WebApp([*routes, *documentation], guard, body_s_max=settings.body_s_max, observers=observers)


class OtherHandlers(ApiHandlers):
    """The handlers of health and of event notifications; their docstrings describe them for clients."""

    def __init__(self, api: Api, submitter: EventSubmitter) -> None:
        super().__init__(api)
        self._submitter = submitter

    @route("GET", "/v1/health/live", (), HealthDocument)
    async def jobs_live(self, exchange: Exchange) -> None:
        """Report that the process responds. No key is needed."""
        await respond_json(exchange, {"status": "ok"})

    @route("GET", "/v1/health/ready", (), HealthDocument, errors=ERRORS)
    async def jobs_ready(self, exchange: Exchange) -> None:
        """Report that jobs can be submitted: the database of the ledger responds. No key is needed."""
        await self._run(self._service.check_ready)
        await respond_json(exchange, {"status": "ok"})

    @route(
        "POST",
        "/v1/events/s3",
        (Scope.EVENTS,),
        EventOutcomesDocument,
        request_content=_NOTICE,
        errors=(*ERRORS, 408, 413),
    )
    async def receive_s3_events(self, exchange: Exchange) -> None:
        """Accept an event notification, and submit the jobs of matching triggers.

        The formats of AWS, MinIO and Ceph are accepted, bare or wrapped by SNS, SQS or EventBridge.
        Repeated or reordered notifications about created objects make no job twice.
        """
        body = await exchange.body(NOTICE_BYTES_MAX)
        if _wants_confirmation(body):
            # The address in the notification is not called: any sender could have chosen it.
            _log.warning(
                "SNS requests the confirmation of a subscription: confirm it in the console or API of SNS"
            )
            await respond_json(exchange, {"outcomes": []})
            return
        outcomes = await self._run(self._submitter.submit, object_events(body))
        documents = [
            {"uri": o.uri, "job_id": o.job_id, "created": o.created, "reason": o.reason} for o in outcomes
        ]
        await respond_json(exchange, {"outcomes": documents})


def _wants_confirmation(body: bytes) -> bool:
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and cast("dict[str, Any]", document).get("Type") == _CONFIRMATION


class PayloadHandlers(ApiHandlers):
    """The handlers of uploads and results. Their docstrings are the descriptions for clients."""

    @route(
        "GET",
        "/v1/jobs/{job_id}/result",
        (Scope.READ,),
        query=ResultQuery,
        parameters=_RANGE_PARAMETERS,
        content=_RESULT,
        success="The result, with its content type.",
        responses=_OTHER_RESULTS,
        errors=(*ERRORS, 404, 409, 410),
    )
    async def result(self, exchange: Exchange) -> None:
        """Return the result of a completed job."""
        query = read_query(ResultQuery, exchange.query)
        key, job_id = exchange.client, job_id_of(exchange)
        if query.wait:
            await self._api.wait_for_job(key, job_id, query.wait)
        if query.redirect and (url := await self._run(self._service.result_url, key, job_id)):
            await exchange.respond(TEMPORARY_REDIRECT, b"", extra=[(b"location", url.encode("latin-1"))])
            return
        await self._send(exchange, self._service.open_result)

    @route(
        "GET",
        "/v1/jobs/{job_id}/input",
        (Scope.READ,),
        parameters=_RANGE_PARAMETERS,
        content=_RESULT,
        success="The payload, with its content type.",
        responses={"206": _OTHER_RESULTS["206"]},
        errors=(*ERRORS, 404, 409, 410),
    )
    async def job_input(self, exchange: Exchange) -> None:
        """Return the payload that was sent with a job, or uploaded for it.

        A job with an `input_uri` of its client has none.
        """
        await self._send(exchange, self._service.open_input)

    async def _send(self, exchange: Exchange, open_stream: Callable[..., ResultStream]) -> None:
        stream, first, is_whole = await self._run(self._open, exchange, open_stream)
        status = PARTIAL_CONTENT if stream.start else 200
        content_type = (stream.content_type or "application/octet-stream").encode("latin-1")
        headers = _headers(stream)
        if is_whole:
            await exchange.respond(status, first, content_type, headers)
            return
        if stream.size_bytes is not None:
            headers.append((b"content-length", b"%d" % (stream.size_bytes - stream.start)))
        async with aclosing(_result_chunks(self._api, first, stream.pieces)) as chunks:
            await exchange.respond_streaming(content_type, chunks, headers, status=status)

    def _open(
        self, exchange: Exchange, open_stream: Callable[..., ResultStream]
    ) -> tuple[ResultStream, bytes, bool]:
        """Return the stream, its first chunk, and True if this is all of it.

        An error before the first chunk is an error response, not half a response.
        """
        range_match = _RANGE_FROM.fullmatch(exchange.header(b"range") or "")
        # Without the tag, the range could belong to another result.
        start = int(range_match[1]) if range_match else 0
        etag = exchange.header(b"if-range") or "" if start else None
        stream = open_stream(exchange.client, job_id_of(exchange), start, etag=etag)
        first = next(stream.pieces, b"")
        is_whole = stream.start + len(first) == stream.size_bytes and next(stream.pieces, None) is None
        return stream, first, is_whole

    @route(
        "GET",
        "/v1/jobs/{job_id}/published",
        (Scope.READ,),
        PublishedCheckDocument,
        errors=(*ERRORS, 404, 409),
    )
    async def check_published(self, exchange: Exchange) -> None:
        """Compare the object at the job's published name with its result. The object is read whole."""
        tenant = exchange.client.tenant
        if self._api.checks.is_full(tenant):
            raise OverloadedError("too many published results are being read", retry_after_s=RETRY_AFTER_S)
        async with self._api.checks.hold(tenant):
            check = await self._run(self._service.check_published, exchange.client, job_id_of(exchange))
        await respond_json(exchange, asdict(check))

    @route("POST", "/v1/uploads", (Scope.SUBMIT,), UploadDocument, status=201, errors=ERRORS)
    async def begin_upload(self, exchange: Exchange) -> None:
        """Request a URL for a payload that is too large for a submission.

        Name the finished upload in the submission as `upload`.
        """
        upload = await self._run(self._service.begin_upload, exchange.client)
        url = upload.url or f"/v1/uploads/{upload.id}"
        document = {"id": upload.id, "method": "PUT", "url": url, "expires_in_s": upload.expires_s}
        await respond_json(exchange, document, 201, [(b"location", url.encode("latin-1"))])

    @route(
        "PUT",
        "/v1/uploads/{upload_id}",
        (Scope.SUBMIT,),
        UploadedDocument,
        request_content=BINARY,
        request_required=False,
        status=201,
        errors=(*ERRORS, 404, 408, 409, 413),
    )
    async def upload(self, exchange: Exchange) -> None:
        """Upload a payload through the API.

        It becomes visible when it is complete. A repeated upload replaces the earlier one. A request
        without a body uploads an empty payload.
        """
        upload_id = exchange.arguments["upload_id"]
        declared = _declared_bytes(exchange, self._service.settings.upload_bytes_max)
        tenant = exchange.client.tenant
        if self._api.uploads.is_full(tenant):
            raise OverloadedError("too many uploads are running", retry_after_s=RETRY_AFTER_S)
        async with self._api.uploads.hold(tenant):
            writer = await self._run(self._service.open_upload, exchange.client, upload_id, declared)
            await _receive_upload(self._api, exchange, writer)
        await respond_json(exchange, {"id": upload_id, "size_bytes": writer.nbytes}, 201)


async def _result_chunks(api: Api, first: bytes, rest: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    chunk: bytes | None = first
    while chunk is not None:
        if chunk:
            yield chunk
        chunk = await api.thread_pool.run(next, rest, None)


def _headers(stream: ResultStream) -> list[tuple[bytes, bytes]]:
    # A browser must not render the output of a model as a page.
    headers = [
        (b"content-disposition", b"attachment"),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        (b"etag", stream.etag.encode("latin-1")),
    ]
    start, size = stream.start, stream.size_bytes
    if start and size is not None:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (start, size - 1, size)))
    return headers


def _declared_bytes(exchange: Exchange, bytes_max: int) -> int | None:
    """Return the declared size of an upload, None if it is unknown. Raise LimitError and DataError."""
    if (exchange.header(b"content-encoding") or "identity") != "identity":
        raise DataError("Content-Encoding: not supported for uploads; leave it out")
    declared = exchange.header(b"content-length") or ""
    if not declared.isdigit():
        return None
    if int(declared) > bytes_max:
        raise LimitError(f"the upload is larger than the limit of {bytes_max} bytes")
    return int(declared)


async def _receive_upload(api: Api, exchange: Exchange, writer: BoundedWriter) -> None:
    run = api.thread_pool.run
    buffer = bytearray()
    try:
        async with asyncio.timeout(api.settings.upload_s_max):
            async for data in _upload_chunks(exchange, api.settings.upload_idle_s, buffer):
                await run(writer.write, data)
        await run(writer.close)
    except TimeoutError:
        await run(writer.abort, len(buffer))
        raise SlowBodyError from None
    except BaseException:
        # This includes cancellation. The writing thread finishes first.
        await asyncio.shield(run(writer.abort, len(buffer)))
        raise


async def _upload_chunks(exchange: Exchange, idle_s: float, buffer: bytearray) -> AsyncIterator[bytes]:
    """Yield the body in chunks. `buffer` has the bytes that arrived and were not yielded."""
    more = True
    while more:
        message = await asyncio.wait_for(exchange.receive(), idle_s)
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        buffer += message.get("body", b"")
        more = message.get("more_body", False)
        if len(buffer) >= UPLOAD_CHUNK_BYTES or (buffer and not more):
            chunk = bytes(buffer)
            buffer.clear()
            yield chunk
