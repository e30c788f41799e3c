"""Section starting: the time until a job that is submitted alone runs."""

import argparse
import random
import time
from collections.abc import Iterator
from statistics import median

from competition import BrokenRunError
from disk_limit import disk_per_s
from job_percentiles import percentile
from job_storage import LEDGERS, POSTGRES, SQLITE, JobStorage, open_storage
from job_workers import outcome, payload, running_workers, submit_one
from targets import Target, spread

from headrace.jobs.job import Job
from headrace.jobs.ledger import JobLedger
from headrace.jobs.state import JobState

P50_MS_MAX = {SQLITE: 30.0, POSTGRES: 10.0}
PAUSE_S = 0.03
"""Jobs arrive at random times between two polls."""
END_S = 30.0
WARM = 10
DISK_S = 0.4


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Milliseconds from before `submit` to the model's call, for one job at a time"""
    with open_storage() as new:
        figures = {kind: [] for kind in LEDGERS}
        for _ in range(arguments.pairs):
            for kind in LEDGERS:
                disk_ms = 1000 / disk_per_s(DISK_S)
                figures[kind].append({"disk_ms": disk_ms, **one_by_one(new(kind), arguments.starts)})
    return list(targets(figures)), figures


def targets(figures: dict[str, list[dict]]) -> Iterator[Target]:
    for kind, runs in figures.items():
        p50 = [percentile(run["model_ms"], 50) for run in runs]
        p99 = [percentile(run["model_ms"], 99) for run in runs]
        running = median(percentile(run["running_ms"], 50) for run in runs)
        submitted = median(percentile(run["submit_ms"], 50) for run in runs)
        disk = median(run["disk_ms"] for run in runs)
        measured = f"submitted {submitted:.1f}, RUNNING {running:.1f}; two disk writes take {2 * disk:.1f}"
        bound = P50_MS_MAX[kind]
        yield Target(
            "starting",
            f"{kind}: ms to the model's call, p50",
            measured,
            median(p50),
            bound,
            False,
            spread(p50),
        )
        yield Target("starting", f"{kind}: the same, p99", "", median(p99), None, False, spread(p99))


def one_by_one(storage: JobStorage, jobs: int) -> dict:
    """Return milliseconds of each job: the submission, until RUNNING in the ledger, until the
    model's call.
    """
    found = {"submit_ms": [], "running_ms": [], "model_ms": []}
    draw = random.Random(1)
    with storage.ledger() as ledger, running_workers(storage, "Stamp"):
        for number in range(WARM + jobs):
            new = payload(storage, number)
            time.sleep(draw.random() * PAUSE_S)
            began_ns = time.time_ns()
            job_id = submit_one(ledger, new)
            submitted_ns = time.time_ns()
            job = ended(ledger, job_id)
            if number >= WARM:
                (called_ns,) = outcome(job)
                found["submit_ms"].append((submitted_ns - began_ns) / 1e6)
                # The ledger stores whole milliseconds; add their mean rounding error.
                found["running_ms"].append(job.started_at_ms + 0.5 - began_ns / 1e6)
                found["model_ms"].append((called_ns - began_ns) / 1e6)
    return found


def ended(ledger: JobLedger, job_id: str) -> Job:
    """Return the ended job; polled, as a client does."""
    until_s = time.monotonic() + END_S
    while time.monotonic() < until_s:
        job = ledger.get(job_id)
        if job.state is JobState.COMPLETED:
            return job
        if job.state.ended:
            raise BrokenRunError(f"job {job_id} is {job.state}: {job.failure}")
        time.sleep(0.02)
    raise BrokenRunError(f"job {job_id} has not ended after {END_S:g} s")
