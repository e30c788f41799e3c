"""Section idle: what a worker costs that has nothing to do."""

import argparse
import time
from statistics import median

from job_places import LEDGERS, Place, places
from job_workers import submit, wait_until_done, working
from process_tree import tree_cpu_s, tree_memory_mb
from promise import Promise, spread

CALM_S = 3.0


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """Processor and memory of a worker without jobs, its model's process included, and its database's server."""
    figures: dict[str, list[dict]] = {kind: [] for kind in LEDGERS}
    for kind in LEDGERS:
        with places([kind]) as new:
            figures[kind] = [idle(new(kind), asked.idle_s) for _ in range(min(asked.pairs, 2))]
    promises: list[Promise] = []
    for kind, found in figures.items():
        cpu, memory = ([one[name] for one in found] for name in ("cpu_percent", "memory_mb"))
        server = median(one["all_cpu_percent"] for one in found)
        measured = f"{server:.1f} % with the database's server"
        what = f"{kind}: % of a core, over {asked.idle_s:g} s"
        promises += [
            Promise("idle", what, measured, median(cpu), None, False, spread(cpu)),
            Promise("idle", f"{kind}: MB of memory (PSS)", "", median(memory), None, False, spread(memory)),
        ]
    return promises, figures


def idle(place: Place, idle_s: float) -> dict:
    """After its first jobs, so that all is loaded."""
    with place.ledger() as ledger, working(place, "Instant") as (pid,):
        submit(ledger, place, range(10))
        wait_until_done(ledger)
        time.sleep(CALM_S)
        before = _used_s(pid)
        time.sleep(idle_s)
        worker_s, all_s = (b - a for a, b in zip(before, _used_s(pid), strict=True))
        memory_mb = tree_memory_mb(pid)
    return {
        "cpu_percent": worker_s / idle_s * 100,
        "all_cpu_percent": all_s / idle_s * 100,
        "memory_mb": memory_mb,
    }


def _used_s(pid: int) -> tuple[float, float]:
    """Of the worker, and of all that we started; without ourselves, who only wait."""
    return tree_cpu_s(pid), tree_cpu_s() - time.process_time()
