"""The state and helpers that all routes of the job API share: service, thread pool, responses."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final, ParamSpec, TypeVar

import orjson

from headrace.core.errors import DataError, JobNotFoundError, OverloadedError, StoppedError
from headrace.jobs.access import ApiKey
from headrace.jobs.job import Document, Job, job_document
from headrace.jobs.ledger import SubmitReply
from headrace.jobs.service import JobService
from headrace.jobs.submission import Submission
from headrace.server.http import JSON, Exchange, Headers
from headrace.server.routes import QUEUE_NAME

DOCUMENT_BYTES_MAX: Final = 1 << 20
"""The maximum size of a submission in addition to its payload."""
BATCH_BYTES_MAX: Final = 16 << 20
"""The maximum size of a batch of submissions, with its payloads."""
THREADS: Final = 16
CALLS_MAX: Final = 2_000
CHECKS_MAX: Final = 4
"""The number of concurrent comparisons of published objects, each of which occupies a thread."""
BULK_REQUESTS_MAX: Final = 4
"""The number of concurrent actions on many jobs, each of which occupies a thread."""
BATCHES_MAX: Final = 4
"""The number of concurrent batches of submissions, each of which occupies a thread."""
RETRY_AFTER_S: Final = 1.0
_JOB_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_QUEUE: Final = re.compile(QUEUE_NAME)
_has_ended: Final = attrgetter("state.ended")
ERRORS: Final = (400, 429, 503)
"""The statuses that every route may have."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The settings of the HTTP API of jobs."""

    body_s_max: float = 300.0
    """The maximum seconds for a submission to arrive."""
    upload_idle_s: float = 60.0
    """The maximum seconds between two parts of an upload."""
    upload_s_max: float = 6 * 3600.0
    uploads_max: int = 64
    """The maximum number of concurrent uploads through the API."""
    heartbeat_s: float = 15.0
    """The interval in seconds of the heartbeats of an event stream without events."""
    stream_s_max: float = 3600.0
    """The maximum seconds of an event stream. Its client reconnects and continues."""


