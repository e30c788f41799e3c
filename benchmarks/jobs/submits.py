"""Section submits: how many jobs a second are taken for good, by nobody's work but the ledger's."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from disk_limit import disk_per_s, rate
from inputs import python
from job_places import LEDGERS, Place, places
from job_workers import Process, submit_one
from promise import Promise, spread

from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobLedger
from headrace.jobs.submitter import Submitter

PER_S_MIN = 800
SUBMITTERS = 8
TOGETHER = 100
API = Path(__file__).parent / "job_api.py"


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """Submissions a second that survive a power cut; nobody works on them."""
    figures: dict[str, dict[str, list[float]]] = {kind: {} for kind in LEDGERS}
    with places() as new:
        for _ in range(asked.pairs):
            for kind in LEDGERS:
                for name, per_s in one_round(new(kind), new(kind), asked.submit_s).items():
                    figures[kind].setdefault(name, []).append(per_s)
    return [promise for kind in LEDGERS for promise in promises(kind, figures[kind])], figures


def one_round(place: Place, served: Place, submit_s: float) -> dict[str, float]:
    """Jobs a second, by each way; the API has a place of its own, since it lets a caller have only so many waiting."""
    found = {"disk": disk_per_s(submit_s)}
    with place.ledger() as ledger:
        found["one"] = rate(submit_s, 1, lambda: submit_one(ledger, a_job()))
        found["eight"] = by_submitters(ledger, submit_s)
        found["batch"] = TOGETHER * rate(
            submit_s, 1, lambda: ledger.submit([a_job() for _ in range(TOGETHER)])
        )
    found["http"] = over_http(served, submit_s)
    return found


def promises(kind: str, found: dict[str, list[float]]) -> Iterator[Promise]:
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
        yield Promise(
            "submits", f"{kind}: jobs/s, {what}", measured, median(per_s), bound, True, spread(per_s)
        )


def a_job() -> NewJob:
    return NewJob(model="bench", input_uri="s3://bucket/payload.json", content_type="application/json")


def by_submitters(ledger: JobLedger, submit_s: float) -> float:
    submitter = Submitter(ledger)
    submitter.start()
    try:
        return rate(submit_s, SUBMITTERS, lambda: submitter.submit(a_job()).result())
    finally:
        submitter.stop()


def over_http(place: Place, submit_s: float) -> float:
    """By the API in a process of its own, asked by another."""
    api = Process([sys.executable, str(API), place.ledger_url, f"{place.store}/"])
    try:
        url = api.wait_for("http://").strip()
        found = python("jobs/job_requests.py", url, "--seconds", submit_s, "--connections", SUBMITTERS)
    finally:
        api.leave()
    with place.ledger() as ledger:
        newest = ledger.get(found["last"])
    assert newest.spec.model == "bench", "what was answered is in the ledger"
    return found["jobs_per_s"]
