"""The simulation of a pool beside real processes: the same jobs, and almost the same waits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from headrace.jobs.client import Client
from headrace.scaling.planner.load import Load, Seconds
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.simulation import simulate
from headrace.scaling.settings import ScalingSettings, WorkerRange
from integration.jobs_process import CommandProcess
from servers.polling import wait_until

pytestmark = pytest.mark.slow

MODEL = """
import threading

from headrace import Model, TensorSpec


class Timed(Model):
    inputs = (TensorSpec("seconds", "FP64", (-1, 1)),)
    outputs = (TensorSpec("took", "FP64", (-1,)),)

    def predict(self, seconds):
        threading.Event().wait(seconds.sum())
        return seconds[:, 0]
"""
INTERVAL_S = 0.5
POLICY = ScalingSettings(WorkerRange(0, 3), backlog_per_worker=10, scale_in_window_s=2)
CONFIG = f"""
[pools.local]
interval_s = {INTERVAL_S}
backlog_per_worker = {POLICY.backlog_per_worker}
scale_in_window_s = {POLICY.scale_in_window_s}
"""
BURST, STREAM = 100, 400
STREAM_PER_S = 40.0
"""Jobs of the stream each second: three workers fall behind."""
DELAY_S = 2.0 + INTERVAL_S / 2
"""Seconds until the first job of a phase is due: all are submitted before, between two decisions."""
BOUND = 0.15


@dataclass(frozen=True)
class Phase:
    """Jobs in the order in which they were due, in seconds since the first submission, and their workers.

    The pool has no worker at the begin.
    """

    submitted_s: Seconds
    due_s: Seconds
    began_s: Seconds
    ended_s: Seconds
    starts_s: Seconds
    """For each worker, the seconds from the decision that started it until it registered, to claim jobs."""

    @property
    def waits_s(self) -> Seconds:
        """The waiting times."""
        return self.began_s - self.due_s

    def predicted_waits_s(self) -> Seconds:
        """Return the waiting times of a simulation, with the run times of the jobs and the mean start."""
        span_s, run_s = float(self.ended_s.max()), self.ended_s - self.began_s
        load = Load(self.submitted_s, run_s, span_s, due_s=self.due_s)
        machine = Machine(start_s=float(self.starts_s.mean()))
        return simulate(load, machine, POLICY, interval_s=INTERVAL_S).began_s - self.due_s


def submissions(due_s: Sequence[float], seed: int) -> Iterator[dict[str, object]]:
    """Yield jobs that become due after these seconds."""
    run_s = np.random.default_rng(seed).uniform(0.04, 0.16, len(due_s)).tolist()
    for after_s, seconds in zip(due_s, run_s, strict=True):
        yield {"model": "model", "input": {"seconds": [[seconds]]}, "delay_s": after_s}


def run_phase(up: CommandProcess, client: Client, due_s: Sequence[float], seed: int) -> Phase:
    """Run jobs with the workers of a command, until none is left of both."""
    began_ms = max((each["stopped_at_ms"] for each in client.workers()), default=0)
    submitted = client.submit_batch(submissions(due_s, seed), all_or_nothing=True)
    (pool,) = client.pools()

    def ended() -> bool:
        queue = client.queue("default")
        waiting = queue["later"] + queue["queued"] + queue["running"]
        return not waiting and not psutil.Process(up.pid).children()

    wait_until(ended, "the end of all jobs and workers")
    ids = {job.id for job in submitted}
    jobs = [job for job in client.list(states=["completed"]) if job.id in ids]
    rows = [(job.due_at_ms, job.started_at_ms or 0, job.ended_at_ms or 0, job.created_at_ms) for job in jobs]
    times_ms = np.array(sorted(rows))
    assert times_ms.shape == (len(due_s), 4)
    added_ms = [
        each["at_ms"]
        for each in client.decisions(pool["pool"])
        if each["at_ms"] > began_ms
        for _ in range(each["wanted"] - each["workers"])
    ]
    registered_ms = [each["started_at_ms"] for each in client.workers() if each["started_at_ms"] > began_ms]
    assert len(added_ms) == len(registered_ms) == POLICY.workers.most
    # Workers register in the order in which they were added.
    starts_ms = np.sort(registered_ms) - np.sort(added_ms)
    due, began, ended_at, created = (times_ms - times_ms[:, 3].min()).T / 1000
    return Phase(created, due, began, ended_at, starts_ms / 1000)


def run_trace(folder: Path) -> list[Phase]:
    """Run a burst, and after a pause without workers a stream, with real worker processes."""
    (folder / "model.py").write_text(MODEL)
    (folder / "jobs.toml").write_text(CONFIG)
    ports = ("--port", "0", "--rest-port", "0", "--metrics-port", "0")
    pool = ("--workers", str(POLICY.workers), "--concurrency", "1", "--config", "jobs.toml")
    stream = [DELAY_S + number / STREAM_PER_S for number in range(STREAM)]
    up = CommandProcess(folder, "up", "model.py", *pool, *ports)
    with up, Client(up.wait_until_ready().urls["jobs"]) as client:
        return [run_phase(up, client, [DELAY_S] * BURST, 1), run_phase(up, client, stream, 2)]


def summary(waits_s: Seconds) -> Seconds:
    """Return the median, the 95th percentile and the mean."""
    return np.array([*np.quantile(waits_s, (0.5, 0.95)), waits_s.mean()])


def test_trace_through_real_processes_confirms_the_predicted_waits(tmp_path):
    phases = run_trace(tmp_path)
    found = summary(np.concatenate([phase.waits_s for phase in phases]))
    predicted = summary(np.concatenate([phase.predicted_waits_s() for phase in phases]))
    errors = predicted / found - 1
    assert found.min() > 1.0, "the waits are those of queues and starts"
    assert np.abs(errors).max() <= BOUND, (found, predicted)
