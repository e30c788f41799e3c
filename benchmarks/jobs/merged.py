"""Section merged: jobs that share the calls of a model to which ten rows cost what one does."""

import argparse
import time
from statistics import median

from job_places import LEDGERS, Place, places
from job_workers import check, submit, wait_until_done, working
from promise import Promise, spread

CONCURRENCY = 16
RATIO_MIN = 7
LONE_JOBS = 12
WARM_JOBS = 16


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """A model of 100 ms a call, whatever the rows: one worker with 16 jobs at a time, against one at a time."""
    figures: dict[str, dict[str, list[float]]] = {kind: {"merged": [], "lone": []} for kind in LEDGERS}
    with places() as new:
        for _ in range(asked.pairs):
            for kind in LEDGERS:
                figures[kind]["lone"].append(jobs_per_s(new(kind), LONE_JOBS, 1))
                figures[kind]["merged"].append(jobs_per_s(new(kind), asked.merged_jobs, CONCURRENCY))
    return [promise(kind, figures[kind]) for kind in LEDGERS], figures


def promise(kind: str, found: dict[str, list[float]]) -> Promise:
    ratios = [a / b for a, b in zip(found["merged"], found["lone"], strict=True)]
    measured = f"{median(found['merged']):,.1f} against {median(found['lone']):.1f}"
    what = f"{kind}: jobs/s, {CONCURRENCY} at a time against one, 100 ms a call"
    return Promise("merged", what, measured, median(ratios), RATIO_MIN, True, spread(ratios))


def jobs_per_s(place: Place, jobs: int, concurrency: int) -> float:
    """From the submission of all to the end of the last."""
    with place.ledger() as ledger, working(place, "Tenth", concurrency=concurrency):
        submit(ledger, place, range(WARM_JOBS if concurrency > 1 else 1))
        wait_until_done(ledger)
        began_s = time.perf_counter()
        ids = submit(ledger, place, range(jobs))
        wait_until_done(ledger)
        wall_s = time.perf_counter() - began_s
        check(ledger, ids)
    return jobs / wall_s
