"""Section idle: the cost of a worker without jobs."""

import argparse
import time
from statistics import median

from job_storage import LEDGERS, JobStorage, open_storage
from job_workers import running_workers, submit, wait_until_done
from process_tree import tree_cpu_s, tree_memory_mb
from targets import Target, spread

CALM_S = 3.0


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """CPU and memory of a worker without jobs, with its model's process and its database"""
    figures: dict[str, list[dict]] = {kind: [] for kind in LEDGERS}
    for kind in LEDGERS:
        with open_storage([kind]) as new:
            figures[kind] = [idle(new(kind), arguments.idle_s) for _ in range(min(arguments.pairs, 2))]
    targets: list[Target] = []
    for kind, found in figures.items():
        cpu, memory = ([one[name] for one in found] for name in ("cpu_percent", "memory_mb"))
        server = median(one["all_cpu_percent"] for one in found)
        measured = f"{server:.1f} % with the database's server"
        what = f"{kind}: % of a core, over {arguments.idle_s:g} s"
        targets += [
            Target("idle", what, measured, median(cpu), None, False, spread(cpu)),
            Target("idle", f"{kind}: MB of memory (PSS)", "", median(memory), None, False, spread(memory)),
        ]
    return targets, figures


def idle(storage: JobStorage, idle_s: float) -> dict:
    """Measure a worker after its first jobs, so that everything is loaded."""
    with storage.ledger() as ledger, running_workers(storage, "Instant") as (pid,):
        submit(ledger, storage, range(10))
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
    """Return the CPU time of the worker, and of all started processes without this one."""
    return tree_cpu_s(pid), tree_cpu_s() - time.process_time()
