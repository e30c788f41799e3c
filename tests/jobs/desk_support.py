"""A real API for tests: the desk over a ledger, behind uvicorn on a socket of this machine, in a thread of its own."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from headrace.core.api_key import digest_of, new_key
from headrace.jobs.access import ANYONE, JobAccess, JobKey, Scope
from headrace.jobs.desk import DeskSettings, JobDesk
from headrace.jobs.intake_fields import IntakeLimits
from headrace.jobs.job import Completed, Failed, Job, JobFailure, ResultRef, Settlement
from headrace.jobs.ledger import Beat, ClaimRequest, JobLedger
from headrace.jobs.places import Allowed
from headrace.jobs.trigger import Triggers
from headrace.jobs.triggering import Triggering
from headrace.server.jobs.api import ApiSettings
from headrace.server.jobs.app import jobs_app
from headrace.server.jobs.vendor import VendorSettings
from headrace.server.jobs.workroom import Workroom
from headrace.server.listen import HttpListener, new_event_loop
from headrace.storage import Stores
from headrace.testing import ManualWallClock, MemoryJobLedger

WAIT_S = 20.0
STORE = "memory://store"
PLACES = Allowed(prefixes=("s3://in", "s3://out"))
ANY_PLACE = replace(ANYONE, inputs=PLACES, outputs=PLACES)
LEASE_MS = 60_000


def key_of(name: str, *scopes: Scope, **given: Any) -> tuple[str, bytes, JobKey]:
    """A key for tests: its text, digest, and what is known of it."""
    text = new_key()
    known = JobKey(name, given.pop("tenant", name), frozenset(scopes or (Scope.SUBMIT, Scope.READ)), **given)
    return text, digest_of(text), known


@dataclass
class Served:
    """A served API, and all that is behind it."""

    url: str
    ledger: JobLedger
    stores: Stores
    desk: JobDesk
    app: Any

    def client(self, key: str = "", **given: Any) -> httpx.Client:
        """A plain HTTP client. It reads no certificates, which would cost it more than most tests' questions."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=WAIT_S, trust_env=False, verify=False, **given
        )

    # What a worker does

    def claim(self, *queues: str) -> Job:
        """Begin the next job."""
        turn = self.ledger.turn((), ClaimRequest("worker-1", queues or ("default",), 1, LEASE_MS))
        (job,) = turn.claimed
        return job

    def tell(self, job: Job, progress: Any) -> None:
        """Tell of progress."""
        self.ledger.beat("worker-1", [Beat(job.id, job.lease, progress)], LEASE_MS)

    def complete(self, job: Job, data: bytes = b"42", content_type: str = "application/json") -> str:
        """Write a result and settle; where it is."""
        uri = f"{STORE}/attempts/{job.id}/{job.lease}/result.out"
        self.stores.for_uri(uri).put(uri, data)
        result = ResultRef(uri, len(data), content_type)
        assert self.ledger.turn([Settlement(job.id, job.lease, Completed(result))]).accepted == (True,)
        return uri

    def fail(self, job: Job, failure: JobFailure) -> None:
        """End it for good."""
        assert self.ledger.turn([Settlement(job.id, job.lease, Failed(failure))]).accepted == (True,)


@contextmanager
def served_jobs(
    *,
    ledger: JobLedger | None = None,
    keys: Any = (),
    anyone: JobKey = ANY_PLACE,
    settings: ApiSettings | None = None,
    limits: IntakeLimits | None = None,
    stores: Stores | None = None,
    store_uri: str = STORE,
    vendor: VendorSettings | None = None,
    triggers: Triggers | None = None,
    **desk_settings: Any,
) -> Iterator[Served]:
    """The API over a ledger (in memory unless one is given), until the end of the block."""
    used = ledger or MemoryJobLedger(ManualWallClock())
    used.start()
    used_stores = stores or Stores()
    desk = JobDesk(
        used, used_stores, DeskSettings(store_uri, intake=limits or IntakeLimits(), **desk_settings)
    )
    desk.start()
    access = JobAccess({digest: known for _, digest, known in keys}, anyone=anyone)
    workroom = Workroom(8)
    began, ended = threading.Event(), threading.Event()
    told: dict[str, Any] = {}

    async def serve() -> None:
        triggering = Triggering(triggers, desk.submit_ours) if triggers else None
        app = jobs_app(
            desk,
            access,
            version="0",
            settings=settings,
            workroom=workroom,
            vendor=vendor,
            triggering=triggering,
        )
        listener = HttpListener(app, "127.0.0.1", 0)
        await listener.start()
        stop = asyncio.Event()
        told.update(app=app, url=listener.address, stop=stop, loop=asyncio.get_running_loop())
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
        assert "url" in told, "the API did not start"
        yield Served(told["url"], used, used_stores, desk, told["app"])
    finally:
        desk.stop()
        if "loop" in told:
            told["loop"].call_soon_threadsafe(told["stop"].set)
        thread.join(WAIT_S)
        workroom.close()
        used.stop()
