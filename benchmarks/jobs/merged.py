"""Section merged: jobs that share model calls, on a model that needs as long for ten rows as for
one.
"""

import argparse
import time
from statistics import median

from job_storage import LEDGERS, JobStorage, open_storage
from job_workers import check, running_workers, submit, wait_until_done
from targets import Target, spread

CONCURRENCY = 16
RATIO_MIN = 7
LONE_JOBS = 12
WARM_JOBS = 16


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """A model of 100 ms for each call: 16 concurrent jobs of a worker, relative to one"""
    figures: dict[str, dict[str, list[float]]] = {kind: {"merged": [], "lone": []} for kind in LEDGERS}
    with open_storage() as new:
        for _ in range(arguments.pairs):
            for kind in LEDGERS:
                figures[kind]["lone"].append(jobs_per_s(new(kind), LONE_JOBS, 1))
                figures[kind]["merged"].append(jobs_per_s(new(kind), arguments.merged_jobs, CONCURRENCY))
    return [target(kind, figures[kind]) for kind in LEDGERS], figures


def target(kind: str, found: dict[str, list[float]]) -> Target:
    ratios = [a / b for a, b in zip(found["merged"], found["lone"], strict=True)]
    measured = f"{median(found['merged']):,.1f} against {median(found['lone']):.1f}"
    what = f"{kind}: jobs/s, {CONCURRENCY} at a time against one, 100 ms per call"
    return Target("merged", what, measured, median(ratios), RATIO_MIN, True, spread(ratios))


def jobs_per_s(storage: JobStorage, jobs: int, concurrency: int) -> float:
    """Measure from the submission of all jobs to the end of the last."""
    with storage.ledger() as ledger, running_workers(storage, "Tenth", concurrency=concurrency):
        submit(ledger, storage, range(WARM_JOBS if concurrency > 1 else 1))
        wait_until_done(ledger)
        began_s = time.perf_counter()
        ids = submit(ledger, storage, range(jobs))
        wait_until_done(ledger)
        wall_s = time.perf_counter() - began_s
        check(ledger, ids)
    return jobs / wall_s
