"""The comparison of autoscalers as a table.

The loads are 40 jobs at once, for workers that run one job at a time; and bursts of 12 jobs of various
lengths every 20 minutes, for workers that run four. There are at most 20 workers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.scaling.settings import PoolSettings, WorkerRange
from scaling.simulation.autoscalers import HorizontalPodAutoscaler, KedaScaler
from scaling.simulation.cluster import Cluster
from scaling.simulation.control import (
    ControllerRun,
    CostsActuator,
    backlog,
    following_keda,
    queued,
    run_hpa,
    run_keda,
    wanted,
)
from scaling.simulation.loads import HOUR_S, bursts, exponential

JOBS = 40
WORKERS_MAX = 20
_LIMIT_S = 24 * HOUR_S
_METRICS = {"queued": queued, "queued + running": backlog}
_HEAD = ("jobs", "autoscaler", "metric", "target", "makespan", "killed", "wasted", "worker-hours")


@dataclass(frozen=True)
class Load:
    """The jobs of a run, and the number of them that a worker runs at once."""

    name: str
    submit: Callable[[Cluster], None]
    slots: int = 1


def _at_once(minutes: int) -> Load:
    return Load(f"{JOBS} of {minutes} min", lambda cluster: cluster.submit(minutes * 60.0, JOBS))


LONG, SHORT = _at_once(20), _at_once(2)
MIXED = Load(
    "bursts, 4 for each worker",
    lambda cluster: cluster.submit_at(bursts(12, 1200.0, 4 * HOUR_S), exponential(300.0)),
    slots=4,
)


@dataclass(frozen=True)
class Result:
    """The costs of a run, until the pool is at its smallest number again."""

    load: str
    autoscaler: str
    metric: str
    target: int
    makespan_s: float
    killed: int
    wasted_s: float
    worker_hours: float
    left: int
    """The workers at the end."""

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        return (
            self.load,
            self.autoscaler,
            self.metric,
            str(self.target),
            f"{self.makespan_s / 60:.1f} min",
            str(self.killed),
            f"{self.wasted_s / 60:.0f} min",
            f"{self.worker_hours:.1f}",
        )


def run_all() -> list[Result]:
    """Run all rows of the table."""
    results: list[Result] = []
    for load in (LONG, SHORT):
        results += [run_with_hpa(load, metric, target) for metric in _METRICS for target in (5, 1)]
        results += _in_comparison(load)
    return [*results, *_in_comparison(MIXED)]


def _in_comparison(load: Load) -> list[Result]:
    return [run_with_keda(load), run_with_follower(load), run_with_headrace(load)]


def run_with_hpa(load: Load, metric: str, target: int) -> Result:
    """Run a load with an HPA, which keeps one pod at least."""
    hpa = HorizontalPodAutoscaler(1, WORKERS_MAX, target)
    return _run(
        load, f"HPA 1..{WORKERS_MAX}", metric, target, lambda cluster: run_hpa(cluster, hpa, _METRICS[metric])
    )


def run_with_keda(load: Load) -> Result:
    """Run a load with KEDA, by the backlog and with the target that fits the slots."""
    keda = KedaScaler(0, WORKERS_MAX, load.slots)
    return _run(
        load,
        f"KEDA 0..{WORKERS_MAX}",
        "queued + running",
        load.slots,
        lambda cluster: run_keda(cluster, keda, backlog),
    )


def run_with_follower(load: Load, *, window_s: float = 0.0) -> Result:
    """Run a load with KEDA, by the decisions of headrace, which sets the deletion costs of the pods.

    `window_s` are the window for removals and the cooldown of KEDA.
    """

    def begin(cluster: Cluster) -> None:
        ControllerRun(cluster, _pool(load), CostsActuator(cluster))
        run_keda(cluster, following_keda(WORKERS_MAX, window_s), wanted)

    return _run(load, f"KEDA 0..{WORKERS_MAX} by headrace's decision", "workers wanted", 1, begin)


def run_with_headrace(load: Load) -> Result:
    """Run a load with the controller of headrace and its default policy."""
    return _run(
        load,
        f"headrace 0..{WORKERS_MAX}",
        "queued + running",
        load.slots,
        lambda cluster: ControllerRun(cluster, _pool(load)),
    )


def _pool(load: Load) -> PoolSettings:
    return PoolSettings(workers=WorkerRange(0, WORKERS_MAX), slots=load.slots)


def _run(load: Load, autoscaler: str, metric: str, target: int, begin: Callable[[Cluster], object]) -> Result:
    cluster = Cluster(slots=load.slots)
    load.submit(cluster)
    begin(cluster)
    least = cluster.replicas
    cluster.run_until_done(_LIMIT_S)
    cluster.run_until(cluster.now_s + HOUR_S, stop=lambda: cluster.replicas <= least)
    return Result(
        load.name,
        autoscaler,
        metric,
        target,
        cluster.makespan_s,
        cluster.killed,
        cluster.wasted_s,
        cluster.worker_hours,
        cluster.replicas,
    )


def markdown(results: Sequence[Result]) -> str:
    """Return the results as a table in Markdown."""
    rows = [_HEAD, ("---",) * len(_HEAD), *(result.cells() for result in results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
