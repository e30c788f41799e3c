"""A ledger and headrace's own store, on a disk or in memory."""

import os

from headrace.jobs.job import Completed, Failed, JobFailure, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.paths import JobPaths
from headrace.jobs.state import Cause
from headrace.testing import ManualWallClock, MemoryJobLedger

DAY_S = 86_400.0


class Bench:
    """A ledger, its store, and its paths.

    The ledger's clock starts at the time of the store.
    """

    def __init__(self, stores, base: str, now_ms: int) -> None:
        self.stores, self.base = stores, base
        self.paths = JobPaths(f"{base}store/")
        self.wall = ManualWallClock(now_ms)
        self.ledger = MemoryJobLedger(self.wall)
        self.ledger.start()

    def put(self, uri: str, data: bytes = b"x") -> str:
        self.stores.for_uri(uri).put(uri, data)
        return uri

    def submit(self, **spec):
        return self.ledger.submit([NewJob(model="m", **spec)])[0].job

    def end(self, job, *, fail=False):
        """Run the job to its end, with a result in the store."""
        (running,) = self.ledger.settle_and_claim([], ClaimRequest("w", (job.spec.queue,), 1, 60_000)).claimed
        assert running.id == job.id
        uri = self.put(self.paths.attempt(job.id, running.lease) + "result.out")
        failed = Failed(JobFailure(Cause.INPUT, "no"))
        outcome = failed if fail else Completed(ResultRef(uri, 1))
        self.ledger.settle_and_claim([Settlement(job.id, running.lease, outcome)])
        return self.ledger.get(job.id)

    def later(self, seconds: float) -> None:
        self.wall.advance(round(seconds * 1000))

    @property
    def objects(self) -> set[str]:
        """Return all objects below the base URI, relative to it."""
        return {i.uri.removeprefix(self.base) for i in self.stores.for_uri(self.base).list(self.base)}

    def folders(self) -> set[str]:
        """Return the folders of all attempts on a disk, relative to the base."""
        return {os.path.relpath(path, self.base) for path, _, _ in os.walk(self.paths.all_attempts)}
