"""Section kills: a million rows on a Ray cluster of three nodes, undisturbed and during kills.

Nodes and workers are killed. A node is killed as other nodes see the loss of a machine: its raylet
gets SIGKILL. Its workers live on for a while, and write.
"""

import argparse
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import ray
from competition import BrokenRunError
from inputs import FOLDER, MODEL, make_input
from million import ROWS
from ray.cluster_utils import Cluster
from targets import Target, spread

from headrace.app.runners import RayWorkers
from headrace.app.runs import transform_sync
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import TaskSettings, TransformSettings
from runs import output_files, output_folder

KILLS = 6
EVERY_S = (2.0, 5.0)
STORE_BYTES = 100 << 20
SOON_DEAD = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """A head without work, and two nodes with work."""

    def __init__(self) -> None:
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        self.cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": SOON_DEAD})
        self.nodes = [self.add() for _ in range(2)]
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

    def workers(self) -> list[int]:
        """Return the process ids of headrace's workers on these nodes."""
        raylets = [node.all_processes["raylet"][0].process.pid for node in self.nodes]
        children = (Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in raylets)
        pids = [int(pid) for found in children for pid in found]
        return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Actor")]

    def kill(self, rng: random.Random) -> str:
        """Kill a worker, or a node, which is replaced. Return the kind."""
        pids = self.workers()
        if pids and rng.random() < 0.5:
            os.kill(rng.choice(pids), signal.SIGKILL)
            return "worker"
        node = self.nodes.pop(rng.randrange(len(self.nodes)))
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        self.nodes.append(self.add())
        return "node"

    def stop(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """a million rows on three Ray nodes while nodes and workers are killed"""
    source = make_input("clusters-million", ROWS, "--object-rows", "50000")
    nodes, rng = Nodes(), random.Random(7)
    figures: dict[str, list[float]] = {"undisturbed_s": [], "killed_s": [], "kills": []}
    try:
        for _ in range(arguments.pairs):
            figures["undisturbed_s"].append(_run(source, "undisturbed"))
            with ThreadPoolExecutor(1) as pool:
                running = pool.submit(_run, source, "killed")
                kills = []
                # Only the main thread can add nodes.
                while not wait([running], rng.uniform(*EVERY_S)).done and len(kills) < KILLS:
                    kills.append(nodes.kill(rng))
            figures["killed_s"].append(running.result())
            figures["kills"].append(len(kills))
            if output_files("killed") != output_files("undisturbed"):
                raise BrokenRunError(f"the output differs after kills: {', '.join(kills)}")
    finally:
        nodes.stop()
    ratios = [a / b for a, b in zip(figures["killed_s"], figures["undisturbed_s"], strict=True)]
    measured = f"{sum(figures['kills']):.0f} kills in all, and the same bytes"
    what = "Ray, nodes and workers killed, relative to undisturbed: seconds"
    middle = sorted(ratios)[len(ratios) // 2]
    return [Target("kills", what, measured, middle, None, False, spread(ratios))], figures


def _run(source: Path, name: str) -> float:
    began_s = time.perf_counter()
    report = transform_sync(
        f"{source}/",
        f"{FOLDER.absolute()}/{output_folder(name).name}/",
        model=str(MODEL.absolute()),
        workers=RayWorkers(2, 2),
        settings=TransformSettings(
            tasks=TaskSettings(task_bytes=1 << 20), output=OutputSettings(checkpoint_s=0.5)
        ),
        overwrite=True,
    )
    if (report.status, report.records_in, report.rows_out) != ("complete", ROWS, ROWS):
        raise BrokenRunError(
            f"{name}: {report.status}, {report.records_in} in, {report.rows_out} out of {ROWS}"
        )
    return time.perf_counter() - began_s
