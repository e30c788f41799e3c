"""Transforms on a three-node Ray cluster on this machine: how fast beside the local runners, and whether kills are seen in the output.

``rates`` prints rows/s and processor seconds of one and two workers, in threads, processes and on Ray. ``kills`` does a million rows
while nodes (their raylets; workers live on as orphans) and workers are killed, and compares the outputs with an undisturbed
run's, file for file; it exits with 1 when they differ. Both print one JSON object a run.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from headrace import Model, ReadOptions, TaskSettings, TransformSettings
from headrace.app.transforming import transform_sync
from headrace.app.workers import RayWorkers, Workers

STORE_BYTES = 100 << 20
SOON_DEAD = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}


class Busy(Model):
    """Some 50 microseconds of one core for each row."""

    max_batch_rows = 512

    def predict(self, x: np.ndarray) -> np.ndarray:
        total = x.sum(axis=1)
        for _ in range(2_500):
            total = np.tanh(total * 1.01)
        return total


def make_rows(folder: Path, rows: int, files: int) -> None:
    folder.mkdir()
    each = rows // files
    for number in range(files):
        rng = np.random.default_rng(number)
        lines = [",".join(f"{v:.4f}" for v in row) for row in rng.random((each, 4))]
        for bad in range(7, each, 1_001):
            lines[bad] = "1,oops,2,3"
        (folder / f"{number:03d}.csv").write_text("\n".join(lines) + "\n")


class Nodes:
    """A head that does no work, and two that do."""

    def __init__(self) -> None:
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        began_s = time.perf_counter()
        self.cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": SOON_DEAD})
        self.head_s = time.perf_counter() - began_s
        self.nodes = [self.add() for _ in range(2)]
        self.all_s = time.perf_counter() - began_s
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")
        self.joined_s = time.perf_counter() - began_s

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

    def workers(self) -> list[int]:
        """Of headrace's, on these nodes and no others of this machine."""
        raylets = [node.all_processes["raylet"][0].process.pid for node in self.nodes]
        children = (Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in raylets)
        pids = [int(pid) for found in children for pid in found]
        return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Actor")]

    def kill(self, rng: random.Random) -> None:
        """One node's raylet; and another node in its place."""
        node = self.nodes.pop(rng.randrange(len(self.nodes)))
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        self.nodes.append(self.add())


def run(source: Path, out: Path, workers: Any) -> dict[str, Any]:
    began_s = time.perf_counter()
    report = transform_sync(
        str(source),
        str(out),
        model=f"{__file__}:Busy",
        workers=workers,
        settings=TransformSettings(
            read=ReadOptions(), tasks=TaskSettings(checkpoint_s=0.5, task_objects_max=1)
        ),
    )
    return {
        "workers": repr(workers),
        "status": report.status,
        "rows": report.records_in,
        "rows_failed": report.rows_failed,
        "tasks": report.tasks,
        "wall_s": round(time.perf_counter() - began_s, 2),
        "elapsed_s": round(report.elapsed_s, 2),
        "cpu_s": round(report.cpu_s, 2),
        "rows_per_s": round(report.rows_per_s),
        "rows_per_cpu_s": round(report.records_in / report.cpu_s),
    }


def outputs(folder: Path) -> dict[str, bytes]:
    files = [p for p in folder.rglob("*") if p.is_file() and "_headrace" not in p.parts]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.name != "_report.json"}


def rates(folder: Path, source: Path) -> None:
    for number, workers in enumerate([Workers(1), RayWorkers(1, 1), Workers(2, "process"), RayWorkers(2, 2)]):
        print(json.dumps(run(source, folder / f"out-{number}", workers)), flush=True)


def kills(nodes: Nodes, folder: Path, source: Path, count: int) -> None:
    print(json.dumps(run(source, folder / "local", Workers(1))), flush=True)
    rng, killed = random.Random(7), list[str]()
    # Nodes can be added by the main thread alone.
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, source, folder / "killed", RayWorkers(2, 2))
        while not wait([running], rng.uniform(3, 8)).done and len(killed) < count:
            if rng.random() < 0.5 and (pids := nodes.workers()):
                os.kill(rng.choice(pids), signal.SIGKILL)
                killed.append("worker")
            else:
                nodes.kill(rng)
                killed.append("node")
        print(json.dumps(running.result()), flush=True)
    same = outputs(folder / "killed") == outputs(folder / "local")
    print(json.dumps({"killed": killed, "same": same}))
    sys.exit(0 if same else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=["rates", "kills"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_rows(folder / "in", given.rows, files=40)
        nodes = Nodes()
        started = {"head_s": nodes.head_s, "three_nodes_s": nodes.all_s, "joined_s": nodes.joined_s}
        print(json.dumps({k: round(v, 1) for k, v in started.items()}), flush=True)
        try:
            if given.section == "rates":
                rates(folder, folder / "in")
            else:
                kills(nodes, folder, folder / "in", given.kills)
        finally:
            ray.shutdown()
            nodes.cluster.shutdown()


if __name__ == "__main__":
    main()