class BoundedThreadPool:
    """Runs blocking calls for one event loop. The first call starts threads; `close` ends them."""

    def __init__(self, threads: int = THREADS, calls_max: int = CALLS_MAX) -> None:
        self._pool = ThreadPoolExecutor(threads, "headrace-jobs-api")
        self._calls_max = calls_max
        self.calls = 0
        """The number of running and waiting calls."""

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call, or raise its error.

        If the waiting task is cancelled, the call still runs to its end.

        Raises:
            OverloadedError: Too many calls wait.
            StoppedError: The pool is closed.
        """
        if self.calls >= self._calls_max:
            raise OverloadedError(
                f"{self._calls_max} requests are running already", retry_after_s=RETRY_AFTER_S
            )
        try:
            future: Future[T] = self._pool.submit(partial(call, *args, **kwargs))
        except RuntimeError:
            raise StoppedError("the server is stopping") from None
        self.calls += 1
        result = asyncio.wrap_future(future)
        result.add_done_callback(self._on_done)
        # The shield keeps a cancelled task from dropping a call that has not begun.
        return await asyncio.shield(result)

    def close(self) -> None:
        """Accept no more calls, and wait for the running ones. A second call does nothing."""
        self._pool.shutdown(wait=True)

    def _on_done(self, _: object) -> None:
        self.calls -= 1


class TenantSlots:
    """A limit of concurrent requests, of which one tenant holds at most three quarters.

    A tenant whose requests last long therefore leaves a quarter to the others. For one event loop.
    """

    def __init__(self, slots: int) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._share: Final = max(1, slots - slots // 4)
        self._of_tenants: dict[str, asyncio.Semaphore] = {}

    def is_full(self, tenant: str) -> bool:
        """Return True if a request of this tenant would wait."""
        return self._slots.locked() or self._of(tenant).locked()

    @asynccontextmanager
    async def hold(self, tenant: str) -> AsyncGenerator[None, None]:
        """Wait for a slot, and hold it for the block."""
        async with self._of(tenant), self._slots:
            yield

    def _of(self, tenant: str) -> asyncio.Semaphore:
        return self._of_tenants.setdefault(tenant, asyncio.Semaphore(self._share))


class Api:
    """The job service behind HTTP. Each application has one."""

    def __init__(
        self,
        service: JobService,
        settings: ApiSettings | None = None,
        thread_pool: BoundedThreadPool | None = None,
    ) -> None:
        self.service = service
        self.settings = settings or ApiSettings()
        self.thread_pool = thread_pool or BoundedThreadPool()
        self.uploads = TenantSlots(self.settings.uploads_max)
        self.checks = TenantSlots(CHECKS_MAX)
        self.batches = TenantSlots(BATCHES_MAX)
        self.bulk_requests = TenantSlots(BULK_REQUESTS_MAX)

    def document(self, job: Job) -> Document:
        """Return a job as JSON, without addresses in the server's own store."""
        return job_document(job, hide=self.service.settings.store_uri.rstrip("/") + "/")

    async def submit(
        self, key: ApiKey, submission: Submission, *, trusted_output: bool = False
    ) -> SubmitReply:
        """Return the job in the ledger.

        Storing the payload occupies a thread for a while. Waiting for the commit occupies none.
        """
        submitting = self.thread_pool.run(self.service.submit, key, submission, trusted_output=trusted_output)
        return await self.committed(submitting)

    async def committed(self, submitting: "Awaitable[Future[SubmitReply]]") -> SubmitReply:
        """Return the reply of the ledger to a submission on its way there."""
        # The shield is needed because a disconnect of the client cannot undo the submission.
        return await asyncio.shield(asyncio.wrap_future(await submitting))

    async def respond_submitted(self, exchange: Exchange, reply: SubmitReply) -> None:
        """Send the job of a submission, with its URL. The status is 200 for the job of an earlier one."""
        location = [(b"location", f"/v1/jobs/{reply.job.id}".encode())]
        await respond_json(exchange, self.document(reply.job), submission_status(reply), location)

    async def wait_for_job(self, key: ApiKey, job_id: str, wait_s: float) -> Job:
        """Return the job once it has ended, or its state after `wait_s` seconds. No thread waits."""
        if wait_s <= 0:
            return await self.thread_pool.run(self.service.get, key, job_id)
        waiter = await self.thread_pool.run(self.service.follow, key, job_id, _has_ended)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(waiter.job), wait_s)
        except TimeoutError:
            return await self.thread_pool.run(self.service.get, key, job_id)
        finally:
            self.service.follower.leave(waiter)


class ApiHandlers:
    """A group of route handlers that share the service and the thread pool of an API."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._service = api.service
        self._run = api.thread_pool.run


def submission_status(reply: SubmitReply) -> int:
    """Return the status of a submission that the ledger has."""
    return 202 if reply.created else 200


def job_id_of(exchange: Exchange) -> str:
    """Return the job id of the path.

    Raises:
        JobNotFoundError: No job can have this id. The database is not asked.
    """
    text = exchange.arguments["job_id"]
    if not _JOB_ID.fullmatch(text):
        raise JobNotFoundError(ascii(text[:80])[1:-1])
    return text.lower()


def queue_of(exchange: Exchange) -> str:
    """Return the queue of the path.

    Raises:
        DataError: No queue can have this name.
    """
    name = exchange.arguments["queue"]
    if not _QUEUE.fullmatch(name):
        raise DataError(f"queue: must match {QUEUE_NAME}, not {ascii(name)[:80]}")
    return name


async def respond_json(
    exchange: Exchange,
    document: Mapping[str, Any],
    status: int = 200,
    headers: Headers = (),
) -> None:
    """Send a JSON document."""
    await exchange.respond(status, orjson.dumps(document), JSON, headers)
