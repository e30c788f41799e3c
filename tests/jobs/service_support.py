"""The jobs API for tests: a service over a ledger, served on a local socket by a thread."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from headrace.jobs.access import ANONYMOUS_KEY, Access, ApiKey, Scope, hash_key, new_key
from headrace.jobs.intake import PrepareEndpoint, PrepareNotify
from headrace.jobs.job import Completed, Failed, Job, JobFailure, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest, Heartbeat, JobLedger
from headrace.jobs.notify.delivery import Outbox
from headrace.jobs.paths import UriAllowList
from headrace.jobs.service import JobService, JobServiceSettings
from headrace.jobs.submission import SubmissionLimits
from headrace.jobs.tracing import JobTracer
from headrace.jobs.trigger import EventSubmitter, Triggers
from headrace.server.jobs.api import ApiSettings, BoundedThreadPool
from headrace.server.jobs.app import jobs_app
from headrace.server.jobs.sagemaker import SageMakerSettings
from headrace.server.listen import HttpListener, new_event_loop
from headrace.server.observation import Observer
from headrace.storage import Stores
from headrace.testing import ManualWallClock, MemoryJobLedger

WAIT_S = 20.0
STORE = "memory://store"
ALLOWED_URIS = UriAllowList(prefixes=("s3://in", "s3://out"))
TEST_KEY = replace(ANONYMOUS_KEY, inputs=ALLOWED_URIS, outputs=ALLOWED_URIS)
LEASE_MS = 60_000


def key_of(name: str, *scopes: Scope, **limits: Any) -> tuple[str, bytes, ApiKey]:
    """Return the text, digest and rights of a new API key."""
    text = new_key()
    tenant = limits.pop("tenant", name)
    job_key = ApiKey(name, tenant, frozenset(scopes or (Scope.SUBMIT, Scope.READ)), **limits)
    return text, hash_key(text), job_key


@dataclass
class Served:
    """A running API with its service, ledger and stores."""

    url: str
    ledger: JobLedger
    stores: Stores
    service: JobService
    app: Any

    def client(self, key: str = "", **options: Any) -> httpx.Client:
        """Return an HTTP client.

        The client loads no certificates, because loading takes longer than most tests.
        """
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=WAIT_S, trust_env=False, verify=False, **options
        )

    def payload(self, job_id: str) -> bytes:
        """Return the stored payload of a job."""
        uri = self.ledger.get(job_id).spec.input_uri
        return self.stores.for_uri(uri).get(uri)

    # Steps of a worker

    def claim(self, *queues: str) -> Job:
        """Claim and return the next job."""
        reply = self.ledger.settle_and_claim(
            (), ClaimRequest("worker-1", queues or ("default",), 1, LEASE_MS)
        )
        (job,) = reply.claimed
        return job

    def report_progress(self, job: Job, progress: Any) -> None:
        """Record progress by a heartbeat."""
        self.ledger.heartbeat("worker-1", [Heartbeat(job.id, job.lease, progress)], LEASE_MS)

    def complete(self, job: Job, data: bytes = b"42", content_type: str = "application/json") -> str:
        """Store a result and complete the job. Return the result's URI."""
        uri = f"{STORE}/attempts/{job.id}/{job.lease}/result.out"
        self.stores.for_uri(uri).put(uri, data)
        result = ResultRef(uri, len(data), content_type)
        assert self.ledger.settle_and_claim([Settlement(job.id, job.lease, Completed(result))]).accepted == (
            True,
        )
        return uri

    def fail(self, job: Job, failure: JobFailure) -> None:
        """Fail the job permanently."""
        assert self.ledger.settle_and_claim([Settlement(job.id, job.lease, Failed(failure))]).accepted == (
            True,
        )


@contextmanager
def served_jobs(
    *,
    ledger: JobLedger | None = None,
    keys: Any = (),
    anonymous: ApiKey = TEST_KEY,
    settings: ApiSettings | None = None,
    limits: SubmissionLimits | None = None,
    stores: Stores | None = None,
    store_uri: str = STORE,
    sagemaker: SageMakerSettings | None = None,
    triggers: Triggers | None = None,
    prepare_notify: PrepareNotify | None = None,
    prepare_endpoint: PrepareEndpoint | None = None,
    outbox: Outbox | None = None,
    tracer: JobTracer | None = None,
    observers: Sequence[Observer] | None = None,
    **service_settings: Any,
) -> Iterator[Served]:
    """Serve the API over `ledger` (in memory if None) until the end of the block."""
    used = ledger or MemoryJobLedger(ManualWallClock())
    used.start()
    used_stores = stores or Stores()
    access = Access({digest: job_key for _, digest, job_key in keys}, anonymous=anonymous)
    service = JobService(
        used,
        used_stores,
        JobServiceSettings(store_uri, submission_limits=limits or SubmissionLimits(), **service_settings),
        prepare_notify=prepare_notify,
        prepare_endpoint=prepare_endpoint,
        outbox=outbox,
        tracer=tracer,
        access=access,
    )
    service.start()
    thread_pool = BoundedThreadPool(8)
    began, ended = threading.Event(), threading.Event()
    running: dict[str, Any] = {}

    async def serve() -> None:
        event_submitter = EventSubmitter(triggers, service.submit_internal) if triggers else None
        app = jobs_app(
            service,
            access,
            version="0",
            settings=settings,
            thread_pool=thread_pool,
            sagemaker=sagemaker,
            event_submitter=event_submitter,
            observers=observers,
        )
        listener = HttpListener(app, "127.0.0.1", 0)
        await listener.start()
        stop = asyncio.Event()
        running.update(app=app, url=listener.address, stop=stop, loop=asyncio.get_running_loop())
        began.set()
        await stop.wait()
        await listener.stop(0.5)

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(serve())
        finally:
            began.set()
            ended.set()

    thread = threading.Thread(target=run, name="served-jobs")
    thread.start()
    try:
        assert began.wait(WAIT_S)
        assert "url" in running, "the API did not start"
        yield Served(running["url"], used, used_stores, service, running["app"])
    finally:
        service.stop()
        if "loop" in running:
            running["loop"].call_soon_threadsafe(running["stop"].set)
        thread.join(WAIT_S)
        thread_pool.close()
        used.stop()
