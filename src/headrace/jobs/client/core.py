"""The operations of the job API over a transport: what both clients do, without I/O of their own.

The operations are coroutines. `AsyncClient` has them as its methods. `Client` runs them to their
end in the calling thread, over a transport that blocks instead of suspending (`run`, `iterate`).
"""

import logging
import random
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, Unpack
from urllib.parse import quote

import orjson

from headrace.core.clock import Clock, RetryPolicy, SystemClock, retry_after_s
from headrace.core.errors import (
    DeadlineError,
    EndpointNotFoundError,
    EndpointUnavailableError,
    HeadraceError,
    JobNotFoundError,
    QueueClosedError,
    ResourceNotFoundError,
    UncontrolledPoolError,
)
from headrace.jobs.client.messages import (
    INLINE_BYTES_MAX,
    UNSET,
    ApiCall,
    ApiResponse,
    ApiStream,
    ConnectionLostError,
    EventReader,
    Filters,
    SubmitOptions,
    SubmitRequest,
    batch_document,
    bulk_filter,
    encode_batch,
    encode_settings,
    encode_submit_request,
    error_from_response,
    list_query,
    make_submit_request,
    read_batch_results,
    read_document,
    read_job_response,
    split_arguments,
)
from headrace.jobs.history import HistoryEntry, read_history
from headrace.jobs.job import Job, read_job

T = TypeVar("T")

_log = logging.getLogger("headrace.jobs.client")

RETRY_S: Final = 30.0
TIMEOUT_S: Final = 60.0
WAIT_S: Final = 25.0
"""Seconds of one long poll. Proxies cut off connections that are silent for a minute."""
RECONNECT_S: Final = 0.5
PAGE: Final = 200
BATCH_JOBS: Final = 1_000
"""The jobs of one request of a batch of submissions."""
BATCH_BYTES: Final = 8 << 20
BULK_PAGE: Final = 1_000
"""The jobs of one request of an action on many jobs."""
BULK_S: Final = 30.0
"""Seconds that such a request may take beyond the usual timeout."""
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_NOT_BEGUN: Final = frozenset({429, 503})
_NO_CONTENT: Final = 204
_PARTIAL: Final = 206


class ApiTransport(Protocol):
    """A sender of HTTP requests. The methods raise ConnectionLostError."""

    async def send(self, call: ApiCall, *, stream: bool = False) -> ApiResponse:
        """Send a request and return its response.

        With `stream`, the body of a successful response is left to its `stream`; close that after
        use.
        """
        ...

    async def pause(self, seconds: float) -> None:
        """Wait."""
        ...


