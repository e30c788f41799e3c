"""The routes of jobs and of their queues.

The route of events sends the state of a job now and after every change. It has no log behind it: a
client that was away receives the current state, not all earlier ones. The id of an event identifies
the state that it reports, so a client that reconnects with ``Last-Event-ID`` receives no state twice.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import orjson

from headrace.core.errors import DataError, JobNotFoundError, OverloadedError, StoppedError
from headrace.jobs.access import CHANGE_SCOPES, Scope
from headrace.jobs.batch import BatchReply, SubmissionBatch, read_batch
from headrace.jobs.history import history_document
from headrace.jobs.job import Job, change_tag, same_state
from headrace.jobs.ledger import SubmitReply
from headrace.jobs.service import QUEUE_SCOPES, queue_document
from headrace.jobs.submission import (
    JSON,
    Submission,
    SubmissionHeaders,
    SubmissionLimits,
    read_document,
    read_raw,
)
from headrace.protocols.sse import CONTENT_TYPE
from headrace.runs.media_types import bare_type
from headrace.scaling.recommendation import recommend_workers
from headrace.server.errors import error_body, status_of
from headrace.server.http import Exchange
from headrace.server.jobs.api import (
    BATCH_BYTES_MAX,
    DOCUMENT_BYTES_MAX,
    ERRORS,
    Api,
    ApiHandlers,
    job_id_of,
    queue_of,
    respond_json,
    submission_status,
)
from headrace.server.jobs.bulk_routes import filter_of
from headrace.server.jobs.documents import (
    SUBMISSION,
    BatchDocument,
    BatchReplyDocument,
    HistoryDocument,
    JobDocument,
    JobsQuery,
    PageDocument,
    QueueChangeDocument,
    QueueDocument,
    QueuesDocument,
    ScaleDocument,
    ScaleQuery,
    WaitQuery,
)
from headrace.server.routes import Json, read_json, read_pairs, read_query, route

_READ: Final = (Scope.READ,)
_SUBMIT: Final = (Scope.SUBMIT,)
_OPERATE: Final = (Scope.OPERATE,)
_PATH: Final = "/v1/jobs/{job_id}"
_QUEUE: Final = "/v1/queues/{queue}"
_HEARTBEAT: Final = b": still here\n\n"
_EVENT_HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
_SUBMISSION: Final = (
    "A submission as JSON; or, if the query has a `model` or an `endpoint`, the payload itself with any "
    "content type. "
    "The query then has the other fields of the submission (`tag=NAME=VALUE` for each tag, `options` "
    "and `notify` as JSON)."
)
IDEMPOTENCY_KEY: Final[Json] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Repeated submissions with the same key and content make one job. An empty key is none.",
    "schema": {"type": "string", "maxLength": 255, "pattern": "^[!-~]*$"},
}
_SUBMISSION_PARAMETERS: Final[tuple[Json, ...]] = (
    IDEMPOTENCY_KEY,
    {
        "name": "model",
        "in": "query",
        "required": False,
        "description": "The name of the model; the body is then the payload.",
        "schema": {"type": "string"},
    },
)
_PAYLOAD: Final[Json] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary", "minLength": 1}}
}
_EVENT_CONTENT: Final[Json] = {"text/event-stream": {"schema": {"type": "string"}}}
_NO_EVENTS: Final[Json] = {
    "description": "The job has ended, and `Last-Event-ID` is the id of its last event."
}


class JobHandlers(ApiHandlers):
    """The handlers of the routes of jobs. Their docstrings are the descriptions for clients."""

    @route(
        "POST",
        "/v1/jobs",
        _SUBMIT,
        JobDocument,
        parameters=_SUBMISSION_PARAMETERS,
        request=(SUBMISSION,),
        request_description=_SUBMISSION,
        request_content=_PAYLOAD,
        status=202,
        alternatives={200: (JobDocument, "The job of an earlier submission with the same idempotency key.")},
        errors=(*ERRORS, 404, 408, 409, 413, 422),
    )
    async def submit(self, exchange: Exchange) -> None:
        """Submit a job.

        `Location` is the URL of the job. The status is 200 instead of 202 if an earlier submission
        with the same idempotency key made the job. `warnings` of the job say why it may wait: no
        worker serves its queue. A model that no worker of the queue has is refused with 404. A `key`
        below `output_uri` that another job owns is refused with 409, unless `if_exists` says otherwise.
        """
        limits = self._service.settings.submission_limits
        body = await exchange.body(limits.inline_bytes_max + DOCUMENT_BYTES_MAX)
        submission = await self._run(_read, exchange, body, limits)
        reply = await self._api.submit(exchange.client, submission)
        await self._api.respond_submitted(exchange, reply)

    @route(
        "POST",
        "/v1/jobs/batch",
        _SUBMIT,
        BatchReplyDocument,
        request=(BatchDocument,),
        errors=(*ERRORS, 404, 408, 409, 413, 422),
    )
    async def submit_batch(self, exchange: Exchange) -> None:
        """Submit up to 1,000 jobs.

        Each job has a result at its place: the job with status 202 or 200, or the error with the status
        that a submission of this job alone would have. With `all_or_nothing`, the first error is the
        response, its text has the index of the job, and nothing was queued.
        """
        body = await exchange.body(BATCH_BYTES_MAX)
        async with self._api.batches.hold(exchange.client.tenant):
            batch = await self._run(_read_batch, exchange, body, self._service.settings.submission_limits)
            replies = await self._run(self._service.submit_batch, exchange.client, batch)
        results = await self._run(lambda: list(map(self._result, replies)))
        await respond_json(exchange, {"results": results})

    def _result(self, reply: BatchReply) -> dict[str, Any]:
        if isinstance(reply, SubmitReply):
            return {"status": submission_status(reply), "job": self._api.document(reply.job)}
        status = status_of(reply)
        return {"status": status.http, **orjson.loads(error_body(status))}

    @route("GET", "/v1/jobs", _READ, PageDocument, query=JobsQuery, errors=(*ERRORS, 413))
    async def find(self, exchange: Exchange) -> None:
        """List jobs, newest first, one page at a time.

        A page may have fewer jobs than `limit`, even none, and a `next_after`: the server reads a bounded
        number of jobs for it. Only an empty `next_after` ends the list.
        """
        query = read_query(JobsQuery, exchange.query)
        wanted = filter_of(query)
        key = exchange.client
        page = await self._run(self._service.find, key, wanted, after=query.after, limit=query.limit)
        document = {"jobs": list(map(self._api.document, page.jobs)), "next_after": page.next_after}
        await respond_json(exchange, document)

    @route("GET", _PATH, _READ, JobDocument, query=WaitQuery, errors=(*ERRORS, 404))
    async def get(self, exchange: Exchange) -> None:
        """Return a job. With `wait`, respond when the job has ended or the time has passed."""
        wait_s = read_query(WaitQuery, exchange.query).wait
        job = await self._api.wait_for_job(exchange.client, job_id_of(exchange), wait_s)
        await respond_json(exchange, self._api.document(job))

    @route("GET", f"{_PATH}/history", _READ, HistoryDocument, errors=(*ERRORS, 404))
    async def history(self, exchange: Exchange) -> None:
        """List the failures and the manual changes of a job, oldest first."""
        entries = await self._run(self._service.history, exchange.client, job_id_of(exchange))
        await respond_json(exchange, {"history": list(map(history_document, entries))})

    @route("POST", f"{_PATH}/cancel", CHANGE_SCOPES, JobDocument, errors=(*ERRORS, 404, 409))
    async def cancel(self, exchange: Exchange) -> None:
        """Cancel a job: a pending job at once, a running job as soon as its worker has stopped it.

        Repeating the request has no further effect.
        """
        job = await self._run(self._service.cancel, exchange.client, job_id_of(exchange))
        await respond_json(exchange, self._api.document(job))

    @route("POST", f"{_PATH}/retry", CHANGE_SCOPES, JobDocument, errors=(*ERRORS, 404, 409))
    async def retry(self, exchange: Exchange) -> None:
        """Return a job that ended without a result to its queue.

        It is due now, with a new count of attempts. A job that is `publish_failed` does not run again:
        only its publication is repeated.
        """
        job = await self._run(self._service.retry, exchange.client, job_id_of(exchange))
        await respond_json(exchange, self._api.document(job))

    @route("DELETE", _PATH, _SUBMIT, JobDocument, errors=(*ERRORS, 404, 409))
    async def delete(self, exchange: Exchange) -> None:
        """Delete an ended job and the objects that are stored only for it.

        The response is the job as it was. A key of the job's tenant needs the scope `submit`. Any
        other key needs `admin`.
        """
        job = await self._run(self._service.delete, exchange.client, job_id_of(exchange))
        await respond_json(exchange, self._api.document(job))

    @route(
        "GET",
        f"{_PATH}/events",
        _READ,
        content=_EVENT_CONTENT,
        success="Events `state` and `progress` with the whole job as data; `gone` if the job is deleted.",
        responses={"204": _NO_EVENTS},
        errors=(*ERRORS, 404),
    )
    async def events(self, exchange: Exchange) -> None:
        """Stream the states and the progress of a job. The stream ends when the job has ended."""
        job = await self._run(self._service.get, exchange.client, job_id_of(exchange))
        last_tag = exchange.header(b"last-event-id") or ""
        if job.state.ended and last_tag == change_tag(job):
            await exchange.respond(204)
            return
        async with aclosing(_event_stream(self._api, job, last_tag)) as events:
            await exchange.respond_streaming(CONTENT_TYPE.encode(), events, _EVENT_HEADERS)


class QueueHandlers(ApiHandlers):
    """The handlers of the routes of queues. Their docstrings are the descriptions for clients."""

    @route("GET", "/v1/queues", QUEUE_SCOPES, QueuesDocument, errors=ERRORS)
    async def list_queues(self, exchange: Exchange) -> None:
        """List queues, sorted by name, with their numbers of jobs.

        With the scope `monitor`, these are all queues that ever had a job, and all jobs. Other keys see
        the queues that they name, those with unfinished jobs of their tenant, and these jobs alone.
        """
        statuses = await self._run(self._service.queues, exchange.client)
        queues = [queue_document(status.settings, status.counts) for status in statuses]
        await respond_json(exchange, {"queues": queues})

    @route("GET", _QUEUE, QUEUE_SCOPES, QueueDocument, errors=ERRORS)
    async def get_queue(self, exchange: Exchange) -> None:
        """Return a queue. A queue that never had a job is empty.

        Without the scope `monitor`, the numbers are those of the tenant's jobs.
        """
        status = await self._run(self._service.queue, exchange.client, queue_of(exchange))
        await respond_json(exchange, queue_document(status.settings, status.counts))

    @route(
        "PATCH", _QUEUE, _OPERATE, QueueDocument, request=(QueueChangeDocument,), errors=(*ERRORS, 408, 413)
    )
    async def limit_queue(self, exchange: Exchange) -> None:
        """Limit the waiting jobs of each tenant in a queue. Submissions beyond it get the status 429."""
        change = read_json(QueueChangeDocument, await exchange.body(DOCUMENT_BYTES_MAX))
        await self._change(exchange, pending_max=change.pending_max)

    @route("POST", f"{_QUEUE}/pause", _OPERATE, QueueDocument, errors=ERRORS)
    async def pause_queue(self, exchange: Exchange) -> None:
        """Stop handing out jobs of a queue. Running jobs continue, and submissions are accepted."""
        await self._change(exchange, paused=True)

    @route("POST", f"{_QUEUE}/drain", _OPERATE, QueueDocument, errors=ERRORS)
    async def drain_queue(self, exchange: Exchange) -> None:
        """Refuse submissions to a queue. Its jobs are still processed."""
        await self._change(exchange, draining=True)

    @route("POST", f"{_QUEUE}/resume", _OPERATE, QueueDocument, errors=ERRORS)
    async def resume_queue(self, exchange: Exchange) -> None:
        """Hand out jobs of a queue and accept submissions again."""
        await self._change(exchange, paused=False, draining=False)

    @route("DELETE", _QUEUE, _OPERATE, status=204, errors=(*ERRORS, 409))
    async def delete_queue(self, exchange: Exchange) -> None:
        """Remove a queue with its settings. Its ended jobs stay. An unknown queue is no error.

        A queue with jobs that have not ended is refused with 409. The next job creates the queue again.
        """
        await self._run(self._service.delete_queue, exchange.client, queue_of(exchange))
        await exchange.respond(204)

    @route("GET", f"{_QUEUE}/scale", QUEUE_SCOPES, ScaleDocument, query=ScaleQuery, errors=ERRORS)
    async def scale(self, exchange: Exchange) -> None:
        """Return the number of workers that a queue needs, as the default policy of pools decides.

        Autoscalers need the scope `monitor`: without it, the jobs of the tenant count alone. If the
        number is unknown, the response is an error, never 0.
        """
        slots = read_query(ScaleQuery, exchange.query).slots_per_worker
        if slots is None:
            slots = self._service.settings.slots_per_worker
        queue = queue_of(exchange)
        counts = (await self._run(self._service.queue, exchange.client, queue)).counts
        decision = recommend_workers(counts, slots)
        document = {
            "queue": queue,
            "queued": counts.due,
            "running": counts.running,
            "backlog": counts.backlog,
            "slots_per_worker": slots,
            "desired": decision.wanted,
            "oldest_seconds": counts.oldest_seconds,
            "reason": decision.reason,
        }
        await respond_json(exchange, document)

    async def _change(self, exchange: Exchange, **changes: Any) -> None:
        key, queue = exchange.client, queue_of(exchange)
        status = await self._run(self._service.change_queue, key, queue, changes)
        await respond_json(exchange, queue_document(status.settings, status.counts))


def _read(exchange: Exchange, body: bytes, limits: SubmissionLimits) -> Submission:
    envelope = SubmissionHeaders(
        content_type=exchange.header(b"content-type") or "",
        idempotency_key=exchange.header(b"idempotency-key") or "",
        trace=exchange.traceparent,
    )
    query = read_pairs(exchange.query)
    model_optional = exchange.client.endpoints is not None
    if {"model", "endpoint"} & dict(query).keys():
        return read_raw(body, query, envelope, limits, model_optional=model_optional)
    if query:
        raise DataError(
            f"{query[0][0]}: a submission as JSON takes no query; to send a payload, add model or endpoint "
            "to the query"
        )
    bare = bare_type(envelope.content_type)
    if bare and bare != JSON:
        raise DataError(
            f"content type {ascii(bare)[:80]}: must be {JSON}; to send a payload, add model to the query"
        )
    return read_document(body, envelope, limits, model_optional=model_optional)


def _read_batch(exchange: Exchange, body: bytes, limits: SubmissionLimits) -> SubmissionBatch:
    model_optional = exchange.client.endpoints is not None
    return read_batch(body, limits, trace=exchange.traceparent, model_optional=model_optional)


async def _event_stream(api: Api, job: Job, last_tag: str) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + api.settings.stream_s_max
    while True:
        tag = change_tag(job)
        if tag != last_tag:
            yield _event(api, job, tag, last_tag)
            last_tag = tag
        if job.state.ended or loop.time() >= ends_s:
            return
        try:
            changed = await _next_change(api, job.id, last_tag)
        except JobNotFoundError:
            yield b"event: gone\ndata: {}\n\n"
            return
        except (StoppedError, OverloadedError):
            # The client reconnects, later or to another server.
            return
        if changed is None:
            yield _HEARTBEAT
        else:
            job = changed


async def _next_change(api: Api, job_id: str, last_tag: str) -> Job | None:
    """Return the job after its next change, or None after the heartbeat interval."""
    follower = api.service.follower
    waiter = follower.follow(job_id, lambda job: change_tag(job) != last_tag)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(waiter.job), api.settings.heartbeat_s)
    except TimeoutError:
        return None
    finally:
        follower.leave(waiter)


def _event(api: Api, job: Job, tag: str, last_tag: str) -> bytes:
    name = b"progress" if same_state(tag, last_tag) else b"state"
    data = orjson.dumps(api.document(job))
    return b"".join((b"id: ", tag.encode(), b"\nevent: ", name, b"\ndata: ", data, b"\n\n"))
