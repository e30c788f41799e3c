"""Section short: jobs of a millisecond through the whole path, by headrace and by peers."""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from inputs import console
from job_peers import PEERS, by_peer, interpreters
from job_storage import LEDGERS, POSTGRES, JobStorage, open_storage
from job_workers import check, running_workers, submit, wait_until_done
from process_tree import tree_cpu_s
from targets import Target, spread

WORKERS = 2
CONCURRENCY = 64
WARM_JOBS = 200
PER_S_MIN = 500
MODELS = {0.0: "Instant", 0.001: "Millisecond"}

Figures = Mapping[str, Sequence[Mapping[str, float]]]


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Jobs/s of two workers, from the first submission to the last job's end; all checked"""
    job_s = arguments.job_ms / 1000
    found = interpreters(arguments.peer)
    peers = [peer for peer in PEERS if peer.name in found]
    for peer in PEERS:
        where = "" if peer in peers else " (not installed: make peers)"
        console.print(f"[dim]{peer.name}: {peer.does}{where}[/]")
    figures: dict[str, list[dict]] = {}
    with open_storage() as new:
        for _ in range(arguments.pairs):
            for kind in LEDGERS:
                figures.setdefault(kind, []).append(by_headrace(new(kind), arguments.jobs, MODELS[job_s]))
            for peer in peers:
                run = by_peer(
                    peer, found[peer.name], arguments.jobs, job_s, workers=WORKERS, warm_jobs=WARM_JOBS
                )
                figures.setdefault(peer.name, []).append(run)
    return list(targets(figures, arguments.job_ms)), figures


def targets(figures: Figures, job_ms: float) -> Iterator[Target]:
    for kind in LEDGERS:
        rates = [run["jobs_per_s"] for run in figures[kind]]
        measured = f"{cpu_us(figures[kind]):,.0f} µs of CPU each"
        what = f"{kind}: jobs/s, {job_ms:g} ms each, {WORKERS} workers"
        yield Target("short", what, measured, median(rates), PER_S_MIN, True, spread(rates))
    for peer in PEERS:
        for kind in (POSTGRES,) if peer.over_postgres else LEDGERS:
            if peer.name in figures:
                yield compared(figures, kind, peer.name, 1 if peer.bounded else None)


def compared(figures: Figures, kind: str, peer: str, bound: float | None) -> Target:
    pairs = zip(figures[kind], figures[peer], strict=True)
    ratios = [a["jobs_per_s"] / b["jobs_per_s"] for a, b in pairs]
    ours, theirs = (median(run["jobs_per_s"] for run in figures[name]) for name in (kind, peer))
    measured = f"{ours:,.0f} against {theirs:,.0f}, with {cpu_us(figures[peer]):,.0f} µs of CPU each"
    return Target(
        "short", f"{kind}: jobs/s against {peer}", measured, median(ratios), bound, True, spread(ratios)
    )


def cpu_us(runs: Sequence[Mapping[str, float]]) -> float:
    return median(run["cpu_us_per_job"] for run in runs)


def by_headrace(storage: JobStorage, jobs: int, model: str, *, concurrency: int = CONCURRENCY) -> dict:
    """Run headrace once. Raise BrokenRunError if a job is lost, was retried, or has a wrong result."""
    with (
        storage.ledger() as ledger,
        running_workers(storage, model, workers=WORKERS, concurrency=concurrency),
    ):
        submit(ledger, storage, range(WARM_JOBS))
        wait_until_done(ledger)
        used_s, began_s = tree_cpu_s(), time.perf_counter()
        ids = submit(ledger, storage, range(jobs))
        submitted_s = time.perf_counter() - began_s
        wait_until_done(ledger)
        wall_s, cpu_s = time.perf_counter() - began_s, tree_cpu_s() - used_s
        check(ledger, ids)
    return {
        "jobs_per_s": jobs / wall_s,
        "cpu_us_per_job": cpu_s / jobs * 1e6,
        "submit_s": submitted_s,
        "wall_s": wall_s,
    }
