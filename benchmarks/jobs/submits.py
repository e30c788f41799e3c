"""Section submits: the rate of durable submissions, with no worker running."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from disk_limit import disk_per_s, rate
from inputs import run_script
from job_storage import LEDGERS, JobStorage, open_storage
from job_workers import Process, submit_one
from targets import Target, spread

from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobLedger
from headrace.jobs.shared_calls import Submitter

PER_S_MIN = 800
SUBMITTERS = 8
TOGETHER = 100
API = Path(__file__).parent / "job_api.py"


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Submissions per second that survive a power failure; no worker runs"""
    figures: dict[str, dict[str, list[float]]] = {kind: {} for kind in LEDGERS}
    with open_storage() as new:
        for _ in range(arguments.pairs):
            for kind in LEDGERS:
                for name, per_s in one_round(new(kind), new(kind), arguments.submit_s).items():
                    figures[kind].setdefault(name, []).append(per_s)
    return [target for kind in LEDGERS for target in targets(kind, figures[kind])], figures


def one_round(storage: JobStorage, served: JobStorage, submit_s: float) -> dict[str, float]:
    """Return jobs per second for each client.

    The API has a separate storage, because it limits the pending jobs of a client.
    """
    found = {"disk": disk_per_s(submit_s)}
    with storage.ledger() as ledger:
        found["one"] = rate(submit_s, 1, lambda: submit_one(ledger, new_job()))
        found["eight"] = by_submitters(ledger, submit_s)
        found["batch"] = TOGETHER * rate(
            submit_s, 1, lambda: ledger.submit([new_job() for _ in range(TOGETHER)])
        )
    found["http"] = over_http(served, submit_s)
    return found


def targets(kind: str, found: dict[str, list[float]]) -> Iterator[Target]:
    bare = found["disk"]
    for name, what, bound in (
        ("eight", f"{SUBMITTERS} submitters, one job each at a time, their commits shared", PER_S_MIN),
        ("one", "one submitter, one job at a time", None),
        ("batch", f"one submitter, {TOGETHER} jobs at a time", None),
        ("http", f"over HTTP, {SUBMITTERS} connections, payloads stored durably too", None),
    ):
        per_s = found[name]
        shares = [a / b for a, b in zip(per_s, bare, strict=True)]
        measured = f"{median(shares):.2f} of {median(bare):,.0f} bare writes/s to the disk"
        yield Target(
            "submits", f"{kind}: jobs/s, {what}", measured, median(per_s), bound, True, spread(per_s)
        )


def new_job() -> NewJob:
    return NewJob(model="bench", input_uri="s3://bucket/payload.json", content_type="application/json")


def by_submitters(ledger: JobLedger, submit_s: float) -> float:
    submitter = Submitter(ledger)
    submitter.start()
    try:
        return rate(submit_s, SUBMITTERS, lambda: submitter.submit(new_job()).result())
    finally:
        submitter.stop()


def over_http(storage: JobStorage, submit_s: float) -> float:
    """Measure the API in a separate process, with a client in another."""
    with running_api(storage) as url:
        found = run_script("jobs/job_requests.py", url, "--seconds", submit_s, "--connections", SUBMITTERS)
    with storage.ledger() as ledger:
        newest = ledger.get(found["last"])
    assert newest.spec.model == "bench", "an acknowledged job is in the ledger"
    return found["jobs_per_s"]


@contextmanager
def running_api(storage: JobStorage) -> Iterator[str]:
    """Start the API in a separate process. Yield its address."""
    api = Process([sys.executable, str(API), storage.ledger_url, f"{storage.store}/"])
    try:
        yield api.wait_for("http://").strip()
    finally:
        api.terminate()
