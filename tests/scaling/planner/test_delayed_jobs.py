"""Decisions of a simulation about jobs with a delay, which no submission announces."""

import numpy as np
import pytest

from headrace.scaling.planner.load import Load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.simulation import simulate
from headrace.scaling.settings import ScalingSettings, WorkerRange


def wait_s(interval_s: float, arrived_s: float, due_s: float) -> float:
    load = Load(np.array([arrived_s]), np.array([1.0]), 100.0, due_s=np.array([due_s]))
    settings = ScalingSettings(WorkerRange(0, 1))
    outcome = simulate(load, Machine(start_s=0), settings, interval_s=interval_s)
    return float(outcome.began_s[0]) - due_s


@pytest.mark.parametrize(("due_s", "wait"), [(20.0, 0.0), (21.5, 2.5), (23.0, 1.0)])
def test_delayed_job_waits_for_the_next_decision_of_an_idle_pool(due_s, wait):
    assert wait_s(4.0, 3.0, due_s) == pytest.approx(wait)


def test_submitted_job_causes_a_decision_at_once():
    assert wait_s(4.0, 21.5, 21.5) == 0.0


def test_job_that_is_due_at_the_begin_starts_a_worker_at_once():
    assert wait_s(4.0, 0.0, 0.0) == 0.0