class ApiOperations:
    """The operations of the job API.

    Args:
        url: The API's address.
        transport: The sender of requests.
        api_key: The key; sent to the API only, never to redirect targets.
        retry_s: Seconds for which transient failures are retried.
        clock: The clock of retries and timeouts.
        draw: Draws the jitter of delays, 0 to 1.
    """

    def __init__(
        self,
        url: str,
        transport: ApiTransport,
        *,
        api_key: str = "",
        retry_s: float = RETRY_S,
        clock: Clock | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._url = url
        self._transport = transport
        self._api_key = api_key
        self._retry_s = retry_s
        self._clock = clock or SystemClock()
        self._draw = draw

    # Jobs

    async def submit(self, model: str = "", input: Any = UNSET, **options: Unpack[SubmitOptions]) -> Job:
        """Submit a job. Return once it is in the ledger. `input` is as in `Client.submit`."""
        order = make_submit_request(model, input, options)
        if order.source is not None and _size(order.source) > INLINE_BYTES_MAX:
            order = await self._with_uploaded(order)
        return read_job_response(await self._request(encode_submit_request(order)))

    async def submit_batch(
        self, jobs: Iterable[Mapping[str, Any]], *, all_or_nothing: bool = False
    ) -> Sequence[Job | HeadraceError]:
        """Submit many jobs. Return the job or the error of each, as `Client.submit_batch` does."""
        found: list[Job | HeadraceError] = []
        documents: list[bytes] = []
        size_bytes, repeatable = 0, True
        for arguments in jobs:
            order = await self._with_uploaded(make_submit_request(*split_arguments(arguments)))
            document = batch_document(order)
            full = len(documents) >= BATCH_JOBS or size_bytes + len(document) > BATCH_BYTES
            if documents and full and not all_or_nothing:
                found += await self._send_batch(documents, all_or_nothing=False, repeatable=repeatable)
                documents, size_bytes, repeatable = [], 0, True
            documents.append(document)
            size_bytes += len(document)
            repeatable &= order.repeatable
        if documents:
            found += await self._send_batch(documents, all_or_nothing=all_or_nothing, repeatable=repeatable)
        return found

    async def _send_batch(
        self, documents: Sequence[bytes], *, all_or_nothing: bool, repeatable: bool
    ) -> Sequence[Job | HeadraceError]:
        call = encode_batch(documents, all_or_nothing=all_or_nothing, repeatable=repeatable)
        return read_batch_results(await self._request(call))

    async def _with_uploaded(self, order: SubmitRequest) -> SubmitRequest:
        """Return a submission whose payload of bytes is uploaded."""
        if order.source is None:
            return order
        return replace(order, source=None, upload=await self.upload(order.source))

    async def get(self, job_id: str) -> Job:
        """Return a job as it is now."""
        return read_job_response(await self._request(ApiCall("GET", _path(job_id))))

    async def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """Return a job once it has ended in any state. Raise DeadlineError after `timeout_s`."""
        began_s = self._clock.now()
        while True:
            left_s = WAIT_S if timeout_s is None else timeout_s - (self._clock.now() - began_s)
            wait_s = max(0.0, min(WAIT_S, left_s))
            params = (("wait", f"{wait_s:g}"),) if wait_s else ()
            job = read_job_response(
                await self._request(ApiCall("GET", _path(job_id), params, extra_s=wait_s))
            )
            if job.state.ended:
                return job
            if timeout_s is not None and self._clock.now() - began_s >= timeout_s:
                raise DeadlineError(f"job {job_id} is {job.state.value} after {timeout_s:g} s")

    async def events(self, job_id: str) -> AsyncGenerator[Job, None]:
        """Yield the job now and after each change of state or progress, until it has ended.

        A broken connection is reopened and continues. Of several changes meanwhile only the last is
        yielded.
        """
        last = ""
        while True:
            headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
            call = ApiCall("GET", f"{_path(job_id)}/events", headers=headers)
            response = await self._request(call, stream=True)
            reader = EventReader()
            async with aclosing(_stream(response)) as body:
                if response.status == _NO_CONTENT:
                    return
                while (chunk := await _next(body)) is not None:
                    for event in reader.feed(chunk):
                        if event.name == "gone":
                            raise JobNotFoundError(job_id)
                        last = event.id or last
                        job = read_job(read_document(ApiResponse(200, {}, event.data, "")))
                        yield job
                        if job.state.ended:
                            return
            await self._transport.pause(RECONNECT_S * (0.5 + self._draw()))

    async def list(self, **wanted: Unpack[Filters]) -> AsyncGenerator[Job, None]:
        """Yield matching jobs, newest first; pages are fetched as needed."""
        call = ApiCall("GET", "/v1/jobs", tuple(list_query(wanted)))
        async with aclosing(self._entries(call, "jobs")) as documents:
            async for document in documents:
                yield read_job(document)

    async def history(self, job_id: str) -> Sequence[HistoryEntry]:
        """Return a job's failures, retries and manual changes, oldest first."""
        response = await self._request(ApiCall("GET", f"{_path(job_id)}/history"))
        return [read_history(entry) for entry in read_document(response)["history"]]

    async def check_published(self, job_id: str) -> dict[str, Any]:
        """Compare a job's published object with its result. Raises as `Client.check_published` does."""
        return read_document(await self._request(ApiCall("GET", f"{_path(job_id)}/published")))

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job: a pending one at once, a running one soon. A second call does nothing."""
        return read_job_response(await self._request(ApiCall("POST", f"{_path(job_id)}/cancel")))

    async def retry(self, job_id: str) -> Job:
        """Requeue a job that ended without a result, or publish again a result that is not published.

        Not repeated if the first request may have arrived: the second would be refused.
        """
        return read_job_response(
            await self._request(ApiCall("POST", f"{_path(job_id)}/retry", repeatable=False))
        )

    async def delete(self, job_id: str) -> None:
        """Delete an ended job and the objects stored for it alone.

        If a response was lost and the job does not exist then, the lost request deleted it.
        """
        tries: list[str] = []
        try:
            await self._request(ApiCall("DELETE", _path(job_id)), tries=tries)
        except JobNotFoundError:
            if not tries:
                raise

    async def bulk(
        self,
        action: str,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        all_jobs: bool = False,
        **wanted: Unpack[Filters],
    ) -> dict[str, Any]:
        """Apply an action to all jobs that match. Return the totals, as `Client.bulk` does."""
        total: dict[str, Any] = {"action": action, "dry_run": dry_run, "matched": 0, "changed": 0}
        skipped: Counter[str] = Counter()
        document = {"action": action, "filter": bulk_filter(wanted), "all": all_jobs, "dry_run": dry_run}
        after = ""
        while True:
            left = BULK_PAGE if limit is None else limit - total["matched"]
            content = encode_settings({**document, "limit": min(left, BULK_PAGE), "after": after})
            headers = {"content-type": "application/json"}
            call = ApiCall(
                "POST", "/v1/jobs/bulk", headers=headers, content=content, repeatable=dry_run, extra_s=BULK_S
            )
            reply = read_document(await self._request(call))
            total["matched"] += reply["matched"]
            total["changed"] += reply["changed"]
            skipped.update(reply["skipped"])
            after = reply["next_after"]
            if not after or (limit is not None and total["matched"] >= limit):
                return {**total, "skipped": dict(skipped), "next_after": after}

    def audit(self, *, done_by: str = "", action: str = "") -> AsyncGenerator[dict[str, Any], None]:
        """Return the entries of the audit log, newest first; pages are fetched as needed."""
        params = (("done_by", done_by), ("action", action))
        return self._entries(ApiCall("GET", "/v1/audit", params), "entries")

    # Payloads

    async def upload(self, source: bytes | Path) -> str:
        """Send a large payload to the store. Return the id for a submission's ``upload``."""
        document = read_document(await self._request(ApiCall("POST", "/v1/uploads")))
        headers = {"content-length": str(_size(source))}
        await self._request(ApiCall("PUT", document["url"], headers=headers, content=source))
        return document["id"]

    async def result(self, job_id: str) -> bytes:
        """Return a completed job's result. Raises as `Client.result` does."""
        return b"".join([piece async for piece in self.stream_result(job_id)])

    def stream_result(self, job_id: str) -> AsyncGenerator[bytes, None]:
        """Yield a completed job's result as chunks; a broken connection is resumed."""
        return self._stream_object(f"{_path(job_id)}/result")

    def stream_input(self, job_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the payload of a job as chunks. Raises as `Client.stream_input` does."""
        return self._stream_object(f"{_path(job_id)}/input")

    async def _stream_object(self, url: str) -> AsyncGenerator[bytes, None]:
        call = ApiCall("GET", url)
        response = await self._request(call, stream=True)
        etag, at = response.headers.get("etag", ""), 0
        size = response.headers.get("content-length", "")
        while True:
            async with aclosing(_stream(response)) as body:
                try:
                    while (chunk := await body.read()) is not None:
                        at += len(chunk)
                        yield chunk
                except ConnectionLostError as lost:
                    if not etag:
                        why = f"it broke off after {at} bytes: {lost}"
                        raise self._unavailable(call, why) from lost
                else:
                    return
            if size == str(at):
                return
            await self._transport.pause(RECONNECT_S * (0.5 + self._draw()))
            rest = replace(call, headers={"range": f"bytes={at}-", "if-range": etag})
            response = await self._request(rest, stream=True)
            if at and response.status != _PARTIAL:
                await _stream(response).aclose()
                raise self._unavailable(call, f"it broke off after {at} bytes and has changed since")

    # Queues

    async def queues(self) -> Sequence[dict[str, Any]]:
        """Return the queues that the key may see, with their counts."""
        return read_document(await self._request(ApiCall("GET", "/v1/queues")))["queues"]

    async def queue(self, name: str) -> dict[str, Any]:
        """Return one queue."""
        return read_document(await self._request(_queue_call("GET", name)))

    async def pause_queue(self, name: str) -> dict[str, Any]:
        """Stop giving out the queue's jobs."""
        return read_document(await self._request(_queue_call("POST", name, "/pause")))

    async def resume_queue(self, name: str) -> dict[str, Any]:
        """Give out the queue's jobs and accept submissions again."""
        return read_document(await self._request(_queue_call("POST", name, "/resume")))

    async def drain_queue(self, name: str) -> dict[str, Any]:
        """Refuse further submissions to the queue."""
        return read_document(await self._request(_queue_call("POST", name, "/drain")))

    async def bound_queue(self, name: str, pending_max: int | None) -> dict[str, Any]:
        """Limit the queue's pending jobs; None for no limit."""
        change = replace(
            _queue_call("PATCH", name),
            headers={"content-type": "application/json"},
            content=orjson.dumps({"pending_max": pending_max}),
        )
        return read_document(await self._request(change))

    async def delete_queue(self, name: str) -> None:
        """Remove a queue and its settings. Raises as `Client.delete_queue` does."""
        await self._request(_queue_call("DELETE", name))

    async def scale(self, name: str) -> dict[str, Any]:
        """Return the number of workers that a queue needs. Raises as `Client.scale` does."""
        return read_document(await self._request(_queue_call("GET", name, "/scale")))

    # Workers

    async def workers(self) -> Sequence[dict[str, Any]]:
        """Return the workers, by name. Raises as `Client.workers` does."""
        return read_document(await self._request(ApiCall("GET", "/v1/workers")))["workers"]

    async def worker(self, name: str) -> dict[str, Any]:
        """Return a worker with its running jobs. Raise ResourceNotFoundError."""
        return read_document(await self._request(_worker_call("GET", name)))

    async def drain_worker(self, name: str) -> dict[str, Any]:
        """Let a worker claim no more jobs; its running jobs continue. Raise ResourceNotFoundError."""
        return read_document(await self._request(_worker_call("POST", name, "/drain")))

    async def undrain_worker(self, name: str) -> dict[str, Any]:
        """Let a worker claim jobs again. Raise ResourceNotFoundError."""
        return read_document(await self._request(_worker_call("POST", name, "/undrain")))

    # Pools of workers

    async def pools(self) -> Sequence[dict[str, Any]]:
        """Return the pools of workers, by name. Raises as `Client.pools` does."""
        return read_document(await self._request(ApiCall("GET", "/v1/pools")))["pools"]

    async def pool_scale(self, pool: str) -> dict[str, Any]:
        """Return the number of workers that a pool is to have. Raises as `Client.pool_scale` does."""
        return read_document(await self._request(_named_call("GET", "pools", pool, "/scale")))

    def decisions(self, pool: str) -> AsyncGenerator[dict[str, Any], None]:
        """Return the decisions about a pool, newest first; pages are fetched as needed."""
        return self._entries(_named_call("GET", "pools", pool, "/decisions"), "decisions")

    # Endpoints

    async def endpoints(self) -> Sequence[dict[str, Any]]:
        """Return the endpoints that the key may use, with their settings."""
        return read_document(await self._request(ApiCall("GET", "/v1/endpoints")))["endpoints"]

    async def endpoint(self, name: str, version: int | None = None) -> dict[str, Any]:
        """Return an endpoint, or one of its versions. Raise EndpointNotFoundError."""
        params = () if version is None else (("version", str(version)),)
        return read_document(await self._request(replace(_endpoint_call("GET", name), params=params)))

    async def endpoint_versions(self, name: str) -> Sequence[dict[str, Any]]:
        """Return the versions of an endpoint, newest first. Raise EndpointNotFoundError."""
        return read_document(await self._request(_endpoint_call("GET", name, "/versions")))["endpoints"]

    async def set_endpoint(self, name: str, **settings: Any) -> dict[str, Any]:
        """Create an endpoint, or replace all its settings. Return it.

        The settings are those of docs/jobs.md.
        """
        call = replace(
            _endpoint_call("PUT", name),
            headers={"content-type": "application/json"},
            content=encode_settings(settings),
        )
        return read_document(await self._request(call))

    async def delete_endpoint(self, name: str) -> None:
        """Delete an endpoint; its jobs stay.

        If a response was lost and the endpoint does not exist then, the lost request deleted it.
        """
        tries: list[str] = []
        try:
            await self._request(_endpoint_call("DELETE", name), tries=tries)
        except EndpointNotFoundError:
            if not tries:
                raise

    # Schedules

    async def schedules(self, *, tenant: str | None = None) -> Sequence[dict[str, Any]]:
        """Return the schedules that the key may see, without their jobs."""
        call = ApiCall("GET", "/v1/schedules", _tenant_params(tenant))
        return read_document(await self._request(call))["schedules"]

    async def schedule(self, name: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Return a schedule with its next times. Raise ResourceNotFoundError."""
        return read_document(await self._request(_schedule_call("GET", name, tenant=tenant)))

    async def set_schedule(self, name: str, **settings: Any) -> dict[str, Any]:
        """Create a schedule, or replace all its settings. Return it. Raises as `Client.set_schedule`."""
        call = replace(
            _schedule_call("PUT", name),
            headers={"content-type": "application/json"},
            content=encode_settings(settings),
        )
        return read_document(await self._request(call))

    async def delete_schedule(self, name: str, *, tenant: str | None = None) -> None:
        """Delete a schedule; its jobs stay.

        If a response was lost and the schedule does not exist then, the lost request deleted it.
        """
        tries: list[str] = []
        try:
            await self._request(_schedule_call("DELETE", name, tenant=tenant), tries=tries)
        except ResourceNotFoundError:
            if not tries:
                raise

    async def pause_schedule(self, name: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Submit no jobs of a schedule until it is resumed. Return it. Raise ResourceNotFoundError."""
        return read_document(await self._request(_schedule_call("POST", name, "/pause", tenant=tenant)))

    async def resume_schedule(self, name: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Submit jobs of a schedule again. Return it. Raise ResourceNotFoundError."""
        return read_document(await self._request(_schedule_call("POST", name, "/resume", tenant=tenant)))

    async def run_schedule(self, name: str) -> Job:
        """Submit the job of a schedule now, and return it. Raises as `submit` does."""
        headers = {"idempotency-key": secrets.token_hex(16)}
        return read_job_response(
            await self._request(replace(_schedule_call("POST", name, "/run"), headers=headers))
        )

    # Failures and notifications

    async def failures(self, *, limit: int = 100) -> Sequence[dict[str, Any]]:
        """Return the failed jobs in groups of equal failures, the largest group first."""
        return await self._list("failures", limit)

    async def deliveries(self, job_id: str) -> Sequence[dict[str, Any]]:
        """Return the deliveries of a job's notifications, oldest first."""
        response = await self._request(ApiCall("GET", f"{_path(job_id)}/deliveries"))
        return read_document(response)["deliveries"]

    async def dead_deliveries(self, *, limit: int = 100) -> Sequence[dict[str, Any]]:
        """Return the deliveries of all jobs that were given up, the latest first."""
        return await self._list("deliveries", limit)

    async def redeliver(self, delivery_id: str) -> dict[str, Any]:
        """Deliver a notification again, at once. Return the delivery. Raise ResourceNotFoundError."""
        return read_document(
            await self._request(_named_call("POST", "deliveries", delivery_id, "/redeliver"))
        )

    async def failing_receivers(self, *, limit: int = 100) -> Sequence[dict[str, Any]]:
        """Return the receivers that are disabled, or whose last delivery failed."""
        return await self._list("receivers", limit)

    async def enable_receiver(self, name: str) -> dict[str, Any]:
        """Resume the deliveries to a receiver. Return it. Raise ResourceNotFoundError."""
        return read_document(await self._request(_named_call("POST", "receivers", name, "/enable")))

    async def _list(self, kind: str, limit: int) -> Sequence[dict[str, Any]]:
        call = ApiCall("GET", f"/v1/{kind}", params=(("limit", str(limit)),))
        return read_document(await self._request(call))[kind]

    # Shared by all operations

    async def _entries(self, call: ApiCall, name: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the entries of a list, the member `name` of its pages; pages are fetched as needed."""
        after = ""
        while True:
            params = (*call.params, ("limit", str(PAGE)), ("after", after))
            document = read_document(await self._request(replace(call, params=params)))
            for entry in document[name]:
                yield entry
            after = document["next_after"]
            if not after:
                return

    async def _request(
        self, call: ApiCall, *, stream: bool = False, tries: "list[str] | None" = None
    ) -> ApiResponse:
        """Return the first successful response; retry transient failures within `retry_s`.

        `tries` collects the errors of lost attempts.
        """
        policy, attempt, trouble_s = RetryPolicy(retry_s=self._retry_s), 0, 0.0
        call = self._keyed(call)
        while True:
            after_s: float | None = None
            try:
                response = await self._transport.send(call, stream=stream)
            except ConnectionLostError as lost:
                error: HeadraceError = self._unavailable(call, str(lost))
                retry = call.repeatable or not lost.sent
            else:
                if response.status < 400:
                    return response
                error = error_from_response(response)
                retry = response.status in (_PASSING if call.repeatable else _NOT_BEGUN)
                # A closed queue stays closed until it is opened manually, and a pool may stay without a
                # controller.
                retry = retry and not isinstance(error, QueueClosedError | UncontrolledPoolError)
                after_s = retry_after_s(response.headers.get("retry-after"), 0.0)
            if not retry:
                raise error
            if tries is not None:
                tries.append(str(error))
            attempt += 1
            now_s = self._clock.now()
            trouble_s = trouble_s or now_s
            left_s = self._retry_s - (now_s - trouble_s)
            delay_s = policy.delay_s(attempt, left_s, self._draw(), retry_after_s=after_s)
            if delay_s is None:
                raise error
            if attempt == 1 and isinstance(error, EndpointUnavailableError):
                _log.warning("%s; retrying for up to %g s", error, self._retry_s)
            await self._transport.pause(delay_s)

    def _keyed(self, call: ApiCall) -> ApiCall:
        if not self._api_key or "://" in call.url:
            return call
        return replace(call, headers={**call.headers, "authorization": f"Bearer {self._api_key}"})

    def _unavailable(self, call: ApiCall, why: str) -> EndpointUnavailableError:
        where = call.url.partition("?")[0] if "://" in call.url else f"{self._url}{call.url}"
        return EndpointUnavailableError(where, why)


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Run an operation to its end in this thread. Its transport must not suspend."""
    try:
        operation.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a transport that blocks does not suspend")


def iterate(values: AsyncGenerator[T, None]) -> Generator[T]:
    """Yield the values of an operation in this thread. Its transport must not suspend."""
    try:
        while found := run(_step(values)):
            yield found[0]
    finally:
        run(values.aclose())


async def _step(values: AsyncGenerator[T, None]) -> tuple[T, ...]:
    """Return the next value in a tuple; an empty one at the end."""
    async for value in values:
        return (value,)
    return ()


def _stream(response: ApiResponse) -> ApiStream:
    assert response.stream is not None, "requested as a stream"
    return response.stream


async def _next(body: ApiStream) -> bytes | None:
    """Return the next chunk of a stream that is reopened after interruptions; None if it broke."""
    try:
        return await body.read()
    except ConnectionLostError:
        return None


def _path(job_id: str) -> str:
    # An id may be typed by a person: whatever it is, it must stay one path segment.
    safe = "".join(c if c.isalnum() and c.isascii() else "-" if c == "-" else "_" for c in job_id)
    return f"/v1/jobs/{safe or '_'}"


def _queue_call(method: str, name: str, what: str = "") -> ApiCall:
    return _named_call(method, "queues", name, what)


def _worker_call(method: str, name: str, what: str = "") -> ApiCall:
    return _named_call(method, "workers", name, what)


def _endpoint_call(method: str, name: str, what: str = "") -> ApiCall:
    return _named_call(method, "endpoints", name, what)


def _schedule_call(method: str, name: str, what: str = "", *, tenant: str | None = None) -> ApiCall:
    return replace(_named_call(method, "schedules", name, what), params=_tenant_params(tenant))


def _tenant_params(tenant: str | None) -> tuple[tuple[str, str], ...]:
    return () if tenant is None else (("tenant", tenant),)


def _named_call(method: str, kind: str, name: str, what: str = "") -> ApiCall:
    return ApiCall(method, f"/v1/{kind}/{quote(name, safe='')}{what}")


def _size(source: bytes | Path) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size
